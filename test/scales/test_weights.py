"""Weights that change with the steps."""

import pytest
import torch

from balancer import Balancer

RAMP = {"start": 1.0, "end": 3.0, "from_step": 2, "to_step": 6}
EXPECTED = [1.0, 1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.0]


def step(balancer, seed):
    y = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).double()
    y.requires_grad_()
    losses = {"rec": y.abs().sum(), "adv": 1e3 * y.square().sum()}
    return balancer(losses, y)[1]


def scale_ratio(stats, balancer):
    averages = balancer.state_dict()["averages"]
    rec, adv = (averages[name][0] / averages[name][1] for name in ("rec", "adv"))
    return stats["adv_scale"] * adv / (stats["rec_scale"] * rec)


@pytest.mark.parametrize("update_every", [1, 3])
def test_ramp_is_followed_and_resumed(update_every):
    """On calls that measure nothing too; the step is saved with the averages."""
    options = dict(weights={"rec": 1, "adv": RAMP}, update_every=update_every)
    balancer = Balancer(epsilon=0.0, **options)
    for seed, weight in enumerate(EXPECTED):
        stats = step(balancer, seed)
        assert scale_ratio(stats, balancer) == pytest.approx(weight, rel=1e-9)
        if seed == 3:
            state = balancer.state_dict()
            balancer = Balancer(epsilon=0.0, **options)
            balancer.load_state_dict(state)


def test_from_a_recipe():
    weights = {"rec": 0.1, "adv": {**RAMP, "to_step": "1e3"}}
    balancer = Balancer.from_config({"weights": weights})
    assert balancer.weights["adv"].at(1000) == 3.0


def test_weights_are_set_between_calls_and_not_in_part():
    balancer = Balancer(weights={"rec": 1.0, "adv": 1.0}, epsilon=0.0)
    step(balancer, 0)
    balancer.weights = {"rec": 1.0, "adv": 4.0}
    assert scale_ratio(step(balancer, 1), balancer) == pytest.approx(4.0)
    with pytest.raises(TypeError):
        balancer.weights["adv"] = 5.0  # would pass by the checks
    with pytest.raises(ValueError, match="'adv'.*-1"):
        balancer.weights = {"rec": 1.0, "adv": -1}
    assert dict(balancer.weights) == {"rec": 1.0, "adv": 4.0}


BAD_RAMPS = [
    ({"start": 0, "end": 3}, ValueError, "'adv'.*'start', 'end'.*from_step"),
    ({**RAMP, "to_step": 2}, ValueError, "'adv'.*from_step 2.0 to_step 2.0"),
    ({**RAMP, "end": -3.0}, ValueError, "'adv'.*end of a ramp.*-3.0"),
    ({**RAMP, "start": "low"}, TypeError, "'adv'.*start of a ramp.*'low'"),
    (True, TypeError, "'adv'.*True"),
    ({**RAMP, "start": 0.0, "end": 0.0}, ValueError, "sum to 0"),
]


@pytest.mark.parametrize("ramp, error, message", BAD_RAMPS)
def test_bad_ramp_is_refused(ramp, error, message):
    with pytest.raises(error, match=message):
        Balancer(weights={"adv": ramp})
