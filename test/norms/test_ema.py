"""The averages against their definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer._norms.ema import NormAverages


@given(
    norms=st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=20),
    decay=st.floats(0, 1),
)
def test_weighted_mean(norms, decay):
    averages = NormAverages(decay)
    for norm in norms:
        averages = averages.updated({"a": norm})
    factors = [decay ** (len(norms) - 1 - k) for k in range(len(norms))]
    expected = sum(f * n for f, n in zip(factors, norms)) / sum(factors)
    assert averages["a"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("empty", [0.0, float("nan"), float("inf")])
def test_what_says_nothing_is_left_out(empty):
    averages = NormAverages(0.9).updated({"a": empty})
    assert averages.get("a") is None
    averages = averages.updated({"a": 2.0}).updated({"a": empty})
    assert averages.state_dict() == {"a": [2.0, 1.0]}


def test_update_leaves_the_old_averages():
    old = NormAverages(0.5).updated({"a": 1.0})
    old.updated({"a": 3.0, "b": 1.0})
    assert old.state_dict() == {"a": [1.0, 1.0]}


@given(decay=st.floats(0, 1), stride=st.integers(1, 50))
def test_a_norm_that_stood_counts_so_many_times(decay, stride):
    stood, each = NormAverages(decay, stride), NormAverages(decay)
    for norm in (3.0, 5.0, 2.0):
        stood = stood.updated({"a": norm})
        for _ in range(stride):
            each = each.updated({"a": norm})
    assert stood["a"] == pytest.approx(each["a"], rel=1e-9)


def test_a_stride_without_end():
    averages = NormAverages(0.5, 10**12).updated({"a": 3.0}).updated({"a": 4.0})
    assert averages["a"] == 4.0


@given(decay=st.floats(0, 1), stood=st.lists(st.integers(1, 20), min_size=1))
def test_norms_that_stood_for_unlike_numbers_of_calls(decay, stood):
    averages, each = NormAverages(decay, 20), NormAverages(decay)
    for norm, calls in enumerate(stood, start=1):
        averages = averages.updated({"a": norm}, {"a": calls})
        for _ in range(calls):
            each = each.updated({"a": norm})
    assert averages["a"] == pytest.approx(each["a"], rel=1e-9)
