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
