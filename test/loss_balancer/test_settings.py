"""Options set later, numbers of every kind, losses that are off, keys of stats."""

import json
import math
import threading
import warnings

import numpy as np
import pytest
import torch
from linear import DOUBLE, linear_losses, random_grads

from balancer import Balancer, Ramp

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}


def call(balancer, grads, **others):
    """The gradient that a call brings to its input, and the call's stats."""
    y = torch.zeros_like(next(iter(grads.values()))).requires_grad_()
    new_losses, stats = balancer({**linear_losses(y, grads), **others}, y)
    sum(new_losses.values()).backward()
    return y.grad, stats


CHANGES = {
    "total_norm": (3.0, -1.0),
    "ema_decay": (0.5, 5),
    "per_batch_item": (False, 1),
    "epsilon": (0.5, -1.0),
    "weights": ({"a": 3.0, "b": 1.0, "c": 1.0}, {"a": -1.0}),
    "balance_grads": (False, "no"),
    "monitor": (True, None),
    "exact_total_norm": (True, 1),
    "weighting": ("upgrad", "upgrade"),
    "average": ("adaptive", "mean"),
    "input_only": (False, 0),
    "update_every": (3, 0),
    "outliers": ("skip", "drop"),
    "process_group": (None, "dp"),
    "probe": (None, 3),
}


def test_every_option_can_be_tried_here():
    import inspect

    assert set(CHANGES) == set(inspect.signature(Balancer).parameters)


@pytest.mark.parametrize("name", CHANGES)
def test_bad_value_of_an_option_is_refused_when_set_too(name):
    balancer = Balancer(weights=WEIGHTS)
    call(balancer, random_grads(0))
    before = json.dumps(balancer.state_dict()), getattr(balancer, name)
    with pytest.raises((TypeError, ValueError), match=name.removesuffix("s")):
        setattr(balancer, name, CHANGES[name][1])
    assert (json.dumps(balancer.state_dict()), getattr(balancer, name)) == before


@pytest.mark.parametrize("name", [n for n in CHANGES if n != "process_group"])
def test_option_that_is_set_has_effect_from_the_next_call_on(name):
    """As if the balancer had been made with it and the averages had been loaded."""
    first, value = Balancer(weights=WEIGHTS, ema_decay=0.9), CHANGES[name][0]
    for seed in range(4):
        call(first, random_grads(seed))
    options = {"weights": WEIGHTS, "ema_decay": 0.9, name: value}
    second = Balancer(**options)
    second.load_state_dict(first.state_dict())
    setattr(first, name, value)
    for seed in range(4, 9):
        grads = random_grads(seed)
        (grad, stats), (expected, expected_stats) = call(first, grads), call(
            second, grads
        )
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=0)
        assert stats == pytest.approx(expected_stats, rel=1e-12, nan_ok=True)
    assert first.state_dict() == second.state_dict()


def test_new_decay_reaches_the_averages():
    balancer = Balancer(ema_decay=0.999)
    for _ in range(50):
        call(balancer, {"a": torch.ones(2, 3)})
    balancer.ema_decay = 0.0
    _, stats = call(balancer, {"a": 100 * torch.ones(2, 3)})
    assert stats["a_scale"] * stats["a_norm"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "made", [np.float64, np.float32, np.int64, torch.tensor, np.array]
)
def test_any_real_number_is_read_and_kept_as_a_plain_one(made):
    ramp = Ramp(made(1), made(2), made(0), made(4))
    balancer = Balancer(
        total_norm=made(2),
        ema_decay=made(1),
        epsilon=made(0),
        weights={"a": made(1), "b": ramp},
        update_every=made(2),
    )
    plain = (balancer.total_norm, balancer.epsilon, balancer.weights["a"], ramp.end)
    assert {type(number) for number in plain} == {float}
    assert type(balancer.update_every) is int
    call(balancer, random_grads(0, "ab"))
    json.dumps(balancer.state_dict())


@pytest.mark.parametrize("value", [True, "2", 1j, torch.ones(2), np.bool_(True)])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match="total_norm must be a number"):
        Balancer(total_norm=value)


def test_weights_are_set_from_what_they_are():
    ramp = {"start": 0.0, "end": 3.0, "from_step": 1, "to_step": 2}
    balancer = Balancer(weights={"mel": 1, "adv": ramp})
    balancer.weights = {**balancer.weights, "mel": 2}
    assert balancer.weights == {"mel": 2.0, "adv": Ramp(0.0, 3.0, 1, 2)}


ZEROS = {
    "0": lambda: 0,
    "0.0": lambda: 0.0,
    "tensor": lambda: torch.tensor(0.0),
    "one element": lambda: torch.zeros(1),
}


