"""The benchmark runs, and what it compares is the same gradient."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"


def test_ways_agree_and_figures_are_written(tmp_path):
    """A wrong gradient in any way ends the benchmark with an error."""
    options = "--codec dac --size mini --batch 2 --length 4800 --rounds 2".split()
    files = ["--json", tmp_path / "b.json", "--plot", tmp_path / "b.png"]
    result = subprocess.run(
        [sys.executable, TOOLS / "benchmark.py", *options, *files],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "5 ways of balancing give the generator the same gradient" in result.stdout
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    names = [row["name"] for row in rows]
    assert names[0] == "no balancing" and rows[0]["ratio"] == 1.0
    assert names[-4:] == [f"ours, update_every={n}" for n in (1, 4, 8, 16)]
    assert all(row["turn_ms"] > 0 for row in rows)
    assert all(f"| {name} |" in result.stdout for name in names)
    assert (tmp_path / "b.png").stat().st_size > 1000


def test_scaling_counts_the_walks():
    spec = importlib.util.spec_from_file_location(
        "benchmark_scaling", TOOLS / "benchmark_scaling.py"
    )
    scaling = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scaling)
    size = {"losses": 3, "batch": 1, "length": 800}
    figures = scaling.one_size(size, rounds=1)
    assert figures["walks"] == 3 and 0 < figures["own_ms"] < figures["turn_ms"]
