"""The warning of a share that misses its target."""

import math
import warnings

import pytest
import torch
from ranks import spawn

from balancer import Balancer


def told(steps=250, rate=0.97, every=1, fault=None, **options):
    """Train while one loss's norm falls; return what was said.

    Args:
        fault: a third loss, of weight 0, whose gradient is not a number at this step.
    """
    options.setdefault("ema_decay", 0.999)
    weights = {"mel": 1, "adv": 4, "off": 0}
    balancer = Balancer(weights=weights, update_every=every, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for step in range(steps):
            y = torch.ones(2, 3, requires_grad=True)
            losses = {"mel": rate**step * y.sum(), "adv": y.square().sum()}
            if fault is not None:
                losses["off"] = (math.nan if step == fault else 1) * y.sum()
            balancer(losses, y)
    return [warning for warning in found if warning.category is UserWarning]


def test_a_share_far_off_for_long_is_said_once_with_the_remedy():
    (warning,) = told()
    text = str(warning.message)
    assert "'mel'" in text and "asks for 0.2" in text and "average to adaptive" in text
    assert warning.filename == __file__


def test_a_gradient_that_is_no_number_does_not_end_the_watch():
    (warning,) = told(fault=3)
    assert "'mel'" in str(warning.message)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 99},  # not long
        {"steps": 250, "every": 4},  # 63 measurements
        {"rate": 1.0},
        {"rate": 0.99, "average": "adaptive"},
        {"balance_grads": False},
        {"weighting": "mgda"},
    ],
)
def test_nothing_is_said(options):
    assert not told(**options)


def test_with_adaptive_averages_another_remedy_is_named():
    (warning,) = told(rate=0.6, average="adaptive", epsilon=0.0)
    assert "Lower update_every, or set it to auto" in str(warning.message)


@pytest.mark.parametrize("off", ["mel", "adv"])
def test_a_loss_that_is_off_for_long_is_not_said(off):
    """Nor of the other, which has all of the gradient as long as it is alone."""
    balancer = Balancer(weights={"mel": 1, "adv": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(150):
            y = torch.ones(2, 3, requires_grad=True)
            losses = {"mel": y.sum(), "adv": y.square().sum()}
            losses[off] = (0 if step else 1) * losses[off]
            balancer(losses, y)


def heard(rank):
    return len(told(steps=110))


def test_the_first_rank_alone_says_it(tmp_path):
    assert spawn(tmp_path, heard, 2) == [1, 0]
