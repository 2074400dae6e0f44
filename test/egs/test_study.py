"""The study, in a small way: real trainings, tables and charts."""

import json
import subprocess
import sys

import pytest
import yaml
from run_sh import EGS

STUDY = EGS / "study"
MINI = EGS / "mini" / "codec1"


def study(folder, *options):
    result = subprocess.run(
        [sys.executable, STUDY / "study.py", *map(str, options)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads((folder / "RESULTS.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study of question 6, in trainings of a few steps."""
    folder = tmp_path_factory.mktemp("study")
    synthesize = EGS / "shared" / "synthesize.py"
    subprocess.run([sys.executable, synthesize, folder / "wav"], check=True)
    study(folder, *options(folder))
    return folder


def options(folder):
    return (
        *("--quick", "--questions", 6, "--jobs", 2, "--wav_dir", folder / "wav"),
        *("--exp_dir", folder),
    )


def test_tables_charts_and_results(folder):
    results = json.loads((folder / "RESULTS.json").read_text())
    by_condition = {result["condition"]: result for result in results}
    assert len(results) == len(by_condition) == 7
    assert len({result["steps"] for result in results}) == 1
    ours = by_condition["ours"]
    assert set(ours["distances"]) == {"mel", "stft", "si_sdr", "stoi", "codes"}
    assert sum(ours["shares"]["decoder"].values()) == pytest.approx(1, abs=1e-3)
    assert "mel_real" not in by_condition["no dual decoder"]["shares"]["output"]
    # Outside the balance the dual decoder's loss has what its scale makes of it.
    outside = by_condition["dual decoder's loss outside"]["shares"]["output"]
    assert outside["mel_real"] < 0.1 < 0.4 < ours["shares"]["output"]["mel_real"]
    text = (folder / "RESULTS.md").read_text()
    mel = f"{ours['distances']['mel']:.3f}"
    assert f"| inside | {mel} |" in text and "mel_real's share |" in text
    assert "| ema_decay" not in text and "| 16 |" not in text
    for number in range(1, 8):
        assert (folder / "images" / f"study_{number}.png").stat().st_size > 5_000


def test_goes_on_where_it_stood_and_keeps_what_was_written(folder):
    (path,) = [
        path
        for path in folder.glob("runs/*/result.json")
        if json.loads(path.read_text())["condition"] == "ours"
    ]
    others = {p: p.stat().st_mtime for p in folder.glob("runs/*/result.json")}
    before = json.loads(path.read_text())
    path.unlink()
    report = folder / "RESULTS.md"
    report.write_text(report.read_text().replace("## 6.", "Our words.\n\n## 6."))
    study(folder, *options(folder))
    changed = [p for p, time in others.items() if p.stat().st_mtime != time]
    assert changed == [path]
    assert json.loads(path.read_text()) == before  # seeded
    assert "Our words." in report.read_text()


def test_scaled_conditions_scale_the_loss(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDY))
    import study_plan as plan

    base = yaml.safe_load((MINI / "conf" / "train_encodec.yaml").read_text())
    conditions = plan.conditions([1], first=True)
    assert len(conditions) == 5 + 9 * 2 + 4
    for method, plain in ((plan.SUM, 45.0), (plan.ESPNET, 45.0), (plan.OURS, 1.0)):
        changes = conditions[plan.scaled(method, "mel", 1e-3)]
        config = plan.merged(base, changes)["codec_conf"]
        assert config["lambda_mel"] == pytest.approx(1e-3 * plain)
        assert config["lambda_adv"] == 1.0
        assert config.get("use_loss_balancer", False) == (method == plan.ESPNET)


def test_the_first_chart_compares_like_with_like(monkeypatch):
    """The unscaled mean is that of all seeds in each panel; lines join equal seeds."""
    monkeypatch.syspath_prepend(str(STUDY))
    import study_charts as charts
    import study_plan as plan
    from study_report import Values

    low, high = plan.FACTORS
    mels = {(plan.OURS, seed): 0.1 * seed for seed in (1, 2, 6)}
    for loss in plan.LOSSES:
        mels[plan.scaled(plan.OURS, loss, low), 2] = 0.9
        mels[plan.scaled(plan.OURS, loss, high), 2] = 0.8
    results = [
        {"condition": condition, "seed": seed, "distances": {"mel": mel}}
        for (condition, seed), mel in mels.items()
    ]
    figure = charts.scales(Values(results))
    for ax in figure.axes:
        lines = [x for x in ax.lines if x.get_color() == charts.METHODS[plan.OURS]]
        *seeds, mean = [line.get_ydata() for line in lines]
        assert mean == pytest.approx([0.3])
        assert [len(ys) for ys in seeds] == [3, 3, 3]
        assert list(seeds[1]) == pytest.approx([0.9, 0.2, 0.8])
        assert [y for y in seeds[0] if y == y] == pytest.approx([0.1])
