"""The soak finds nothing in the balancer, and does find what is put into it."""

import argparse
import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest

from balancer import Balancer
from balancer._norms.ema import NormAverages

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize("ranks", [1, 2])
def test_short_soak(ranks):
    """Each kind of fault comes at least twice."""
    result = subprocess.run(
        [sys.executable, TOOLS / "soak.py", "--steps", "120", "--ranks", str(ranks)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "| steps survived | 120 of 120 | yes |" in result.stdout
    injected = re.findall(r"^\| (.+) \| (\d+) \|$", result.stdout, re.MULTILINE)
    assert len(injected) == (16 if ranks > 1 else 15)
    assert all(int(count) >= 2 for _, count in injected)


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import soak

    return soak


def failures(soak, steps):
    args = argparse.Namespace(ranks=1, steps=steps, seed=0)
    return {what for what, _, good in soak.verdict(soak.run(args), steps) if not good}


def test_soak_finds_averages_that_take_in_all(soak, monkeypatch):
    def loaded(self, stats):
        new = copy.copy(self)
        new._stats = stats
        return new

    def updated(self, norms, stood=None):
        taken = {name: [norm, 1.0] for name, norm in norms.items()}
        return loaded(self, {**self._stats, **taken})

    monkeypatch.setattr(NormAverages, "loaded", loaded)
    monkeypatch.setattr(NormAverages, "updated", updated)
    assert "non-finite averages" in failures(soak, 60)


def test_soak_finds_a_leak_and_a_state_that_changes(soak, monkeypatch):
    kept, call = [], Balancer.__call__

    def leaking(self, losses, y):
        kept.append(y)
        return call(self, losses, y)

    evaluate = Balancer._evaluate

    def counting(self, *args):
        self._state = self._state.after_call()
        return evaluate(self, *args)

    monkeypatch.setattr(Balancer, "__call__", leaking)
    monkeypatch.setattr(Balancer, "_evaluate", counting)
    found = failures(soak, 120)
    assert "growth of live tensors" in found
    assert "refusals, copies, restarts gone wrong" in found