@pytest.mark.parametrize("update_every", [1, 2])
@pytest.mark.parametrize("zero", ZEROS)
def test_constant_zero_is_a_loss_that_is_off(zero, update_every):
    """It comes back as it came; the others are as if it had been left out."""
    off, without = (
        Balancer(weights=WEIGHTS, update_every=update_every) for _ in range(2)
    )
    for seed in range(3):
        grads = random_grads(seed, "ab")
        value = ZEROS[zero]()
        y = torch.zeros(3, 2, 4, dtype=DOUBLE, requires_grad=True)
        new_losses, stats = off({"c": value, **linear_losses(y, grads)}, y)
        assert new_losses["c"] is value and list(new_losses) == ["c", "a", "b"]
        sum(new_losses.values()).sum().backward()
        expected, expected_stats = call(without, grads)
        assert torch.equal(y.grad, expected) and stats == expected_stats
        assert {stats[f"c_{stat}"] for stat in ("norm", "share", "scale")} == {0.0}
    assert off.state_dict() == without.state_dict()
    with torch.no_grad():
        assert off({"a": torch.ones(()), "c": ZEROS[zero]()}, y)[0]["c"] == 0


@pytest.mark.parametrize("constant", [torch.tensor(0.5), torch.tensor(math.nan), 0.5])
def test_other_constant_is_refused(constant):
    balancer = Balancer(weights=WEIGHTS)
    with pytest.raises((TypeError, ValueError), match="'c'"):
        call(balancer, random_grads(0, "ab"), c=constant)
    assert balancer.state_dict() == Balancer(weights=WEIGHTS).state_dict()


def test_constant_zero_without_weights_is_refused():
    """Since nothing says that there is such a loss."""
    for zero, error in ((0, TypeError), (torch.zeros(()), ValueError)):
        with pytest.raises(error, match="'c'.*`weights`"):
            call(Balancer(), random_grads(0, "ab"), c=zero)


def test_what_was_monitored_is_not_said_of_other_losses():
    """{a, −a} cancel; a alone is 1."""
    grad = torch.ones(2, 3, dtype=DOUBLE)
    both = {"a": grad, "b": -grad}
    balancer = Balancer(weights={"a": 1, "b": 1}, monitor=True, update_every=9)
    _, stats = call(balancer, both)
    assert (stats["a_b_cosine"], stats["total_grad_norm"]) == pytest.approx((-1, 0))
    _, stats = call(balancer, {"a": grad})
    assert stats["a_b_cosine"] == 0.0 and math.isnan(stats["total_grad_norm"])
    _, stats = call(balancer, both)
    assert (stats["a_b_cosine"], stats["total_grad_norm"]) == pytest.approx((-1, 0))


NAMES = [
    (["a", "b_c", "a_b", "c"], "'a_b_c_cosine'"),
    (["total_grad", "c"], "'total_grad_norm'"),
]


@pytest.mark.parametrize("names, key", NAMES)
def test_losses_whose_stats_would_have_one_key_are_refused(names, key):
    grads = random_grads(0, names)
    balancer = Balancer(monitor=True)
    with pytest.raises(ValueError, match=f"{key}.*another name"):
        call(balancer, grads)
    assert balancer.state_dict()["calls"] == 0
    call(Balancer(), grads)  # without the pairs there is no such key


STATES = {
    "weighting": (dict(weighting="upgrad"), {}, "coefficients"),
    "monitor": (dict(monitor=True), {}, "monitored"),
    "exact_total_norm": (dict(exact_total_norm=True), {}, "combined"),
    "per_batch_item": (dict(), dict(per_batch_item=False), "norms"),
    "another weighting": (
        dict(weighting="upgrad"),
        dict(weighting="mgda"),
        "coefficients",
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_state_of_other_options_brings_nothing_that_does_not_apply(case):
    options, other_options, part = STATES[case]
    saved = Balancer(weights=WEIGHTS, **options)
    call(saved, random_grads(0))
    assert saved.state_dict()[part]
    loaded = Balancer(weights=WEIGHTS, update_every=9, **other_options)
    loaded.load_state_dict(saved.state_dict())
    assert not loaded.state_dict()[part]
    y = torch.zeros(3, 2, 4, dtype=DOUBLE)
    with torch.no_grad():
        _, stats = loaded(linear_losses(y, random_grads(0)), y)
    if case == "weighting":
        plain = Balancer(weights=WEIGHTS)
        _, expected = call(plain, random_grads(0))
        assert stats == pytest.approx({key: expected[key] for key in stats})


@pytest.mark.parametrize("losses", [{"mel": 0.5}, {"mel": 1e-13}])
def test_warning_that_is_an_error_leaves_no_state_changed(losses):
    """The norm of mel falls, or is as small as epsilon."""
    balancer = Balancer(weights={"mel": 1, "adv": 4}, ema_decay=0.999)

    def step(number):
        y = torch.ones(2, 3, dtype=DOUBLE, requires_grad=True)
        factor = losses["mel"] if losses["mel"] < 0.1 else 0.97**number
        balancer({"mel": factor * y.sum(), "adv": y.square().sum()}, y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(300):
            before = balancer.state_dict(), balancer.metrics
            try:
                step(number)
            except UserWarning:
                break
        else:
            pytest.fail("nothing was said")
    assert (balancer.state_dict(), balancer.metrics) == before


def test_calls_of_several_threads_are_all_counted():
    balancer = Balancer(update_every=3)
    together = threading.Barrier(4, timeout=60)

    def work():
        together.wait()
        for seed in range(50):
            call(balancer, random_grads(seed, "ab"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert balancer.state_dict()["calls"] == 200


def test_first_argument_of_audiocraft_names_the_way_out():
    with pytest.raises(TypeError, match="l1.*weights="):
        Balancer({"l1": 1})
