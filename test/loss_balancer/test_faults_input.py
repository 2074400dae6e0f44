"""Inputs of every kind, and inputs that are not the balancer's alone."""

import pytest
import torch
from torch import nn

from balancer import Balancer

DOUBLE = torch.float64


def norm_of(grad):
    """n of a gradient: its definition, in float64."""
    rows = torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad
    return rows.double().flatten(1).norm(dim=1).mean().item()


def balanced(losses_of, y):
    """The balanced gradient, from one walk of each loss by itself, and the norms."""
    total, norms = torch.zeros_like(y), {}
    losses = losses_of(y)
    for name, loss in losses.items():
        (grad,) = torch.autograd.grad(loss, y, retain_graph=True)
        norms[name] = norm_of(grad)
        total += grad / len(losses) / norms[name]
    return total, norms


def spectrogram_losses(spec):
    target = torch.ones_like(spec)
    return {
        "magnitude": (spec.abs() - 2.0).abs().mean(),
        "complex": torch.view_as_real(spec - target).square().mean(),
        # Its gradient is a view that torch has only marked as conjugated.
        "phase": (spec.conj() * (3.0 - 2.0j)).real.mean(),
    }


@pytest.mark.parametrize("monitor", [False, True])
@pytest.mark.parametrize("update_every", [1, 2])
def test_complex_spectrogram(update_every, monitor):
    """Real and imaginary parts are two numbers, as complex128 says too."""
    wave = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))

    def spec_of(wave):
        window = torch.hann_window(16, dtype=wave.dtype)
        return torch.stft(wave, 16, window=window, return_complex=True)

    balancer = Balancer(update_every=update_every, monitor=monitor)
    for _ in range(2):
        wave = wave.detach().requires_grad_()
        spec = spec_of(wave)
        assert spec.dtype == torch.complex64
        new_losses, stats = balancer(spectrogram_losses(spec), spec)
        sum(new_losses.values()).backward()
        exact_wave = wave.detach().double().requires_grad_()
        exact_spec = spec_of(exact_wave)
        total, norms = balanced(spectrogram_losses, exact_spec)
        exact_spec.backward(total)
        error = (wave.grad - exact_wave.grad).norm() / exact_wave.grad.norm()
        assert error < 1e-5
        for name, norm in norms.items():
            assert stats[f"{name}_norm"] == pytest.approx(norm, rel=1e-5)
            assert stats[f"{name}_share"] == pytest.approx(1 / 3, rel=1e-5)


