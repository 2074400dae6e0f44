"""The returned losses: one walk, no gradient past the input, no graph left behind."""

import gc
import weakref

import pytest
import torch
from torch import nn

from balancer import Balancer


class Step:
    """A generator, and three losses of which two share a discriminator."""

    def __init__(self, walks, dtype=torch.float64):
        torch.manual_seed(0)
        self.walks = walks
        self.generator = nn.Linear(3, 4).to(dtype)
        self.discriminator = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).to(dtype)
        self.x = torch.randn(6, 3, dtype=dtype)

    def losses(self):
        y = self.walks.through("generator", self.generator(self.x))
        shared = self.walks.through("shared", self.discriminator(y))
        losses = {
            "adv": self.walks.through("adv", shared.mean(1)).mean(),
            "feat": self.walks.through("feat", shared.abs()).mean(),
            "rec": self.walks.through("rec", y.abs()).mean(),
        }
        return losses, y

    def clear(self):
        for module in (self.generator, self.discriminator):
            module.zero_grad(set_to_none=True)


def test_walks(walks):
    """A measuring call walks each loss once, any other all of them jointly, once."""
    step, balancer = Step(walks), Balancer(update_every=3)
    for call in range(6):
        losses, y = step.losses()
        new_losses, _ = balancer(losses, y)
        in_call = walks.take()
        sum(new_losses.values()).backward()
        in_backward = walks.take()
        each = {"adv": 1, "feat": 1, "rec": 1}
        if call % 3 == 0:
            assert in_call == {**each, "shared": 2}
            assert in_backward == {"generator": 1}
        else:
            assert in_call == {}
            assert in_backward == {**each, "shared": 1, "generator": 1}
        assert all(p.grad is None for p in step.discriminator.parameters())
        assert all(p.grad is not None for p in step.generator.parameters())
        step.clear()


def test_held_gradient_is_that_of_the_scaled_losses(walks):
    step, balancer = Step(walks), Balancer(update_every=2)
    losses, y = step.losses()
    balancer(losses, y)
    losses, y = step.losses()
    new_losses, stats = balancer(losses, y)
    sum(new_losses.values()).backward()
    got = [p.grad.clone() for p in step.generator.parameters()]
    losses, y = step.losses()
    total = sum(stats[f"{name}_scale"] * loss for name, loss in losses.items())
    expected = torch.autograd.grad(total, list(step.generator.parameters()))
    torch.testing.assert_close(got, list(expected), rtol=1e-12, atol=0)
    assert torch.equal(sum(new_losses.values()), total)


def test_losses_on_the_whole_graph_train_their_parameters(walks):
    step, balancer = Step(walks), Balancer(input_only=False)
    losses, y = step.losses()
    new_losses, stats = balancer(losses, y)
    sum(new_losses.values()).backward()
    got = [p.grad.clone() for p in step.discriminator.parameters()]
    losses, y = step.losses()
    total = sum(stats[f"{name}_scale"] * loss for name, loss in losses.items())
    expected = torch.autograd.grad(total, list(step.discriminator.parameters()))
    torch.testing.assert_close(got, list(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("held", [False, True])
def test_graph_is_freed(walks, held):
    """After a measurement at once, else after the backward that took the gradients."""
    step, balancer = Step(walks), Balancer(update_every=2)
    for _ in range(2 if held else 1):
        losses, y = step.losses()
        new_losses, _ = balancer(losses, y)
    alive = weakref.ref(losses["adv"].grad_fn.next_functions[0][0])
    if held:
        del losses
        assert alive() is not None
        sum(new_losses.values()).backward()
    else:
        with pytest.raises(RuntimeError, match="second time"):
            losses["rec"].backward()
        del losses
    gc.collect()
    assert alive() is None
    assert y.requires_grad and new_losses["rec"].requires_grad


def test_graphs_are_freed_by_their_last_walk(walks):
    """Not only that of the loss walked last: a caller may hold the losses for long."""
    step = Step(walks)
    losses, y = step.losses()
    Balancer()(losses, y)
    for loss in losses.values():
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, y)


@pytest.mark.parametrize("held", [False, True])
def test_backward_twice_needs_retain_graph(walks, held):
    step, balancer = Step(walks), Balancer(update_every=2)
    for _ in range(2 if held else 1):
        losses, y = step.losses()
        new_losses, _ = balancer(losses, y)
    total = sum(new_losses.values())
    parameters = list(step.generator.parameters())
    first = torch.autograd.grad(total, parameters, retain_graph=True)
    second = torch.autograd.grad(total, parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    with pytest.raises(RuntimeError, match="freed|second time"):
        torch.autograd.grad(new_losses["adv"], y)


def test_one_loss_alone(walks):
    """Of a held call too: only what the caller uses is walked."""
    step, balancer = Step(walks), Balancer(update_every=2)
    for _ in range(2):
        losses, y = step.losses()
        new_losses, _ = balancer(losses, y)
    walks.take()
    new_losses["rec"].backward()
    assert walks.take() == {"rec": 1, "generator": 1}


@pytest.mark.parametrize("held", [False, True])
def test_hooks_and_grad_are_for_the_trainers_backward(walks, held):
    """The call writes no .grad and runs no hook; the backward does both, once."""
    step, balancer = Step(walks), Balancer(update_every=2)
    for _ in range(2 if held else 1):
        losses, y = step.losses()
        seen = []
        y.retain_grad()
        y.register_hook(lambda grad: seen.append(grad))
        new_losses, _ = balancer(losses, y)
        assert y.grad is None and not seen
    assert all(p.grad is None for p in step.generator.parameters())
    plain = torch.autograd.grad(
        sum(new_losses.values()), step.generator.weight, retain_graph=True
    )[0]
    y.grad = None
    seen.clear()
    sum(new_losses.values()).backward()
    assert len(seen) == 1 and torch.equal(seen[0], y.grad)
    assert torch.equal(step.generator.weight.grad, plain)
