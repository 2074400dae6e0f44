"""float16 and bfloat16: measured right, never exploding, as GradScaler expects."""

import math

import pytest
import torch
from torch import nn

from balancer import Balancer

SHAPE = (4, 1, 8000)


def losses_of(y, factor=1.0):
    """An L1 loss whose float16 gradient is near zero, and others far apart from it."""
    y = y.float() if factor == 1.0 else y
    return {
        "l1": 1e-3 * factor * (y - 0.5).abs().mean(),
        "l2": factor * y.square().mean(),
        "sum": (y * y).sum(),
    }


def reference(values):
    y = values.double().requires_grad_()
    norms = {}
    for name, loss in losses_of(y).items():
        (grad,) = torch.autograd.grad(loss, y, retain_graph=True)
        norms[name] = grad.flatten(1).norm(dim=1).mean().item()
    return norms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("whole", [False, True])
def test_underflowing_gradients_are_measured_right(dtype, whole):
    """Also where the loss itself is half precision (whole)."""
    torch.manual_seed(0)
    values = torch.randn(SHAPE).to(dtype)
    expected = reference(values)
    balancer = Balancer(weights={"l1": 1.0, "l2": 1.0, "sum": 0.0}, ema_decay=0.0)
    for _ in range(3):
        y = values.clone().requires_grad_()
        if whole:
            losses = {
                "l1": 1e-3 * (y - 0.5).abs().mean(),
                "l2": y.square().mean(),
                "sum": (y.float() * y.float()).sum(),
            }
        else:
            losses = losses_of(y)
        new_losses, stats = balancer(losses, y)
        sum(loss.float() for loss in new_losses.values()).backward()
    for name, norm in expected.items():
        assert stats[f"{name}_norm"] == pytest.approx(norm, rel=0.01)
    assert y.grad.dtype == dtype
    assert y.grad.float().flatten(1).norm(dim=1).mean().item() < 1.05
    assert stats["l1_share"] == pytest.approx(0.5, abs=0.01)