def test_complex_loss_is_refused_by_name():
    y = torch.ones(2, 3, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(ValueError, match="'b'.*real.*complex64.*abs"):
        Balancer()({"a": y.abs().sum(), "b": y.sum()}, y)


LAYOUTS = {
    "channels_last": lambda x: (x * 1).to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "strided": lambda x: torch.cat([x, x], dim=3)[..., ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.parametrize("update_every", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_does_not_matter(layout, update_every):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 6, dtype=DOUBLE)
    conv = nn.Conv2d(3, 2, 3).double()

    def losses_of(y):
        return {"adv": conv(y).tanh().mean(), "sum": y.sum(), "sq": y.square().mean()}

    balancer = Balancer(update_every=update_every, epsilon=0.0)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        y = LAYOUTS[layout](leaf)
        y.retain_grad()
        assert not y.is_contiguous()
        new_losses, _ = balancer(losses_of(y), y)
        sum(new_losses.values()).backward()
        expected, _ = balanced(losses_of, y.detach().contiguous().requires_grad_())
        torch.testing.assert_close(y.grad, expected, rtol=1e-12, atol=1e-15)
        assert leaf.grad is not None


def two_losses(y, factor=1.0):
    return {"l1": factor * y.abs().mean(), "l2": 100 * factor * y.square().mean()}


def test_view_of_a_leaf():
    """The gradient lands in the part that was viewed, and the other part gets zeros."""
    leaf = torch.linspace(-1, 1, 12, dtype=DOUBLE).view(3, 4).requires_grad_()
    y = leaf[:, 1:]
    new_losses, _ = Balancer(epsilon=0.0)(two_losses(y), y)
    sum(new_losses.values()).backward()
    expected, _ = balanced(two_losses, y.detach().requires_grad_())
    torch.testing.assert_close(leaf.grad[:, 1:], expected, rtol=1e-12, atol=0)
    assert not leaf.grad[:, 0].any()


@pytest.mark.parametrize("update_every", [1, 2])
def test_hooks_of_modules_and_leaves_run_once_with_the_balanced_gradient(update_every):
    """Those of tensors: test_surrogate.py."""
    net, seen = nn.Linear(3, 4), []
    x = torch.ones(2, 3, requires_grad=True)
    balancer = Balancer(update_every=update_every)
    net.register_full_backward_pre_hook(lambda _, grads: seen.append(grads[0]))
    net.register_full_backward_hook(lambda _, to_x, to_y: seen.append(to_x[0]))
    net.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for _ in range(2):
        y = net(x)
        new_losses, _ = balancer(two_losses(y), y)
        assert not seen
        net.zero_grad()
        x.grad = None
        sum(new_losses.values()).backward()
        (of_y,) = [grad for grad in seen if grad.shape == y.shape]
        assert len(seen) == 3
        assert any(torch.equal(grad, x.grad) for grad in seen)
        assert any(torch.equal(grad, net.weight.grad) for grad in seen)
        torch.testing.assert_close(of_y.sum(0), net.bias.grad)
        seen.clear()


@pytest.mark.parametrize("update_every", [1, 2])
def test_loss_outside_the_balancer_adds_its_gradient_exactly(update_every):
    """One that the trainer adds for the same output, to the last bit."""
    balancer, twin = (Balancer(update_every=update_every) for _ in range(2))

    def grad_of(*totals):
        y = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_() * 2
        (grad,) = torch.autograd.grad(sum(total(y) for total in totals), y)
        return grad

    for _ in range(2):
        alone = grad_of(lambda y: sum(balancer(two_losses(y), y)[0].values()))
        outside = grad_of(lambda y: y.pow(4).sum())
        both = grad_of(
            lambda y: sum(twin(two_losses(y), y)[0].values()),
            lambda y: y.pow(4).sum(),
        )
        assert torch.equal(both, alone + outside)


@pytest.mark.parametrize("update_every", [1, 2])
def test_two_balancers_on_one_input(update_every):
    """Their gradients add up, and neither sees the other's losses."""
    x = torch.linspace(-1, 1, 12, dtype=DOUBLE).view(3, 4)
    groups = [two_losses, lambda y: {"exp": y.exp().mean(), "sin": y.sin().sum()}]
    options = dict(update_every=update_every, epsilon=0.0)
    balancers = [Balancer(**options) for _ in groups]
    for _ in range(2):
        y = x.clone().requires_grad_() * 2
        y.retain_grad()
        found = [b(losses_of(y), y)[0] for b, losses_of in zip(balancers, groups)]
        sum(sum(losses.values()) for losses in found).backward()
        alone = y.detach().requires_grad_()
        expected = sum(balanced(losses_of, alone)[0] for losses_of in groups)
        torch.testing.assert_close(y.grad, expected, rtol=1e-12, atol=0)
    assert list(balancers[1].state_dict()["averages"]) == ["exp", "sin"]


def test_two_calls_in_a_step():
    """Gradient accumulation: each call is measured, and .grad is the sum of both."""
    net, balancer = nn.Linear(3, 4).double(), Balancer(ema_decay=0.5, epsilon=0.0)
    batches = torch.randn(2, 5, 3, dtype=DOUBLE).unbind()
    expected, averages = torch.zeros_like(net.weight), []
    for x, factor in zip(batches, (1.0, 10.0)):
        y = net(x)
        new_losses, stats = balancer(two_losses(y, factor), y)
        (sum(new_losses.values()) / len(batches)).backward()
        y = net(x)
        total = sum(
            stats[f"{n}_scale"] * loss for n, loss in two_losses(y, factor).items()
        )
        expected += torch.autograd.grad(total, net.weight)[0] / len(batches)
        averages.append(stats["l2_norm"])
    torch.testing.assert_close(net.weight.grad, expected, rtol=1e-12, atol=0)
    total, fix = balancer.state_dict()["averages"]["l2"]
    assert (total, fix) == pytest.approx((0.5 * averages[0] + averages[1], 1.5))
    assert balancer.state_dict()["calls"] == 2
