"""The balancer as a whole: golden values, properties, refusals, evaluation."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear import DOUBLE, linear_losses, random_grads

from balancer import Balancer

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "audiocraft_balancer.json").read_text()
)


def balanced_grad(balancer, grads, y=None, multipliers=None):
    """The gradient that a plain backward through one call brings to y."""
    y = torch.zeros_like(next(iter(grads.values()))) if y is None else y
    y = y.clone().requires_grad_()
    new_losses, stats = balancer(linear_losses(y, grads), y)
    multipliers = multipliers or {}
    total = sum(multipliers.get(name, 1.0) * loss for name, loss in new_losses.items())
    total.backward()
    return y.grad, stats


def snapshot(balancer):
    return json.dumps([balancer.state_dict(), balancer.metrics], sort_keys=True)


@pytest.mark.parametrize("input_only", [True, False])
@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_golden_audiocraft(case, input_only):
    options = ["balance_grads", "total_norm", "ema_decay", "per_batch_item", "epsilon"]
    balancer = Balancer(
        weights=case["weights"],
        input_only=input_only,
        **{key: case[key] for key in options},
    )
    for step in case["steps"]:
        y = torch.tensor(step["y"], dtype=DOUBLE, requires_grad=True)
        grads = {k: torch.tensor(v, dtype=DOUBLE) for k, v in step["grads"].items()}
        new_losses, stats = balancer(linear_losses(y, grads), y)
        total = sum(new_losses.values())
        total.backward()
        expected = torch.tensor(step["grad"], dtype=DOUBLE)
        torch.testing.assert_close(y.grad, expected, rtol=1e-9, atol=0)
        assert total.item() == pytest.approx(step["effective_loss"], rel=1e-9)
        for name, ratio in step["ratios"].items():
            assert stats[f"{name}_ratio"] == pytest.approx(ratio, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    exponent=st.floats(-12, 12),
    decay=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
    per_batch_item=st.booleans(),
)
def test_scale_of_a_loss_does_not_matter(seed, exponent, decay, per_batch_item):
    options = dict(ema_decay=decay, per_batch_item=per_batch_item, epsilon=0.0)
    plain, scaled = Balancer(**options), Balancer(**options)
    for step in range(3):
        grads = random_grads(seed + step)
        grad, _ = balanced_grad(plain, grads)
        grads["b"] = grads["b"] * 10**exponent
        same, _ = balanced_grad(scaled, grads)
        torch.testing.assert_close(same, grad, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    weights=st.lists(st.floats(0.01, 100), min_size=3, max_size=3),
    total_norm=st.floats(0.1, 10),
    input_only=st.booleans(),
)
def test_shares_meet_their_targets(seed, weights, total_norm, input_only):
    weights = dict(zip("abc", weights))
    balancer = Balancer(total_norm, epsilon=0.0, weights=weights, input_only=input_only)
    grads = random_grads(seed)
    for _ in range(3):
        grad, stats = balanced_grad(balancer, grads)
    whole = sum(weights.values())
    expected = torch.zeros_like(grad)
    for name, weight in weights.items():
        assert stats[f"{name}_share"] == pytest.approx(weight / whole, rel=1e-9)
        norm = grads[name].flatten(1).norm(dim=1).mean()
        expected += total_norm * weight / whole * grads[name] / norm
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    factors=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    measure=st.booleans(),
)
def test_linear_in_what_the_caller_multiplies(seed, factors, measure):
    """Also on a call that holds its averages."""
    grads = random_grads(seed)

    def grad_with(multipliers):
        balancer = Balancer(update_every=2)
        if not measure:
            balanced_grad(balancer, random_grads(seed + 1))
        return balanced_grad(balancer, grads, multipliers=multipliers)[0]

    parts = [
        factor * grad_with({other: float(other == name) for other in "abc"})
        for name, factor in zip("abc", factors)
    ]
    joint = grad_with(dict(zip("abc", factors)))
    torch.testing.assert_close(joint, sum(parts), rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    off=st.integers(1, 5),
    zero=st.booleans(),
    decay=st.sampled_from([0.0, 0.9, 0.999, 1.0]),
)
def test_late_loss_does_not_explode(seed, off, zero, decay):
    """Neither one that is absent at first nor one whose gradient is zero."""
    weights = {"a": 1.0, "b": 2.0}
    late = Balancer(weights=weights, ema_decay=decay)
    early = Balancer(weights=weights, ema_decay=decay)
    grads = random_grads(seed, "ab")
    for _ in range(off):
        present = {"a": grads["a"], "b": 0 * grads["b"]} if zero else {"a": grads["a"]}
        grad, stats = balanced_grad(late, present)
        assert stats["b_scale"] == 0.0
        assert torch.isfinite(grad).all()
        balanced_grad(early, grads)
    _, stats_late = balanced_grad(late, grads)
    _, stats_early = balanced_grad(early, grads)
    assert stats_late["b_scale"] <= stats_early["b_scale"] * (1 + 1e-9)


def test_several_inputs_are_one():
    """A norm over two outputs is that of their concatenation for each item."""
    torch.manual_seed(0)
    joint = torch.randn(3, 7, dtype=DOUBLE, requires_grad=True)
    first, second = torch.randn(3, 7, dtype=DOUBLE).split([4, 3], dim=1)
    first, second = first.clone().requires_grad_(), second.clone().requires_grad_()
    with torch.no_grad():
        joint.copy_(torch.cat([first, second], dim=1))

    def losses(y, z):
        return {"y": y.pow(3).sum(), "z": z.abs().sum(), "yz": (y.sum() * z.sum())}

    _, one = Balancer()(losses(*joint.split([4, 3], dim=1)), joint)
    new_losses, two = Balancer()(losses(first, second), [first, second])
    assert two == pytest.approx(one, rel=1e-12)
    sum(new_losses.values()).backward()
    only, _ = Balancer()({"y": first.pow(3).sum()}, [first, second])
    only["y"].backward()  # second gets nothing from a loss that does not use it


@pytest.mark.parametrize("input_only", [True, False])
def test_monitor(input_only):
    grads = random_grads(3, "ab", spread=1.0)
    balancer = Balancer(weights={"a": 3.0, "b": 1.0}, monitor=True, epsilon=0.0)
    grad, stats = balanced_grad(balancer, grads)
    a, b = grads["a"].flatten(), grads["b"].flatten()
    cosine = torch.dot(a, b) / (a.norm() * b.norm())
    assert stats["a_b_cosine"] == pytest.approx(cosine.item(), rel=1e-9)
    norm = grad.flatten(1).norm(dim=1).mean()
    assert stats["total_grad_norm"] == pytest.approx(norm.item(), rel=1e-9)
    assert balancer.state_dict()["combined"] == {}  # of exact_total_norm alone
    _, stats = balanced_grad(balancer, {"a": grads["a"]})  # the same keys without b
    assert stats["a_b_cosine"] == 0.0 and stats["b_share"] == 0.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    total_norm=st.floats(0.1, 10),
    input_only=st.booleans(),
)
def test_exact_total_norm(seed, total_norm, input_only):
    """Of gradients that oppose each other too, and on held calls; shares stay."""
    options = dict(ema_decay=0.0, epsilon=0.0, input_only=input_only, update_every=2)
    exact = Balancer(total_norm, exact_total_norm=True, **options)
    plain = Balancer(total_norm, **options)
    grads = random_grads(seed, spread=1.0)
    grads["c"] = -0.9 * grads["a"] + 0.1 * grads["b"]
    for _ in range(2):
        grad, stats = balanced_grad(exact, grads)
        other, expected = balanced_grad(plain, grads)
        norm = grad.flatten(1).norm(dim=1).mean().item()
        assert norm == pytest.approx(total_norm, rel=1e-9)
        torch.testing.assert_close(
            grad / norm, other / other.flatten(1).norm(dim=1).mean(), rtol=1e-9, atol=0
        )
        assert stats["a_share"] == pytest.approx(expected["a_share"], rel=1e-9)
    assert "total_grad_norm" not in stats


@pytest.mark.parametrize("seed", range(5))
def test_exact_total_norm_of_losses_that_cancel(seed):
    """Their sum is rounding, and no scale grows without bound for it."""
    a = random_grads(seed, "a")["a"]
    balancer = Balancer(exact_total_norm=True)
    _, stats = balanced_grad(balancer, {"a": a, "b": -3 * a})
    norm = a.flatten(1).norm(dim=1).mean().item()
    assert stats["a_scale"] == pytest.approx(0.5 / norm, rel=1e-6)


def test_exact_total_norm_holds_on_average():
    balancer = Balancer(3.0, ema_decay=1.0, exact_total_norm=True)
    for step in range(300):
        grad, stats = balanced_grad(balancer, random_grads(step, spread=0.0))
    norms = []
    for step in range(300, 400):
        grad, _ = balanced_grad(balancer, random_grads(step, spread=0.0))
        norms.append(grad.flatten(1).norm(dim=1).mean().item())
    assert sum(norms) / len(norms) == pytest.approx(3.0, rel=0.02)


def test_update_every_decays_as_if_the_norm_had_stood():
    every, each = Balancer(ema_decay=0.9, update_every=3), Balancer(ema_decay=0.9)
    for step in range(7):
        grads = random_grads(step)
        _, stats = balanced_grad(every, grads)
        if step % 3 == 0:
            for _ in range(3):
                balanced_grad(each, grads)
    for name in "abc":
        assert every.state_dict()["averages"][name] == pytest.approx(
            each.state_dict()["averages"][name], rel=1e-12
        )
        norm = grads[name].flatten(1).norm(dim=1).mean().item()
        assert stats[f"{name}_norm"] == pytest.approx(norm)


def test_update_every_measures_a_loss_that_comes_on_off_calls_only():
    balancer = Balancer(update_every=2)
    for step in range(6):
        grads = random_grads(step, "ab" if step % 2 else "a")
        _, stats = balanced_grad(balancer, grads)
        assert all(stats[f"{name}_scale"] > 0 for name in grads)
    assert balancer.state_dict()["measured_at"]["b"] == 5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_measures_nothing(mode):
    weights = {"a": 2.0, "b": 1.0}
    balancer = Balancer(weights=weights)
    grads = random_grads(0, "ab")
    y = torch.ones(3, 2, 4, dtype=DOUBLE)
    with mode():
        losses = linear_losses(y, grads)
        fresh, stats = balancer(losses, y)
    assert stats == {"a_scale": 2.0, "b_scale": 1.0}
    assert all(fresh[name] == weights[name] * losses[name] for name in losses)
    _, trained = balanced_grad(balancer, grads)
    state = balancer.state_dict()
    with mode():
        later, stats = balancer(losses, y)
    assert stats == {name: trained[name] for name in ("a_scale", "b_scale")}
    assert later["a"] == stats["a_scale"] * losses["a"]
    assert balancer.state_dict() == state
    assert balancer(losses, y)[1] == stats  # grad mode on, but nothing requires grad
    assert balancer.metrics == stats


def test_losses_keep_shape_dtype_and_order():
    y = torch.ones(2, 3, requires_grad=True)
    losses = {"b": y.double().sum()[None], "a": y.mean().view(1, 1)}
    new_losses, _ = Balancer()(losses, y)
    assert list(new_losses) == ["b", "a"]
    for name, loss in losses.items():
        assert new_losses[name].shape == loss.shape
        assert new_losses[name].dtype == loss.dtype


@pytest.mark.parametrize("decay", [0.0, 0.999])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradient_reaches_the_trainer_not_the_averages(decay, bad):
    balancer = Balancer(ema_decay=decay)
    grads = random_grads(0, "ab")
    first, _ = balanced_grad(balancer, grads)
    averages = balancer.state_dict()["averages"]
    grad, _ = balanced_grad(balancer, {**grads, "b": grads["b"] * bad})
    assert not torch.isfinite(grad).any()
    assert balancer.state_dict()["averages"]["b"] == averages["b"]
    again, _ = balanced_grad(balancer, grads)
    torch.testing.assert_close(again, first, rtol=1e-9, atol=0)


Y = torch.linspace(-1, 1, 6, dtype=DOUBLE).reshape(2, 3)
BAD_CALLS = {
    "no losses": (lambda y: ({}, y), ValueError, "losses is empty"),
    "losses no dict": (lambda y: ([y.sum()], y), TypeError, "list"),
    "name": (lambda y: ({1: y.sum()}, y), TypeError, "name.*1"),
    "loss no tensor": (lambda y: ({"a": 1.5}, y), TypeError, "'a'.*1.5"),
    "elements": (lambda y: ({"a": y * 2}, y), ValueError, r"'a'.*\(2, 3\)"),
    "no weight": (lambda y: ({"zz": y.sum()}, y), ValueError, "'zz'.*'a', 'b', 'off'"),
    "weights sum to zero": (lambda y: ({"off": y.sum()}, y), ValueError, "off.*zero"),
    "no inputs": (lambda y: ({"a": y.sum()}, []), ValueError, "empty sequence"),
    "input no tensor": (lambda y: ({"a": y.sum()}, None), TypeError, "NoneType"),
    "input of no tensors": (lambda y: ({"a": y.sum()}, [1]), TypeError, "int"),
    "empty input": (
        lambda y: ({"a": y[:0].sum()}, y[:0]),
        ValueError,
        r"empty.*\(0, 3\)",
    ),
    "0-d input": (
        lambda y: ({"a": y.sum() * 2}, y.sum()),
        ValueError,
        "per_batch_item=False",
    ),
    "batch sizes": (
        lambda y: ({"a": y.sum()}, [y, y[:1]]),
        ValueError,
        r"batch sizes \[2, 1\]",
    ),
    "same input twice": (lambda y: ({"a": y.sum()}, [y, y]), ValueError, "twice"),
    "nested inputs": (
        lambda y: (lambda z: ({"a": z.sum()}, [y, z]))(y * 2),
        ValueError,
        "input 0.*another input",
    ),
    "input without grad": (
        lambda y: ({"a": y.sum()}, y.detach()),
        ValueError,
        "input 0 does not require grad",
    ),
    "constant": (
        lambda y: ({"a": y.sum(), "b": torch.ones(())}, y),
        ValueError,
        "'b'.*constant",
    ),
    "a number": (lambda y: ({"a": y.sum(), "b": 1}, y), TypeError, "'b'.*tensor.*1"),
    "detached": (
        lambda y: ({"a": (y.detach() * torch.ones(1, requires_grad=True)).sum()}, y),
        ValueError,
        "'a'.*detached tensor",
    ),
    "a view": (lambda y: ({"a": y.sum()}, y.view(-1)), ValueError, "'a'.*a view"),
    "of a view": (
        lambda y: (lambda z: ({"a": z[0].sum() + 0 * z.sum()}, z[1:]))(y * 2),
        ValueError,
        "'a'.*another tensor",
    ),
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("input_only", [True, False])
@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call_is_refused_and_changes_nothing(case, input_only, trained):
    make, error, message = BAD_CALLS[case]
    balancer = Balancer(weights={"a": 1, "b": 2, "off": 0}, input_only=input_only)
    if trained:
        y = Y.clone().requires_grad_()
        balancer({"a": y.sum(), "b": y.square().sum()}, y)
    before = snapshot(balancer)
    y = Y.clone().requires_grad_()
    with pytest.raises(error, match=message):
        balancer(*make(y))
    assert snapshot(balancer) == before
    assert y.grad is None


BAD_OPTIONS = [
    (dict(total_norm=0.0), ValueError, "total_norm.*0"),
    (dict(total_norm=math.nan), ValueError, "total_norm.*nan"),
    (dict(epsilon=-1e-9), ValueError, "epsilon.*-1e-09"),
    (dict(ema_decay=1.5), ValueError, "ema_decay.*1.5"),
    (dict(ema_decay=-0.1), ValueError, "ema_decay.*-0.1"),
    (dict(update_every=0), ValueError, "update_every.*0"),
    (dict(weights={"a": -1.0}), ValueError, "'a'.*-1.0"),
    (dict(weights={"a": math.inf}), ValueError, "'a'.*inf"),
    (dict(weights={"a": math.nan, "b": 1.0}), ValueError, "'a'.*nan"),
    (dict(weights={"a": 0.0}), ValueError, "sum to 0.*'a'"),
    (dict(exact_total_norm=True, balance_grads=False), ValueError, "balance_grads"),
    (dict(weights={}), ValueError, "sum to 0"),
    (dict(weights={"a": 1e308, "b": 1e308}), ValueError, "sum to inf"),
    (dict(weights={"a": 1.0, 2: 1.0}), TypeError, "name 2"),
    (dict(weights={"a": "x"}), TypeError, "'a'.*'x'"),
    (dict(balance_grads=1), TypeError, "balance_grads"),
    (dict(update_every=2.5), TypeError, "update_every.*whole.*2.5"),
    (dict(average="mean"), ValueError, "average is 'mean'.*adaptive"),
    (dict(total_norm={"l1": 1}), TypeError, "total_norm.*Balancer.weights="),
]


@pytest.mark.parametrize("options, error, message", BAD_OPTIONS)
def test_bad_option_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        Balancer(**options)


def test_first_four_options_stand_in_espnets_order():
    balancer = Balancer(2.0, 0.5, False, 1e-6)
    assert (balancer.total_norm, balancer.ema_decay) == (2.0, 0.5)
    assert (balancer.per_batch_item, balancer.epsilon) == (False, 1e-6)


def test_reset_forgets():
    balancer = Balancer()
    fresh = snapshot(balancer)
    balanced_grad(balancer, random_grads(0))
    balancer.reset()
    assert snapshot(balancer) == fresh
