"""The command as a user types it."""

import csv
import os
import shutil
import subprocess
import sys

import pytest
from matplotlib.image import imread

from balancer.bin.plot_stats import main
from balancer.reports.runs import read_run, rows


def test_draws_beside_the_training_without_a_display(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "exp")
    env = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    run = subprocess.run(
        [sys.executable, "-m", "balancer.bin.plot_stats", folder, "--csv"],
        capture_output=True,
        text=True,
        env={**env, "MPLBACKEND": "TkAgg"},
    )
    assert run.returncode == 0, run.stderr
    assert f"{folder}/balance.png" in run.stdout and "balance.csv" in run.stdout
    picture = imread(folder / "balance.png")
    assert picture.shape[0] > 800 and picture.shape[1] > 1000
    with open(folder / "balance.csv", newline="") as file:
        found = [tuple(row.values()) for row in csv.DictReader(file)]
    expected = [tuple(map(str, row)) for row in rows(read_run(folder))]
    assert found == expected and len(found) > 100


def test_compares_trainings_of_the_same_name(trained, tmp_path, monkeypatch, capsys):
    other = shutil.copytree(trained, tmp_path / "b" / "exp")
    monkeypatch.chdir(tmp_path)
    main([str(trained), str(other), "--csv"])
    assert (tmp_path / "balance.png").stat().st_size > 10000
    names = {row["run"] for row in csv.DictReader(open(tmp_path / "balance.csv"))}
    assert names == {str(trained), str(other)}
    main([str(trained), "--output", "deep/a.svg"])
    assert "<svg" in (tmp_path / "deep" / "a.svg").read_text()


def test_refusals_are_one_line(trained, tmp_path):
    with pytest.raises(SystemExit, match="^plot_stats: .*none has no config.yaml"):
        main([str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="^plot_stats: 6 trainings .*at most 5"):
        main([str(trained)] * 6 + ["--output", str(tmp_path / "a.png")])
    with pytest.raises(SystemExit, match="^plot_stats: .*'tif2'.*png"):
        main([str(trained), "--output", str(tmp_path / "a.tif2")])
