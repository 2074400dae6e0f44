"""Outliers: what is left out, what is followed, what a call's scales go by."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages

KINDS = {
    "ema 0.999": lambda **more: NormAverages(0.999, **more),
    "ema 0.9, every 8": lambda **more: NormAverages(0.9, 8, **more),
    "mean": lambda **more: NormAverages(1.0, **more),
    "adaptive": lambda **more: AdaptiveAverages(0.999, **more),
    "adaptive, every 8": lambda **more: AdaptiveAverages(0.999, 8, **more),
}
kinds = st.sampled_from(list(KINDS))
spikes = st.floats(1, 6).map(lambda power: 10**power)


def skipping(kind):
    return KINDS[kind](skip_outliers=True)


def fed(averages, norms):
    for norm in norms:
        averages = averages.updated({"a": norm})
    return averages


def noise(count, seed, sigma=0.2):
    rng = random.Random(seed)
    return [math.exp(sigma * rng.gauss(0, 1)) for _ in range(count)]


@given(kind=kinds, count=st.integers(1, 60), seed=st.integers(0, 99), factor=spikes)
@pytest.mark.parametrize("times", [1, 2])
def test_a_spike_moves_no_average(times, kind, count, seed, factor):
    """From the second norm on; and its own call has three times its due."""
    before = fed(skipping(kind), noise(count, seed))
    after = before
    for _ in range(times):
        spike = factor * before["a"]
        after = after.updated({"a": spike})
        assert after["a"] == before["a"]
        assert after.is_outlier("a") and after.held_back({"a": spike}) == {"a"}
        assert spike / after.for_call({"a": spike})["a"] == pytest.approx(3)
    # Nothing of it is left: the next norms are taken in as if it had not been.
    rest = noise(20, seed + 1)
    assert fed(after, rest)["a"] == fed(before, rest)["a"]
    assert not fed(after, rest[:1]).is_outlier("a")


@given(
    kind=kinds,
    count=st.integers(1, 60),
    seed=st.integers(0, 99),
    factor=st.sampled_from([100, 0.01]),
)
def test_a_change_is_followed(kind, count, seed, factor):
    norms = [factor * norm for norm in noise(3, seed + 1)]
    averages = fed(skipping(kind), noise(count, seed) + norms)
    assert averages["a"] == pytest.approx(sorted(norms)[1])
    assert not averages.is_outlier("a")
    # It has begun anew, as an average that has seen the median three times.
    again = fed(KINDS[kind](), sorted(norms)[1:2] * 3).state_dict()["a"]
    assert averages.state_dict()["a"][: len(again)] == pytest.approx(again)


def test_a_change_is_on_one_side():
    averages = fed(skipping("ema 0.999"), [1.0] * 9 + [50.0, 60.0, 0.01, 0.02, 70.0])
    assert averages["a"] == 1.0 and averages.is_outlier("a")


@given(
    kind=kinds,
    norms=st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=30),
    power=st.integers(-60, 60),
)
def test_scales_with_the_norms(kind, norms, power):
    """Exactly: no verdict hangs on the scale of a loss."""
    scaled = fed(skipping(kind), [norm * 2.0**power for norm in norms])
    assert scaled["a"] == fed(skipping(kind), norms)["a"] * 2.0**power


def test_rounding_and_a_tripled_loss_are_no_outliers():
    rng = random.Random(0)
    still = [1 + 1e-7 * rng.random() for _ in range(300)]
    averages = fed(skipping("adaptive"), still)
    for factor in (3.0, 1 / 3, 0.5):
        assert not averages.updated({"a": factor}).is_outlier("a")


def test_what_is_usual_is_taken_in():
    """Norms of a tenth and tenfold are left out where all others stand still alone."""
    wild = noise(300, 0, sigma=0.8)
    usual = 5 * fed(skipping("ema 0.999"), wild)["a"]
    assert not fed(skipping("ema 0.999"), wild + [usual]).is_outlier("a")
    assert fed(skipping("ema 0.999"), noise(300, 0) + [5.0]).is_outlier("a")


def test_a_spike_does_not_widen_what_is_usual():
    averages = fed(skipping("ema 0.999"), noise(300, 0) + [1e6, 1.0])
    assert averages.updated({"a": 4.0}).is_outlier("a")


def test_a_gradient_is_bounded_whether_its_norm_is_an_outlier_or_not():
    averages = fed(skipping("ema 0.999"), [1.0, 5.0])  # young, so 5 is taken in
    assert averages["a"] == pytest.approx(3.0, rel=1e-3)
    averages = fed(averages, [1.0] * 4 + [10.0])
    assert not averages.is_outlier("a") and averages["a"] < 10 / 3
    assert averages.for_call({"a": 10.0})["a"] == pytest.approx(10 / 3)
    for norm in (0.0, 1.0, math.inf, math.nan):
        assert averages.for_call({"a": norm})["a"] == averages["a"]
        assert not averages.held_back({"a": norm})
    # What the scales of one call go by changes no average.
    assert averages.state_dict() == fed(averages, []).state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_option_all_norms_count(kind):
    plain = fed(KINDS[kind](), [1.0] * 9 + [1e6])
    assert plain["a"] > 100 and not plain.is_outlier("a")
    assert plain.for_call({"a": 1e9})["a"] == plain["a"]
    assert len(plain.state_dict()["a"]) == (5 if "adaptive" in kind else 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", range(4))
def test_goes_on_from_what_was_saved(kind, held):
    norms = noise(20, 0) + [1e3] * held
    whole = fed(skipping(kind), norms)
    resumed = skipping(kind).loaded(whole.state_dict())
    assert resumed.state_dict() == whole.state_dict()
    rest = [1e3, 1e3] + noise(9, 1)
    assert fed(resumed, rest).state_dict() == fed(whole, rest).state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("skips", [False, True])
def test_goes_on_from_averages_of_each_kind(kind, other, skips):
    saved = fed(KINDS[other](skip_outliers=skips), noise(20, 0) + [1e3])
    saved = saved.state_dict()
    for skip in (False, True):
        loaded = KINDS[kind](skip_outliers=skip).loaded(saved)
        total, fix = saved["a"][:2]
        assert loaded["a"] == pytest.approx(total / fix)
        assert loaded.is_outlier("a") == (skip and skips)
        assert 0 < fed(loaded, noise(3, 1))["a"] < math.inf


@pytest.mark.parametrize(
    "numbers",
    [
        [-0.1, 0.0, 0.0, 0.0],
        [math.nan, 0.0, 0.0, 0.0],
        [0.3, 1.0, 0.0, 0.0],
        [0.3, 2.0, 5.0, 0.0],
        [0.3, -1.0, math.inf, 0.0],
        [0.3, 3.0, 5.0, 6.0],
        [0.3, 0.5, 5.0, 0.0],
    ],
)
@pytest.mark.parametrize("kind", ["mean", "adaptive"])
def test_damaged_state_is_refused(kind, numbers):
    saved = fed(skipping(kind), [1.0, 1.0]).state_dict()
    saved["a"][-4:] = numbers
    with pytest.raises(ValueError, match="'a'.*outliers.*damaged"):
        skipping(kind).loaded(saved)


def test_norms_at_the_ends_of_float64():
    averages = fed(skipping("adaptive"), [1e308, 1e-30, 1e308, 1e-30, 1e-30, 1e-30])
    assert averages["a"] == 1e-30
    assert fed(averages, [1.7e308] * 3)["a"] == 1.7e308
