"""The adaptive averages: what they follow, what they ignore, how they are saved."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balancer import Balancer
from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages


def fed(averages, norms):
    """The averages after each norm."""
    found = []
    for norm in norms:
        averages = averages.updated({"a": norm})
        found.append(averages["a"])
    return found


def noise(steps, sigma=0.3):
    rng = random.Random(0)
    return [math.exp(sigma * rng.gauss(0, 1)) for _ in range(steps)]


def log_steps(averages):
    changes = [abs(math.log(b / a)) for a, b in zip(averages, averages[1:])]
    return sum(changes) / len(changes)


def test_first_norms_by_hand():
    """Two rises and a fall: the rate is 8/(m+7), and m is held back by the drift."""
    first, second, third = fed(AdaptiveAverages(1.0), [1.0, 2.0, 3.0])
    assert first == 1.0
    # m = 2, |E| = M, so m = max(2, 1.76): the rate is 8/9.
    assert second == pytest.approx(1 + 8 / 9)
    # m = 3, and 2.64 for the drift: 8/9.64.
    assert third == pytest.approx(second + 8 / 9.64 * (3 - second))
    # The fall takes E below 0.75 M, so m = 3.64 grows.
    before = 0.88 * 0.12 * 0.5 + 0.12 * (1 - second / 3)
    fall = 1 - 1 / third
    assert abs(0.88 * before - 0.12 * fall) < 0.75 * (0.88 * before + 0.12 * fall)
    fourth = fed(AdaptiveAverages(1.0), [1.0, 2.0, 3.0, 1.0])[3]
    assert fourth == pytest.approx(third + 8 / 10.64 * (1 - third))


def test_a_norm_that_stood_weighs_as_the_root_of_its_calls():
    """For 4 calls: the rate is 16/(m+15), the drift's 1 − 0.88², and β is β⁴."""
    averages = AdaptiveAverages(1.0, stride=4)
    assert fed(averages, [1.0, 2.0])[1] == pytest.approx(1 + 16 / 17)
    (stats,) = averages.updated({"a": 1.0}).updated({"a": 2.0}).state_dict().values()
    assert stats[2:] == pytest.approx([2.0, (1 - 0.88**2) / 2, (1 - 0.88**2) / 2])
    # A drift takes from the age what it takes from that of single norms.
    (stats,) = (
        AdaptiveAverages(1.0, 4)
        .loaded({"a": stats})
        .updated({"a": 3.0})
        .state_dict()
        .values()
    )
    assert stats[2] == pytest.approx(0.88 * 3)
    assert fed(averages, [1.0, 2.0]) == [
        averages.updated({"a": 1.0}, {"a": 4})["a"],
        averages.updated({"a": 1.0}, {"a": 9}).updated({"a": 2.0}, {"a": 4})["a"],
    ]
    last = fed(AdaptiveAverages(0.9, stride=4), [1.0] * 300 + [2.0])[-1]
    assert last == pytest.approx(1 + (1 - 0.9**4))


@given(
    norms=st.lists(st.floats(1e-10, 1e10), min_size=1, max_size=30),
    factor=st.floats(1e-15, 1e15),
)
def test_scales_with_the_norms_and_stays_between_them(norms, factor):
    averages = fed(AdaptiveAverages(0.999), norms)
    scaled = fed(AdaptiveAverages(0.999), [factor * norm for norm in norms])
    assert scaled == pytest.approx([factor * a for a in averages], rel=1e-9)
    assert min(norms) * 0.999 <= averages[-1] <= max(norms) * 1.001


def test_decay_bounds_the_memory():
    assert fed(AdaptiveAverages(0.0), [3.0, 7.0, 5.0]) == [3.0, 7.0, 5.0]
    last = fed(AdaptiveAverages(0.9, stride=2), [1.0] * 300 + [2.0])[-1]
    assert last == pytest.approx(1 + (1 - 0.9**2))


def test_quiet_where_norms_stand_still_and_quick_where_they_jump():
    still = noise(3000)
    quiet = log_steps(fed(AdaptiveAverages(0.999), still)[1000:])
    assert quiet < 0.35 * log_steps(fed(NormAverages(0.9), still)[1000:])
    jump = [20 * norm for norm in noise(30)]
    assert fed(AdaptiveAverages(0.999), still + jump)[-1] > 10
    assert fed(NormAverages(0.999), still + jump)[-1] < 2


def test_rounding_is_no_drift():
    """L1's norm stands still but for its last bits, and its horizon grows."""
    rng = random.Random(0)
    averages = AdaptiveAverages(1.0)
    for _ in range(50):
        averages = averages.updated({"a": 3.0 + 1e-7 * rng.random()})
    (stats,) = averages.state_dict().values()
    assert stats[2:] == [50.0, 0.0, 0.0]


def test_norms_at_the_ends_of_float64():
    averages = fed(AdaptiveAverages(0.999), [1e308, 1e-30, 1e308, 1.7e308])
    assert all(0 < average < math.inf for average in averages)


def test_goes_on_from_what_was_saved():
    norms = noise(60)
    whole = AdaptiveAverages(0.999)
    for norm in norms[:30]:
        whole = whole.updated({"a": norm})
    resumed = AdaptiveAverages(0.999).loaded(whole.state_dict())
    assert fed(resumed, norms[30:]) == fed(whole, norms[30:])


def test_goes_on_from_averages_of_the_other_kind():
    plain = NormAverages(0.99)
    for _ in range(300):
        plain = plain.updated({"a": 4.0})
    adaptive = AdaptiveAverages(0.99).loaded(plain.state_dict())
    assert adaptive["a"] == pytest.approx(4.0)
    # The 95 norms that it weighs, not one, stand against the next.
    assert adaptive.updated({"a": 8.0})["a"] < 4.5
    again = NormAverages(0.99).loaded(adaptive.state_dict())
    assert again["a"] == pytest.approx(4.0)
    assert again.updated({"a": 8.0})["a"] < 4.5


@pytest.mark.parametrize(
    "numbers", [[0.5, 0.0, 0.0], [3.0, 0.5, 0.1], [3.0, 0.1], [math.nan, 0.0, 0.0]]
)
def test_damaged_state_is_refused(numbers):
    balancer = Balancer(average="adaptive")
    state = balancer.state_dict()
    state["averages"] = {"mel": [1.0, 1.0, *numbers]}
    with pytest.raises(ValueError, match="'mel'.*damaged"):
        balancer.load_state_dict(state)


def test_shares_stay_on_target_while_norms_drift():
    shares = {}
    for average in ("ema", "adaptive"):
        balancer = Balancer(
            weights={"mel": 1, "adv": 3}, ema_decay=0.99, average=average
        )
        for step in range(90):
            y = torch.ones(2, 3, requires_grad=True)
            losses = {"mel": 0.95**step * y.sum(), "adv": y.square().sum()}
            _, stats = balancer(losses, y)
        shares[average] = stats["mel_share"]
    assert shares["adaptive"] == pytest.approx(0.25, abs=0.03)
    assert shares["ema"] < 0.05


def test_a_balancer_saves_and_loads_them():
    balancer, resumed = (Balancer(average="adaptive") for _ in range(2))

    def call(balancer, factor):
        y = torch.ones(2, 3, requires_grad=True)
        losses = {"a": factor * y.sum(), "b": y.square().sum()}
        return balancer(losses, y)[1]

    for factor in noise(20):
        call(balancer, factor)
    resumed.load_state_dict(balancer.state_dict())
    assert call(resumed, 2.0) == call(balancer, 2.0)
    assert resumed.state_dict() == balancer.state_dict()
