"""Spikes and the times of measurements, in the calls that a user makes."""

import math
import random

import pytest
import torch

from balancer import Balancer


def call(balancer, factor=1.0):
    """A call whose loss has so large a gradient; and whether it measured."""
    y = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    calls = balancer.state_dict()["calls"]
    losses, stats = balancer({"a": factor * y.sum(), "b": y.square().sum()}, y)
    (grad,) = torch.autograd.grad(losses["a"], y)
    return grad, stats, calls in balancer.state_dict()["measured_at"].values()


def trained(calls, **options):
    balancer = Balancer(weights={"a": 1, "b": 3}, total_norm=8.0, **options)
    rng = random.Random(0)
    measured = [call(balancer, math.exp(rng.gauss(0, 0.2)))[2] for _ in range(calls)]
    return balancer, measured


@pytest.mark.parametrize("average", ["ema", "adaptive"])
@pytest.mark.parametrize("update_every", [1, 8, "auto"])
def test_a_spike(average, update_every):
    """Due is 2 of 8. The spike has 6, and the next call about what was before."""
    balancer, _ = trained(
        60, average=average, update_every=update_every, outliers="skip"
    )
    _, before, measured = call(balancer)
    for _ in range(17):
        grad, stats, measured = call(balancer, 1e6)
        if measured:
            break
        assert stats["a_outlier"] == 0
    assert grad.norm(dim=1).mean() == pytest.approx(6, rel=1e-5)
    assert (stats["a_outlier"], stats["b_outlier"]) == (1, 0)
    grad, stats, measured = call(balancer)
    assert measured and stats["a_outlier"] == 0
    assert stats["a_scale"] == pytest.approx(before["a_scale"], rel=0.2)


def test_without_the_option_there_is_no_such_stat():
    _, stats, _ = call(Balancer())
    assert "a_outlier" not in stats


def test_auto_measures_young_averages_and_then_rarely():
    _, measured = trained(400, average="adaptive", update_every="auto 12")
    assert all(measured[:8]) and sum(measured[200:]) < 200 / 5


def test_a_resumed_training_measures_on_the_same_calls():
    options = {"average": "adaptive", "update_every": "auto", "outliers": "skip"}
    whole, _ = trained(90, **options)
    resumed = Balancer(weights={"a": 1, "b": 3}, total_norm=8.0, **options)
    resumed.load_state_dict(whole.state_dict())
    for factor in [1.0] * 9 + [1e3] * 9 + [1.0] * 40:
        assert call(resumed, factor)[1:] == call(whole, factor)[1:]
    assert resumed.state_dict() == whole.state_dict()
