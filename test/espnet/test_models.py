"""The balanced generator turn against ESPnet's own, on its speakers and singers."""

import random

import numpy as np
import pytest
import tiny_models
import torch

from balancer import Balancer
from balancer.espnet.losses import balanced_names
from balancer.espnet.model import net_of
from balancer.espnet.outside import OutsideWatch
from balancer.espnet.probe import probe_of


@pytest.fixture(params=[*tiny_models.SPEECH, *tiny_models.SINGING])
def built(request, monkeypatch):
    """A stock model in training, our class for it, a batch, the losses; in float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    seed(0)
    model, *rest = tiny_models.build(request.param)
    yield model.train(), *rest
    torch.set_default_dtype(torch.float32)


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def turn(model, batch):
    """A generator turn after a discriminator turn, as in a training."""
    model.zero_grad(set_to_none=True)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    results = []
    for number, generator in enumerate([False, True]):
        seed(number)
        # Copies, since ESPnet's singers shorten the durations in place.
        copies = {key: value.clone() for key, value in batch.items()}
        results.append(model(forward_generator=generator, **copies))
    results[1]["loss"].sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.load_state_dict(state)  # what BatchNorm learns in its forward
    return results[1], grads


def test_unbalanced_turn_is_espnets(built):
    """With weights of 1 and nothing balanced, gradients and reports are the same.

    Some of the models keep the generator's outputs of the discriminator's turn, and
    some, the joint ones, make new ones.
    """
    model, balanced, batch, names = built
    expected, expected_grads = turn(model, batch)
    ours = balanced(model, Balancer(balance_grads=False))
    result, grads = turn(ours, batch)
    torch.testing.assert_close(result["loss"], expected["loss"], rtol=1e-9, atol=0)
    for key, value in expected["stats"].items():
        torch.testing.assert_close(result["stats"][key], value)
    assert set(ours.balancer.state_dict()["averages"]) == set(names)
    parameters = {name for name in expected_grads if ".discriminator." not in name}
    assert set(grads) == parameters, "the discriminator gets no gradient"
    scales = {name: expected_grads[name].abs().max().item() for name in parameters}
    for name, scale in scales.items():
        # A gradient that is zero but for rounding is compared with the others.
        atol = 1e-9 * scale + 1e-14 * max(scales.values())
        torch.testing.assert_close(
            grads[name], expected_grads[name], rtol=1e-9, atol=atol
        )
    assert list(ours.state_dict()) == list(model.state_dict())


def test_shares_and_stats(built):
    model, balanced, batch, names = built
    assert balanced_names(net_of(model)) == names
    weights = {name: 1.0 + i for i, name in enumerate(names)}
    balancer = Balancer(weights=weights)
    balancer.probe = probe_of(net_of(model), {"every": 1})
    ours = balanced(model, balancer)
    ours.outside = OutsideWatch(net_of(model), every=1)
    result, grads = turn(ours, batch)
    for name, weight in weights.items():
        share = result["stats"][f"{name}_share"].item()
        assert share == pytest.approx(weight / sum(weights.values()), rel=1e-5)
        # The harmonics of this one do not pass the decoder, where the probe sits.
        seen = name != "mel_ddsp"
        assert (result["stats"][f"{name}_norm_test"].item() > 0) == seen
    assert all(value.shape == (1,) for value in result["stats"].values())
    ratio = result["stats"]["outside_to_balanced"].item()
    assert ratio == pytest.approx(outside_by_hand(ours, batch, grads), rel=1e-6)


def outside_by_hand(ours, batch, grads):
    """Of the parameters that both kinds of losses reach; `grads` are of their sum."""
    copies = [{key: value.clone() for key, value in batch.items()} for _ in range(2)]
    seed(0)
    ours(forward_generator=False, **copies[0])
    seed(1)
    _, _, losses, rest = ours.watched_turn(**copies[1])
    names, parameters = zip(*[(n, p) for n, p in ours.named_parameters() if n in grads])
    found = [
        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        for loss in (rest.sum(), sum(losses.values()))
    ]
    outside, balanced = [], []
    for name, one, other in zip(names, *found):
        if one is not None and other is not None:
            outside.append(one.norm())
            balanced.append((grads[name] - one).norm())
    return (torch.stack(outside).norm() / torch.stack(balanced).norm()).item()
