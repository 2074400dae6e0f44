"""The benchmark runs, and what it compares is the same gradient."""

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

TOOLS = Path(__file__).parents[2] / "tools"


def test_ways_agree_and_figures_are_written(tmp_path):
    """A wrong gradient in any way ends the benchmark with an error."""
    options = "--model dac --size mini --batch 2 --length 4800 --rounds 2".split()
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
    assert names[-6:] == [
        *(f"ours, update_every={n}" for n in (1, 4, 8, 16)),
        *(f"ours, as the recipes, {n} turns" for n in (200, 1000)),
    ]
    assert all(row["turn_ms"] > 0 for row in rows)
    assert all(f"| {name} |" in result.stdout for name in names)
    assert (tmp_path / "b.png").stat().st_size > 1000


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return load("benchmark")


def test_ways_agree_on_a_speech_synthesizer(benchmark, capsys):
    turn = benchmark.Turn("vits", "mini", "cpu", batch=2, length=4800)
    benchmark.check_gradients(turn, benchmark.make_ways(turn))
    assert "5 ways of balancing give the generator the same" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--length 4000 is less.*take 4096 or more"):
        benchmark.Turn("vits", "mini", "cpu", batch=2, length=4000)


def test_what_cannot_end_well_is_said_before_the_measuring(
    benchmark, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(benchmark, "Turn", None)  # nothing is built
    for options, message in [
        (["--rounds", "1"], "must be at least 2, but is 1"),
        (["--batch", "0"], "must be at least 1, but is 0"),
        (["--json", "/dev/null/a.json"], "^benchmark.py: /dev/null"),
        (["--json", str(tmp_path)], "is a folder"),
        (["--plot", str(tmp_path / "b.tif")], "b.tif is no picture"),
        (["--device", "toaster"], "--device toaster cannot be used here"),
        (["--scaling", "--plot", str(tmp_path / "b.png")], "leave one out"),
    ]:
        monkeypatch.setattr(sys, "argv", ["benchmark.py", *options])
        with pytest.raises(SystemExit) as end:
            benchmark.main()
        assert end.value.code == 2
        assert re.search(message, capsys.readouterr().err.splitlines()[-1])
    assert not list(tmp_path.iterdir())


def test_nothing_crosses_the_charts_labels(benchmark, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: figures.append(figure)
    )
    args = argparse.Namespace(model="dac", size="mini", device="cpu", plot=tmp_path)
    ratios = {"no balancing": 1.0, "ours, a": 0.97, "ours, b": 0.5, "another": 1.6}
    benchmark.plot(args, [{"name": n, "ratio": x} for n, x in ratios.items()])
    (axes,) = figures[0].axes
    figures[0].canvas.draw()
    labels = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == ["1.60", "0.50", "0.97", "1.00"]
    drawn = [line.get_window_extent() for line in axes.lines]
    drawn += [bar.get_window_extent() for bar in axes.patches]
    assert not any(label.overlaps(box) for label in labels for box in drawn)


def test_scaling_counts_the_walks():
    scaling = load("benchmark_scaling")
    size = {"losses": 3, "batch": 1, "length": 800}
    figures = scaling.one_size(size, rounds=1)
    assert figures["walks"] == 3 and 0 < figures["own_ms"] < figures["turn_ms"]
    held = scaling.one_size({**size, "update_every": scaling.HELD}, rounds=1)
    assert held["walks"] == 0 and 0 < held["own_ms"] < held["turn_ms"]
