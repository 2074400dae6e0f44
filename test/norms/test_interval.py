"""When to measure next: young, drifting and still averages, and what a user writes."""

import itertools
import math
import random

import pytest

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages
from balancer._norms.interval import Interval

AUTO = Interval.read("auto")


def replayed(columns, interval, averages=None, measured_at=None):
    """The calls that measured, and the averages after the last."""
    averages = averages or AdaptiveAverages(0.999, interval.at_most, True)
    measured_at = measured_at or {}
    first = max(measured_at.values(), default=-1) + 1
    calls = []
    for call, row in enumerate(zip(*columns.values()), start=first):
        norms = dict(zip(columns, row))
        last = max(measured_at.values(), default=-math.inf)
        if call - last >= interval.after(averages, norms):
            stood = interval.stood(norms, call, measured_at)
            averages = averages.updated(norms, stood)
            measured_at = dict.fromkeys(norms, call)
            calls.append(call)
    return calls, averages


def noise(count, seed, drift=0.0, sigma=0.3):
    rng = random.Random(seed)
    return [math.exp(drift * t + sigma * rng.gauss(0, 1)) for t in range(count)]


@pytest.mark.parametrize(
    "value, at_most, auto",
    [
        (1, 1, False),
        ("8", 8, False),
        ("auto", 16, True),
        ("auto 32", 32, True),
        (" auto  4 ", 4, True),
    ],
)
def test_what_a_user_writes(value, at_most, auto):
    interval = Interval.read(value)
    assert interval == Interval(at_most, auto)
    assert Interval.read(str(interval)) == interval


@pytest.mark.parametrize(
    "value",
    [0, -1, 1.5, "", "0", "auto 0", "auto -1", "often", "8 auto", "autoo", None],
)
def test_what_it_refuses(value):
    with pytest.raises(ValueError, match="update_every must be.*auto 32") as error:
        Interval.read(value)
    assert repr(value) in str(error.value)


def test_young_averages_are_measured_on_each_call_and_still_ones_rarely():
    columns = {"a": noise(4000, 0), "b": noise(4000, 1)}
    calls, _ = replayed(columns, AUTO)
    assert calls[:10] == list(range(10))
    gaps = [b - a for a, b in itertools.pairwise(calls)]
    assert max(gaps) == 16
    assert len([call for call in calls if call >= 1000]) < 3000 / 8


def test_norms_that_drift_are_measured_often():
    still, _ = replayed({"a": noise(1000, 0), "b": [1.0] * 1000}, AUTO)
    drifts, _ = replayed({"a": noise(1000, 0, drift=0.05), "b": [1.0] * 1000}, AUTO)
    assert len(drifts) > 2 * len(still)


def test_norms_that_stand_still_are_measured_at_most_every_n_calls():
    for at_most in (1, 5, 30):
        calls, _ = replayed({"a": [3.0] * 4000}, Interval(at_most, auto=True))
        gaps = [b - a for a, b in itertools.pairwise(calls)]
        assert max(gaps) == at_most and gaps == sorted(gaps)


@pytest.mark.parametrize("interval", [AUTO, Interval(16)])
def test_an_outlier_is_looked_at_again_in_the_next_call(interval):
    columns = {"a": [1.0] * 4000, "b": [1.0] * 4000}
    _, averages = replayed(columns, interval)
    assert interval.after(averages, columns) == 16
    outlier = averages.updated({"a": 50.0, "b": 1.0})
    assert interval.after(outlier, columns) == 1
    assert interval.after(outlier.updated({"a": 1.0, "b": 1.0}), columns) == 16


def test_a_fixed_interval_is_what_it_is():
    averages = AdaptiveAverages(0.999)
    assert Interval(8).after(averages, ["a"]) == 8
    assert Interval(8).stood(["a"], 40, {"a": 37}) == {"a": 8}


def test_losses_without_an_average_say_nothing():
    averages = AdaptiveAverages(0.999, 16)
    assert AUTO.after(averages, ["a"]) == 1
    for _ in range(100):
        averages = averages.updated({"a": 1.0, "b": 0.0})
    assert AUTO.after(averages, ["a", "b"]) == AUTO.after(averages, ["a"]) == 16


@pytest.mark.parametrize("ages", [(4, 12, 75, 75), (6, 20, 75, 100), (8, 20, 25, 40)])
def test_the_order_of_the_names_is_free(ages):
    """Ranks may bring their losses in any order, and decide alike."""
    state = {name: [1.0, 1.0, age, 0.0, 0.0] for name, age in zip("abcd", ages)}
    averages = AdaptiveAverages(0.999, 16).loaded(state)
    orders = itertools.permutations("abcd")
    assert len({AUTO.after(averages, names) for names in orders}) == 1


def test_a_norm_stands_for_the_calls_since_the_last():
    assert AUTO.stood(["a", "new"], 40, {"a": 37}) == {"a": 3, "new": 1}
    # One that was off for long stands for no more than N calls.
    averages = NormAverages(0.9, 16).updated({"a": 1.0}, {"a": 1})
    long, most = ({"a": calls} for calls in (1000, 16))
    assert averages.updated({"a": 3.0}, long)["a"] == pytest.approx(
        averages.updated({"a": 3.0}, most)["a"], rel=1e-15
    )


def test_averages_with_a_short_memory_are_measured_often():
    def interval(decay):
        averages = NormAverages(decay, 16)
        for _ in range(500):
            averages = averages.updated({"a": 1.0}, {"a": 1})
        return AUTO.after(averages, ["a"])

    assert (interval(0.999), interval(0.95), interval(0.5)) == (16, 3, 1)


def test_a_resumed_training_measures_on_the_same_calls():
    columns = {"a": noise(600, 0, drift=0.01), "b": noise(600, 1)}
    whole, _ = replayed(columns, AUTO)
    head = {name: column[:300] for name, column in columns.items()}
    calls, averages = replayed(head, AUTO)
    resumed = AdaptiveAverages(0.999, 16, True).loaded(averages.state_dict())
    tail = {name: column[calls[-1] + 1 :] for name, column in columns.items()}
    rest, _ = replayed(tail, AUTO, resumed, dict.fromkeys("ab", calls[-1]))
    assert calls + rest == whole
