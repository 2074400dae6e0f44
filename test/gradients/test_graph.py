"""The refusal of losses that go around the input."""

import pytest
import torch
from torch import nn

from balancer import Balancer
from balancer._gradients.graph import LossGraph


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "encoder": nn.Linear(4, 3),
            "decoder": nn.Linear(3, 4),
            "critic": nn.Linear(4, 1),
        }
    )


X = torch.ones(2, 4)


def test_latent_penalty_is_refused_by_name(net):
    z = net["encoder"](X)
    y = net["decoder"](z)
    losses = {"adv": net["critic"](y).mean(), "rec": y.abs().mean() + z.square().mean()}
    with pytest.raises(ValueError, match="'rec'.*around.*input_only=False"):
        Balancer()(losses, y)
    Balancer(input_only=False)(losses, y)


def test_tied_weights_are_refused_by_name(net):
    y = net["decoder"](net["encoder"](X))
    losses = {"rec": y.abs().mean(), "tied": net["encoder"](y).mean()}
    with pytest.raises(ValueError, match=r"'tied'.*parameter of shape \((3, 4|3,)\)"):
        Balancer()(losses, y)


def test_critics_parameters_are_no_bypass(net):
    y = net["decoder"](net["encoder"](X))
    losses = {"adv": net["critic"](y).mean(), "feat": net["critic"](y).abs().mean()}
    new_losses, _ = Balancer()(losses, y)
    sum(new_losses.values()).backward()
    assert net["critic"].weight.grad is None


def test_another_output_of_the_same_node_is_a_way_around(net):
    y, other = net["decoder"](net["encoder"](X)).chunk(2, dim=1)
    with pytest.raises(ValueError, match="'rec'.*around"):
        Balancer()({"rec": y.mean() + other.mean()}, y)
    new_losses, _ = Balancer()({"rec": y.mean() + other.mean()}, [y, other])
    new_losses["rec"].backward()


@pytest.mark.parametrize("update_every", [1, 4])
def test_way_around_that_comes_later_is_refused(net, update_every):
    """Each call looks, so a loss that was good for two calls may go wrong in the third.

    The penalty's gradient would be lost, silently.
    """
    balancer = Balancer(update_every=update_every)
    for step in range(3):
        z = net["encoder"](X)
        y = net["decoder"](z)
        losses = {"adv": net["critic"](y).mean(), "rec": y.abs().mean()}
        if step == 2:
            losses["rec"] = losses["rec"] + 10 * z.square().mean()
            with pytest.raises(ValueError, match="'rec'.*around"):
                balancer(losses, y)
        else:
            balancer(losses, y)


@pytest.mark.parametrize("update_every", [1, 4])
@pytest.mark.parametrize("input_only", [True, False])
def test_loss_of_another_tensor_that_comes_later_is_refused(
    net, update_every, input_only
):
    """Also beside losses that depend on the input, in a call that does not measure."""
    balancer = Balancer(update_every=update_every, input_only=input_only)
    for step in range(3):
        y = net["decoder"](X[:, :3])
        other = net["decoder"](X[:, 1:]) if step == 2 else y
        losses = {"adv": net["critic"](y).mean(), "rec": other.abs().mean()}
        if step == 2:
            with pytest.raises(ValueError, match="'rec'.*not"):
                balancer(losses, y)
        else:
            balancer(losses, y)


def test_input_changed_in_place_is_named(net):
    y = net["decoder"](X[:, :3])
    losses = {"rec": y.abs().mean()}
    y += 0
    with pytest.raises(ValueError, match="'rec'.*changed in place"):
        Balancer()(losses, y)


def test_refused_on_a_call_that_does_not_measure(net):
    balancer = Balancer(weights={"a": 1.0, "b": 1.0}, update_every=100)
    for name in "ab":
        z = net["encoder"](X)
        y = net["decoder"](z)
        bypass = z.mean() if name == "b" else 0.0
        losses = {name: y.abs().mean() + bypass}
        if name == "a":
            balancer(losses, y)
    with pytest.raises(ValueError, match="'b'.*around"):
        balancer(losses, y)


def test_leaf_input():
    y = torch.ones(2, 3, requires_grad=True)
    new_losses, _ = Balancer()({"a": y.square().mean()}, y)
    new_losses["a"].backward()
    assert y.grad is not None


def test_custom_function_output_as_input(walks):
    """Its node is owned by Python, and its edge must stay the same."""
    weight = torch.ones(2, 3, requires_grad=True)
    for _ in range(2):
        y = walks.through("y", weight * 2)
        new_losses, _ = Balancer(update_every=2)({"a": y.square().mean()}, y)
        new_losses["a"].backward()
    assert walks.take() == {"y": 2}


def test_walks_begin_with_what_shares_nothing_and_keep_what_is_shared(net):
    y = net["decoder"](X[:, :3])
    score = net["critic"](y)
    losses = {
        "feat": score.abs().exp().mean(),
        "rec": y.abs().mean(),
        "adv": score.mean(),
    }
    order = LossGraph(losses, [y]).order()
    assert list(order.items()) == [("rec", False), ("adv", True), ("feat", False)]
