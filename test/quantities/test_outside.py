"""What the losses outside the balance bring beside the balanced ones."""

import math

import pytest
import torch
from torch import nn

from balancer import Balancer
from balancer.quantities import OutsideRatio


class Net(nn.Module):
    """Encoder and decoder, a codebook that no balanced loss reaches, a frozen bias."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(6, 3, dtype=dtype)
        self.decoder = nn.Linear(3, 6, dtype=dtype)
        self.codebook = nn.Parameter(torch.randn(3, dtype=dtype))
        self.encoder.bias.requires_grad_(False)

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), (z - self.codebook).square().mean()


def balance(net, x, balancer):
    y, commit = net(x)
    losses = {"l1": (y - x).abs().mean(), "l2": (y - x).square().mean()}
    balanced, _ = balancer(losses, y)
    return commit, sum(balanced.values())


def in_encoder(net, loss):
    (grad,) = torch.autograd.grad(loss, net.encoder.weight, retain_graph=True)
    return grad.norm().item()


def test_ratio_is_of_the_parameters_that_both_train():
    net, x = Net(), torch.randn(5, 6, dtype=torch.float64)
    outside, balanced = balance(net, x, Balancer(total_norm=3.0))
    ratio = OutsideRatio(net)(7 * outside, balanced)["outside_to_balanced"]
    expected = 7 * in_encoder(net, outside) / in_encoder(net, balanced)
    assert ratio == pytest.approx(expected, rel=1e-12)


def test_training_goes_on_as_it_is():
    """The same gradients after a measurement as without one, whole and held calls."""
    found = []
    for look in (False, True):
        net, x = Net(), torch.ones(5, 6, dtype=torch.float64)
        balancer, ratio = Balancer(update_every=2), OutsideRatio(net, every=1)
        for _ in range(2):
            outside, balanced = balance(net, x, balancer)
            if look:
                assert ratio(outside, balanced)["outside_to_balanced"] > 0
            (outside + balanced).backward()
        found.append([p.grad for p in net.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_it_is_measured_in_every_nth_call(monkeypatch):
    net, x = Net(), torch.ones(2, 6, dtype=torch.float64)
    walks = []
    grad = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: walks.append(1) or grad(*a, **k)
    )
    ratio = OutsideRatio(net, every=3)
    values = []
    for factor in range(1, 6):
        y, commit = net(x)
        values += ratio(factor * commit, y.sum()).values()
    assert len(walks) == 4  # two in each of two measurements
    first = values[0]
    assert values == pytest.approx([first, first, first, 4 * first, 4 * first])


def test_nan_where_nothing_meets():
    net, x = Net(), torch.ones(2, 6, dtype=torch.float64)
    y, commit = net(x)
    for outside, balanced in [
        (net.codebook.sum(), y.sum()),  # other parameters
        (torch.zeros(()), y.sum()),  # no gradient at all
        (commit, 0 * y.sum()),  # a gradient of zero
    ]:
        assert math.isnan(OutsideRatio(net)(outside, balanced)["outside_to_balanced"])


def test_hooks_of_parameters_do_not_see_the_measurement():
    net, x = Net(), torch.ones(2, 6, dtype=torch.float64)
    seen = []
    net.encoder.weight.register_hook(seen.append)
    y, commit = net(x)
    OutsideRatio(net)(commit, y.sum())
    assert not seen
    commit.backward()
    assert len(seen) == 1


def test_small_and_large_gradients_in_float16():
    """Neither a gradient that float16 rounds to zero nor one that overflows it."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    found = []
    for enabled in (False, True):
        net = Net(torch.float32)
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            y, commit = net(x)
        balanced = 3e4 * y.float().square().mean()
        ratio = OutsideRatio(net)(1e-7 * commit.float(), balanced)
        found.append(ratio["outside_to_balanced"])
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_every_is_checked():
    with pytest.raises(ValueError, match="every must be at least 1, but is 0"):
        OutsideRatio(Net(), every=0)
