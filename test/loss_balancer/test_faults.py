"""Faults in the losses, and what the user sees of each."""

import math

import pytest
import torch
from linear import linear_losses, random_grads
from ranks import WEIGHTS as RANK_WEIGHTS
from ranks import batch, net, spawn, sums, train
from reference import Reference
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

WEIGHTS = {"a": 1.0, "b": 3.0}


def two_grads(seed):
    return random_grads(seed, "ab", (3, 4), spread=0.0, dtype=torch.float32)


def step(balancer, grads, added=None):
    """One step with losses whose gradients are given; `added` goes to their values."""
    y = torch.zeros_like(next(iter(grads.values()))).requires_grad_()
    losses = linear_losses(y, grads)
    for name, constant in (added or {}).items():
        losses[name] = losses[name] + constant
    new_losses, stats = balancer(losses, y)
    sum(new_losses.values()).backward()
    return y.grad, new_losses, stats


def reference_step(reference, grads):
    arrays = {name: [grad.double().numpy()] for name, grad in grads.items()}
    scales, stats, (gradient,) = reference.train(arrays)
    return torch.from_numpy(gradient), stats


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_value_stays_in_the_value(bad, held):
    """The loss is returned as it is; gradients and averages are those without it."""
    faulty, sound = (Balancer(update_every=2 if held else 1) for _ in range(2))
    for added in (None, {"b": bad}):
        grad, new_losses, stats = step(faulty, two_grads(0), added)
        expected, _, expected_stats = step(sound, two_grads(0))
    assert not torch.isfinite(new_losses["b"]) and torch.isfinite(new_losses["a"])
    assert torch.equal(grad, expected) and stats == expected_stats
    assert faulty.state_dict() == sound.state_dict()


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_non_finite_gradient_of_a_finite_loss(bad):
    """The root of zero: seen in the stats and in .grad, forgotten in the next step."""

    def run(balancer, lowest, names="ab"):
        y = torch.tensor([[lowest, 1.0], [4.0, 9.0]], requires_grad=True)
        root = y.abs().sqrt() if bad == "nan" else y.sqrt()
        losses = {"a": (y * y).sum(), "b": root.sum()}
        new_losses, stats = balancer({name: losses[name] for name in names}, y)
        sum(new_losses.values()).backward()
        return y.grad, new_losses, stats

    balancer, without = Balancer(), Balancer()
    for b in (balancer, without):
        run(b, lowest=4.0)
    grad, new_losses, stats = run(balancer, lowest=0.0)
    run(without, lowest=0.0, names="a")
    assert torch.isfinite(new_losses["b"])
    assert torch.isfinite(grad).tolist() == [[False, True], [True, True]]
    assert not math.isfinite(stats["b_norm"]) and math.isfinite(stats["b_scale"])
    averages = balancer.state_dict()["averages"]
    assert averages == without.state_dict()["averages"]
    assert torch.equal(run(balancer, 4.0)[0], run(without, 4.0)[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_input(bad):
    """Only the gradient of that item is lost, and no average changes."""

    def run(value):
        y = torch.tensor([[value, 1.0], [2.0, 3.0]], requires_grad=True)
        new_losses, _ = balancer({"a": y.square().sum(), "b": (y**4).sum()}, y)
        sum(new_losses.values()).backward()
        return y.grad

    balancer = Balancer()
    before = run(4.0)
    averages = balancer.state_dict()["averages"]
    assert torch.isfinite(run(bad)).tolist() == [[False, True], [True, True]]
    assert balancer.state_dict()["averages"] == averages
    torch.testing.assert_close(run(4.0), before)


@pytest.mark.parametrize("update_every", [1, 3])
@pytest.mark.parametrize("fault", ["zero", "absent"])
def test_loss_that_vanishes_for_long_and_returns(fault, update_every):
    """It comes back with the scale that it had, and the others take its share."""
    options = dict(weights=WEIGHTS, update_every=update_every)
    balancer, reference = Balancer(**options), Reference(**options)
    for call in range(306):
        grads = two_grads(call)
        off = 3 <= call < 303
        if off and fault == "zero":
            grads["b"].zero_()
        elif off:
            del grads["b"]
        grad, _, stats = step(balancer, grads)
        expected, expected_stats = reference_step(reference, grads)
        torch.testing.assert_close(grad.double(), expected, rtol=1e-5, atol=1e-6)
        assert stats == pytest.approx(expected_stats, rel=1e-5)
        if call == 2:
            scale = stats["b_scale"]
        if off and (call >= 6 or fault == "absent"):
            assert stats["a_share"] == 1.0 and stats["b_norm"] == 0.0
            assert stats["b_scale"] == (scale if fault == "zero" else 0.0)
        if call == 303:  # measured in this very call, as any loss that was away is
            assert 0.5 * scale < stats["b_scale"] < 2 * scale


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("input_only", [False, True])
@pytest.mark.parametrize("exponents", [(-30, 0), (-15, 15), (0, 30)])
def test_losses_1e30_apart_in_float32(exponents, input_only, held):
    """Shares and gradients come out as for losses of one size."""
    options = dict(epsilon=0.0, update_every=2)
    balancer = Balancer(input_only=input_only, **options)
    reference = Reference(**options)
    for _ in range(2 if held else 1):
        grads = two_grads(0)
        for name, exponent in zip("ab", exponents):
            grads[name] *= 10.0**exponent
        grad, new_losses, stats = step(balancer, grads)
        expected, expected_stats = reference_step(reference, grads)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-5, atol=1e-6)
    assert stats == pytest.approx(expected_stats, rel=1e-5)
    assert stats["a_share"] == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-12])
