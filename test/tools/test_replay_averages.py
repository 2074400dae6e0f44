"""The replay: what it says of an average, and what the recordings say of ours."""

import sys
from pathlib import Path

import numpy as np
import pytest

from balancer._norms.ema import NormAverages
from balancer._norms.interval import Interval

TOOLS = Path(__file__).parents[2] / "tools"
LAST = NormAverages(0.0)  # no memory


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, str(TOOLS))
    import replay
    import replay_averages
    import replay_spikes

    sys.path.remove(str(TOOLS))
    return replay, replay_averages, replay_spikes


@pytest.fixture(scope="module")
def recorded(tools):
    replay, _, _ = tools
    return replay.recordings()


def test_fit_by_hand(tools):
    """Of two losses one doubles its norm at half time, and an average that stands."""
    replay, _, _ = tools
    norms = {"adv": np.ones(40), "feat_match": np.repeat([1.0, 2.0], 20)}
    stands = replay.fit(norms, replay.Setting(LAST, Interval(40)))
    # Shares 1/3 and 2/3 where 1/2 each are due, in half of the calls.
    assert (stands.miss, stands.lag, stands.first) == pytest.approx((1 / 12,) * 3)
    assert stands.worst == pytest.approx(3 / 2)
    assert stands.noise == 0 and stands.calls == 1 / 40
    follows = replay.fit(norms, replay.Setting(LAST, Interval(1)))
    assert follows.miss == 0 and follows.worst == pytest.approx(1)
    assert follows.noise == pytest.approx(np.log(2) / 39 / 2)


def test_held_calls_count(tools):
    """Every 8th norm is followed to the bit, and what comes between is not."""
    replay, _, _ = tools
    norms = {"adv": np.ones(80), "feat_match": np.where(np.arange(80) % 8, 2.0, 1.0)}
    fit = replay.fit(norms, replay.Setting(LAST, Interval(8)))
    assert fit.miss == pytest.approx(7 / 8 * (2 / 3 - 1 / 2))
    assert fit.calls == 1 / 8 and fit.noise == 0


def test_spikes_by_hand(tools):
    """Of norms that stand still, and an average without a memory."""
    replay, _, spikes = tools
    norms = {"adv": np.ones(420), "feat_match": np.ones(420)}
    last = spikes.spikes(norms, replay.Setting(LAST, Interval(1)))
    # The spike's average is the spike, and is gone in the next call.
    assert last == pytest.approx((1.0, 1e6, 1.0, 1.0))
    held = spikes.spikes(norms, replay.Setting(LAST, Interval(20)))
    # The loss has next to nothing in the 19 calls that hold the average, and in one of
    # the 20 it has its half. Of 10 times the norm that is 1/11.
    kept = np.mean([(19 / (1 + factor) + 1 / 2) / 10 for factor in (10, 1e3, 1e6)])
    assert held.kept == pytest.approx(kept)
    mean = spikes.spikes(norms, replay.Setting(NormAverages(1.0), Interval(1)))
    # At call 120, as at 360, a mean of so many norms and the spike.
    assert mean.own == pytest.approx(361 / (1 + 360e-6))
    assert mean.moved == pytest.approx((120 + 2e6) / 122, rel=1e-4)
    assert mean.followed == 40


def test_what_the_recordings_say(tools, recorded):
    """The settings of the recipes are within what they are chosen for."""
    replay, averages, _ = tools
    names = {"soundstream", "encodec", "dac", "funcodec", "small_codec"}
    assert set(recorded) == names

    def fit(setting):
        return replay.mean_fit([replay.fit(n, setting) for n in recorded.values()])

    auto, field = fit(averages.adaptive("auto", skip=True)), fit(averages.ema(0.999))
    assert auto.calls < 0.2 and auto.noise < 0.015 and auto.first < 0.02
    assert auto.lag < 0.031 and auto.worst < 2.2
    assert auto.lag < field.lag / 3 and auto.first < field.first / 6
    every, short = fit(averages.adaptive()), fit(averages.ema(0.9))
    assert every.lag < 0.9 * short.lag and every.noise < 1.1 * short.noise


@pytest.mark.parametrize("average", ["ema", "adaptive"])
def test_no_spike_poisons_an_average_of_the_recordings(tools, recorded, average):
    _, averages, spikes = tools
    kinds = {
        "ema": lambda *how: averages.ema(0.999, *how),
        "adaptive": averages.adaptive,
    }
    every = "auto" if average == "adaptive" else 1
    for codec in ("funcodec", "small_codec"):
        skips = spikes.spikes(recorded[codec], kinds[average](every, True))
        assert skips.own <= 3 + 1e-9 and skips.moved < 1.1
        assert skips.kept > 0.95 and skips.followed <= 10
        keeps = spikes.spikes(recorded[codec], kinds[average](every, False))
        assert keeps.moved > 100 and keeps.kept < 0.5


def test_tables_and_chart(tools, recorded, tmp_path, capsys):
    _, averages, _ = tools
    one = {"funcodec": recorded["funcodec"]}
    name = "adaptive, outliers skip, update_every auto"
    rows = {name: averages.settings()[name]}
    averages.table(
        {**rows, "ema": averages.every_call()["ema_decay 0.9"]}, one.values()
    )
    averages.spike_table(rows, one.values())
    head, line, *body = capsys.readouterr().out.splitlines()
    assert {text.count("|") for text in (head, line, *body)} == {8}
    assert [text.split("|")[1].strip() for text in body[:2]] == [name, "ema"]
    averages.draw(one, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000
