"""The command as a user types it."""

import csv
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch
from matplotlib.image import imread
from torch.utils.tensorboard import SummaryWriter

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


def test_draws_any_loops_events_of_which_one_training_is_there(tmp_path, capsys):
    """One that was overwritten is not drawn, whatever wrote it."""
    for steps in (30, 10):
        with SummaryWriter(str(tmp_path)) as writer:
            for step in range(steps):
                for name in ("mel_share", "mel_scale", "mel_target"):
                    writer.add_scalar(f"balancer/{name}", 1.0, step)
    main([str(tmp_path), "--csv"])
    with open(tmp_path / "balance.csv", newline="") as file:
        found = [(row["stat"], int(row["step"])) for row in csv.DictReader(file)]
    stats = ("share", "scale", "target")
    assert found == [(stat, step) for stat in stats for step in range(10)]
    assert imread(tmp_path / "balance.png").shape[0] > 200


def refused(capsys, *command):
    """What the command says, in one line, as it ends with status 2."""
    with pytest.raises(SystemExit) as end:
        main([str(part) for part in command])
    assert end.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    return said


def test_refusals_are_one_line(trained, tmp_path, monkeypatch, capsys):
    for options, message in [
        ([tmp_path / "none"], "none is missing: give the folder"),
        ([tmp_path], "has no TensorBoard events: give the folder"),
        ([trained] * 6, "plot_stats: 6 trainings .* at most 5"),
        ([trained, "--output", tmp_path / "b"], "b is no picture.*end in .png, .pdf"),
        ([trained, "--output", tmp_path / "a.tif"], "a.tif is no picture"),
        ([trained, "--output", "/dev/null/a.png"], "^plot_stats: /dev/null"),
    ]:
        assert re.search(message, refused(capsys, *options))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "balancer.reports.plots", None)
        assert "pip install 'espnet-balancer[plot]'" in refused(capsys, trained)
    (tmp_path / "a.png").mkdir()
    said = refused(capsys, trained, "--output", tmp_path / "a.png")
    assert "a.png is a folder" in said


def test_files_that_are_broken_or_hostile(trained, tmp_path, capsys):
    """A sentence for each, and nothing is run that stands in them."""
    folder = shutil.copytree(trained, tmp_path / "exp")
    config, checkpoint = folder / "config.yaml", folder / "checkpoint.pth"
    (events,) = (folder / "tensorboard" / "train").glob("events*[0-9]")
    victim = tmp_path / "owned"

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(victim),)

    events.write_bytes(pickle.dumps(Hostile()))
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:50000])
    assert "checkpoint.pth cannot be read: it is cut off" in refused(capsys, folder)
    torch.save({"reporter": Hostile()}, checkpoint)
    assert "checkpoint.pth is refused: it holds " in refused(capsys, folder)
    torch.save({"reporter": 1}, checkpoint)
    assert "checkpoint.pth is no checkpoint of ESPnet's" in refused(capsys, folder)
    for text, message in [
        ("", "it has no keys"),
        ("a: [", "is no YAML: line 1"),
        (f"a: !!python/object/apply:os.mkdir ['{victim}']", "is no YAML: line 1"),
        ("balancer_conf: 3", "is no section"),
    ]:
        config.write_text(text)
        said = refused(capsys, folder)
        assert "config.yaml" in said and message in said
    assert not victim.exists()