@pytest.mark.parametrize("size", [1e-40, 1e-31])
def test_denormal_norm_counts_as_zero(size, epsilon):
    """Its inverse would be infinite in float32. It is measured, and scaled by 0."""
    balancer = Balancer(total_norm=8.0, epsilon=epsilon)
    grads = two_grads(0)
    grads["b"] *= size
    for _ in range(2):
        grad, new_losses, stats = step(balancer, grads)
    assert 0 < stats["b_norm"] < 1e-29
    assert stats["b_scale"] == 0.0 and stats["a_share"] == 1.0
    expected = 4.0 * grads["a"] / grads["a"].norm(dim=1).mean()
    torch.testing.assert_close(grad, expected)
    grad, _, stats = step(balancer, two_grads(0))
    assert stats["b_share"] == pytest.approx(0.5)  # not 1000 times its size


@pytest.mark.parametrize("update_every", [1, 2])
@pytest.mark.parametrize(
    "count, shape",
    [(1, (3, 4)), (64, (3, 4)), (3, (1, 4)), (3, (5,)), (3, (1,))],
    ids=["K=1", "K=64", "batch 1", "1-D", "one number"],
)
def test_sizes_at_the_edge(count, shape, update_every):
    names = [f"l{i}" for i in range(count)]
    weights = {name: 1.0 + i for i, name in enumerate(names)}
    options = dict(weights=weights, ema_decay=0.5, update_every=update_every)
    balancer = Balancer(monitor=True, **options)
    reference = Reference(monitor=True, **options)
    for call in range(4):
        grads = random_grads(call, names, shape, spread=0.0)
        grad, _, stats = step(balancer, grads)
        expected, expected_stats = reference_step(reference, grads)
        torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)
        assert stats == pytest.approx(expected_stats, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("size", [1e-6, 1e-8])
def test_held_float16_loss_whose_scale_is_no_float16(size):
    """Such a scale, above 65504, is brought in after the walk."""
    balancer = Balancer(update_every=2)
    grads = two_grads(0)
    grads["b"] *= size
    for _ in range(2):
        y = torch.zeros(3, 4, dtype=torch.float16).requires_grad_()
        losses = {n: (y.float() * grad).sum().half() for n, grad in grads.items()}
        new_losses, stats = balancer(losses, y)
        sum(new_losses.values()).backward()
        assert stats["b_scale"] > 65504
        expected = sum(grad / 2 / grad.norm(dim=1).mean() for grad in grads.values())
        torch.testing.assert_close(y.grad.float(), expected, rtol=5e-3, atol=5e-3)


def _empty_batch(rank):
    """In step 1 only rank 0 brings c, and it has no items."""
    splits, names = [[6, 6], [0, 12], [6, 6]], ["abc", "abc" if rank == 0 else "ab"]
    batches = [
        (batch(step).split(splits[step])[rank], names[step % 2]) for step in range(3)
    ]
    return train(DDP(net()), Balancer(weights=RANK_WEIGHTS), batches, sums)


def test_loss_that_only_an_empty_batch_has(tmp_path):
    """It has the scale 0 and keeps its average; no rank fails while another waits."""
    first, second = spawn(tmp_path, _empty_batch, 2)
    assert first["stats"] == second["stats"] and first["state"] == second["state"]
    before, empty, after = [stats["c_scale"] for stats in first["stats"]]
    assert before > 0 and empty == 0 and after > 0
    assert first["state"]["averages"]["c"][1] == pytest.approx(1 + 0.999)