class Model:
    """A generator and a critic under float16 autocast with a GradScaler."""

    def __init__(self, balanced=True):
        torch.manual_seed(0)
        self.net, self.critic = nn.Linear(16, 16), nn.Linear(16, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        self.balancer = Balancer() if balanced else None

    def step(self, bad=1.0):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.net(x)
            losses = {
                "rec": y.float().abs().mean(),
                "adv": self.critic(y).float().mean(),
            }
            losses["adv"] = 1e-4 * bad * losses["adv"]
            stats = {}
            if self.balancer:
                losses, stats = self.balancer(losses, y)
            total = sum(losses.values())
        self.optimizer.zero_grad()
        self.scaler.scale(total).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return stats


def test_autocast_with_grad_scaler():
    model = Model()
    before = model.net.weight.clone()
    stats = model.step()
    assert not torch.equal(model.net.weight, before)
    assert stats["adv_share"] == pytest.approx(0.5, abs=1e-3)
    assert all(math.isfinite(value) for value in stats.values())
    exact = 1e-4 / 4 / 8  # of the mean over 8 items and 4 scores
    norm = exact * model.critic.weight.double().sum(0).norm().item()
    assert stats["adv_norm"] == pytest.approx(norm, rel=0.01)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_overflow_is_skipped_as_without_a_balancer(bad):
    """GradScaler skips and backs off alike, and the averages stay clean."""
    model, plain = Model(), Model(balanced=False)
    model.step()
    plain.step()
    averages = model.balancer.state_dict()["averages"]
    weights = [m.net.weight.clone() for m in (model, plain)]
    model.step(bad)
    plain.step(bad)
    assert all(
        torch.equal(m.net.weight, w) for m, w in zip((model, plain), weights)
    ), "the step is skipped"
    assert model.scaler.get_scale() == plain.scaler.get_scale() == 2.0**7
    assert model.balancer.state_dict()["averages"]["adv"] == averages["adv"]
    stats = model.step()
    assert stats["adv_scale"] > 0 and math.isfinite(stats["adv_scale"])
    assert not torch.equal(model.net.weight, weights[0])


def test_held_call_in_float16():
    torch.manual_seed(0)
    values = torch.randn(SHAPE).half()
    balancer = Balancer(update_every=2)
    grads = []
    for _ in range(2):
        y = values.clone().requires_grad_()
        new_losses, _ = balancer(losses_of(y), y)
        sum(new_losses.values()).backward()
        grads.append(y.grad.float())
    error = (grads[1] - grads[0]).norm() / grads[0].norm()
    assert error < 0.01


@pytest.mark.parametrize("outer", [1.0, 2.0**16, 2.0**-16])
@pytest.mark.parametrize("total_norm", [1.0, 1000.0])
@pytest.mark.parametrize("size", [1e-7, 1e-2, 1e3])
def test_float16_losses_of_any_size_are_scaled_in_float32(size, total_norm, outer):
    """Scales of 1e-4 and 1e10, a GradScaler's factor: on a call that holds, too."""
    torch.manual_seed(0)
    weights = torch.randn(4, 500)
    balancer = Balancer(total_norm, update_every=2, epsilon=0.0)
    for _ in range(2):
        y = torch.zeros(4, 500, requires_grad=True)
        losses = {
            "a": (y * (size * weights)).sum().half() + 1.0,
            "b": (y * weights.flip(0)).sum().half() + 1.0,
        }
        new_losses, stats = balancer(losses, y)
        assert all(loss.dtype == torch.float32 for loss in new_losses.values())
        assert new_losses["a"].item() == pytest.approx(stats["a_scale"], rel=1e-3)
        (outer * sum(new_losses.values())).backward()
        expected = outer * total_norm / 2 * (weights + weights.flip(0))
        expected /= weights.norm(dim=1).mean()
        error = (y.grad - expected).norm() / expected.norm()
        assert error < 0.01


class Halved(nn.Module):
    """A critic of half precision between float32 tensors, without autocast."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(500, 3).half().requires_grad_(False)

    def forward(self, y):
        return self.layer(y.half()).float()


@pytest.mark.parametrize("whole", [False, True])
def test_half_precision_within_the_graph_is_protected(whole):
    """Neither the input's nor the loss's dtype says it, and a mean's gradient is small.

    On the whole graph only the measurement can be protected.
    """
    critic, exact = Halved(), Halved().double()
    exact.layer.double()
    exact.forward = lambda y: exact.layer(y)
    x = torch.linspace(-1, 1, 2000).view(4, 500)
    balancer = Balancer(update_every=2, epsilon=0.0, input_only=not whole)
    for _ in range(2):
        y = x.clone().requires_grad_()
        losses = {"adv": 1e-5 * critic(y).mean(), "rec": y.abs().mean()}
        new_losses, stats = balancer(losses, y)
        sum(new_losses.values()).backward()
        exact_y = x.double().requires_grad_()
        (grad,) = torch.autograd.grad(1e-5 * exact(exact_y).mean(), exact_y)
        norm = grad.norm(dim=1).mean()
        assert stats["adv_norm"] == pytest.approx(norm.item(), rel=0.01)
        expected = grad / norm / 2 + x.sign() / 500**0.5 / 2
        if not whole:
            error = (y.grad - expected).norm() / expected.norm()
            assert error < 0.01


def test_scale_that_is_no_float16_is_refused_on_the_whole_graph():
    """It would be the gradient of a float16 loss: infinite, or a quarter off."""
    for size, due in ((1e-6, r"5e\+05"), (1e7, "5e-08")):
        balancer = Balancer(input_only=False, epsilon=0.0)
        y = torch.zeros(1, 1, requires_grad=True)
        losses = {"a": (size * y).sum().half(), "b": y.sum()}
        with pytest.raises(ValueError, match=f"'a' is float16.*{due}"):
            balancer(losses, y)
        assert balancer.state_dict()["calls"] == 0
