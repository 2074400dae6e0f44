"""The replay: what it says of an average, and what the recordings say of ours."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def replay():
    sys.path.insert(0, str(TOOLS))
    import replay_averages

    sys.path.remove(str(TOOLS))
    return replay_averages


def test_fit_by_hand(replay):
    """Of two losses one doubles its norm at half time, and an average that stands."""
    norms = {"adv": np.ones(40), "feat_match": np.repeat([1.0, 2.0], 20)}
    stands = replay.fit(norms, lambda n: np.full(len(n), n[0]))
    # Shares 1/3 and 2/3 where 1/2 each are due, in half of the steps.
    assert (stands.miss, stands.lag) == pytest.approx((1 / 12, 1 / 12))
    assert stands.worst == pytest.approx(3 / 2)
    assert stands.noise == 0
    # Of an average that is late in the first 20 steps alone, no share is the worst.
    late = replay.fit(norms, lambda n: np.where(np.arange(40) < 20, n[-1], n))
    assert late.worst == pytest.approx(1) and late.lag == pytest.approx(1 / 12)
    follows = replay.fit(norms, lambda n: n)
    assert follows.miss == 0 and follows.worst == pytest.approx(1)
    assert follows.noise == pytest.approx(np.log(2) / 39 / 2)


def test_adaptive_averages_follow_each_recording(replay):
    """Half the lag of the field's default at most, less noise than a short memory."""
    recorded = replay.recordings()
    assert set(recorded) == {"soundstream", "encodec", "dac", "funcodec"}
    averages = replay.all_averages()
    fits = {
        name: {c: replay.fit(n, averages[name]) for c, n in recorded.items()}
        for name in ("adaptive_average", "ema_decay 0.9", "ema_decay 0.999")
    }
    for codec, fit in fits["adaptive_average"].items():
        assert fit.lag < fits["ema_decay 0.999"][codec].lag / 2
        assert fit.worst < 2.5
    mean = {name: replay.mean_fit(list(each.values())) for name, each in fits.items()}
    assert mean["adaptive_average"].noise < mean["ema_decay 0.9"].noise
    assert mean["adaptive_average"].lag < 1.05 * mean["ema_decay 0.9"].lag


def test_table_and_chart(tmp_path):
    chart = tmp_path / "chart.png"
    result = subprocess.run(
        [sys.executable, TOOLS / "replay_averages.py", "--plot", chart],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "| adaptive_average |" in result.stdout
    assert chart.stat().st_size > 10_000
