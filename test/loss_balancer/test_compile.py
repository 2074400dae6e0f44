"""torch.compile and activation checkpointing around and inside the losses' graphs."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from balancer import Balancer

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    critic = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3), nn.Tanh())
    return net, critic


def step(net, critic, balancer):
    y = net(X)
    scores = critic(y)
    losses = {
        "adv": (1 - scores).square().mean(),
        "feat": 1e3 * scores.abs().mean(),
        "rec": y.abs().mean(),
    }
    new_losses, stats = balancer(losses, y)
    return sum(new_losses.values()), stats


def train(net, critic, parameters, run=step):
    """Gradients of a measuring call and of one that holds, and the stats of both."""
    balancer, found = Balancer(update_every=2), []
    for _ in range(2):
        total, stats = run(net, critic, balancer)
        grads = torch.autograd.grad(total, parameters)
        found.append((grads, stats))
    return found


def assert_same(found, expected):
    for (grads, stats), (expected_grads, expected_stats) in zip(found, expected):
        torch.testing.assert_close(grads, expected_grads)
        assert stats == pytest.approx(expected_stats, rel=1e-5)


@pytest.fixture
def compiled():
    """Compile anew in each test, without a C++ compiler."""
    import torch._dynamo

    torch._dynamo.reset()
    with torch._functorch.config.patch(donated_buffer=False):
        yield lambda function: torch.compile(function, backend="aot_eager")


def test_compiled_discriminator_with_two_losses(compiled):
    net, critic = build()
    expected = train(net, critic, list(net.parameters()))
    assert_same(train(net, compiled(critic), list(net.parameters())), expected)


def test_compiled_generator(compiled):
    net, critic = build()
    expected = train(net, critic, list(net.parameters()))
    assert_same(train(compiled(net), critic, list(net.parameters())), expected)


def test_compiled_step_around_the_call(compiled):
    """It works where the graph is broken at y; else y and the losses are one node."""
    net, critic = build()
    expected = train(net, critic, list(net.parameters()))

    def broken_at_y(net, critic, balancer):
        y = net(X)
        torch._dynamo.graph_break()
        return step(lambda _: y, critic, balancer)

    parameters = list(net.parameters())
    found = train(net, critic, parameters, run=compiled(broken_at_y))
    assert_same(found, expected)
    with pytest.raises(ValueError, match="'adv'.*compiled together.*graph_break"):
        train(net, critic, parameters, run=compiled(step))


class Donating(torch.autograd.Function):
    """Refuses as some releases of torch do for a compiled module."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if torch._C._autograd._get_current_graph_task_keep_graph():
            raise RuntimeError(
                "This backward function was compiled with non-empty donated buffers "
                "which requires create_graph=False and retain_graph=False."
            )
        return grad


def test_donated_buffers_are_refused_with_the_setting():
    net, critic = build()
    message = "'adv' cannot be measured.*torch._functorch.config.donated_buffer = False"
    with pytest.raises(RuntimeError, match=message):
        step(net, lambda y: critic(Donating.apply(y)), Balancer())


def checkpointed(module, use_reentrant):
    return lambda x: checkpoint(module, x, use_reentrant=use_reentrant)


def test_checkpointed_discriminator():
    net, critic = build()
    expected = train(net, critic, list(net.parameters()))
    found = train(net, checkpointed(critic, False), list(net.parameters()))
    assert_same(found, expected)
    with pytest.raises(RuntimeError, match="'adv' cannot be.*use_reentrant=False"):
        train(net, checkpointed(critic, True), list(net.parameters()))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_generator(use_reentrant):
    net, critic = build()
    expected = train(net, critic, list(net.parameters()))
    hidden = net[1:]
    part = checkpointed(hidden, use_reentrant)
    balancer = Balancer(update_every=2)
    for expected_grads, _ in expected:
        net.zero_grad()
        total, _ = step(lambda x: part(net[0](x)), critic, balancer)
        total.backward()
        torch.testing.assert_close(
            [p.grad for p in net.parameters()], list(expected_grads)
        )
