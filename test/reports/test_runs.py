"""Reading back what ESPnet reported in real trainings."""

import shutil

import pytest
import yaml
from mini_recipe import recipe

from balancer.espnet.task import BalancedGANCodecTask
from balancer.quantities import probe
from balancer.reports.runs import QUANTITIES, ReportError, read_run, rows

LOSSES = ["reconstruct", "adv", "feat_match", "mel", "mel_real"]


def test_intervals_are_read_without_the_epochs_means(trained):
    """ESPnet writes both under one tag, at an epoch's last step both."""
    steps, epochs = read_run(trained), read_run(trained, per_epoch=True)
    assert steps.name == "exp" and list(steps.weights) == LOSSES
    assert steps.series.keys() == epochs.series.keys()
    assert len(steps.of("cosine")) == 10 and list(steps.of("total_grad_norm")) == [""]
    for subject, points in steps.series.items():
        assert list(points) == [1, 2, 3, 4]
        means = {2: (points[1] + points[2]) / 2, 4: (points[3] + points[4]) / 2}
        assert epochs.series[subject] == pytest.approx(means, rel=1e-5, abs=1e-6)
    assert steps.of("norm")["mel"][1] != steps.of("norm")["mel"][2]
    share = {name: steps.of("share")[name][1] for name in LOSSES}
    target = {name: points[1] for name, points in steps.targets().items()}
    assert share == pytest.approx(target, rel=1e-5)


def test_epochs_are_read_where_there_are_no_intervals(trained, train, tmp_path):
    """An epoch shorter than log_interval, and a training without TensorBoard."""
    config = {**recipe("soundstream"), "use_tensorboard": True, "log_interval": 9}
    folder = train(BalancedGANCodecTask, config, "short")
    events = read_run(folder)
    shutil.rmtree(folder / "tensorboard")
    checkpoint = read_run(folder)
    assert list(events.of("norm")["mel"]) == [2] and not events.of("cosine")
    assert events.series.keys() == checkpoint.series.keys()
    for subject, points in events.series.items():
        assert points == pytest.approx(checkpoint.series[subject], rel=1e-5)


def test_quantities_and_pairs_are_told_apart_by_whole_names(trained, monkeypatch):
    """mel_real_norm_test is of mel_real, not of mel, and is no norm."""
    keys = {"mel_share": 0.5, "mel_real_share": 0.5, "mel_real_norm_test": 2.0}
    keys |= {"mel_mel_real_cosine": 0.1, "mel_real_early_stopping": -1.0, "mel_loss": 3}
    points = {key: {1: value} for key, value in keys.items()}
    monkeypatch.setattr("balancer.reports.runs._interval_points", lambda _: points)
    run = read_run(trained)
    assert {key: list(points.values()) for key, points in run.series.items()} == {
        ("share", "mel"): [0.5],
        ("share", "mel_real"): [0.5],
        ("norm_test", "mel_real"): [2.0],
        ("early_stopping", "mel_real"): [-1.0],
        ("cosine", "mel, mel_real"): [0.1],
    }
    targets = [row for row in rows(run) if row[2] == "target"]
    assert targets == [("exp", 1, "target", n, 0.5) for n in ("mel", "mel_real")]


def test_the_probes_quantities_are_known():
    assert {stat.name for stat in QUANTITIES} == set(probe.QUANTITIES)


def test_what_there_is_to_say_without_stats(trained, train, tmp_path):
    with pytest.raises(ReportError, match="exp2 has no config.yaml.*--output_dir"):
        read_run(tmp_path / "exp2")
    (tmp_path / "exp2").mkdir()
    (tmp_path / "exp2" / "config.yaml").write_text("balancer: grad_norm\n")
    with pytest.raises(ReportError, match="neither TensorBoard.*nor a checkpoint.pth"):
        read_run(tmp_path / "exp2")
    config = {**recipe("soundstream"), "balancer": "none"}
    folder = train(BalancedGANCodecTask, config, "none")
    with pytest.raises(ReportError, match="no stats of a balancer.*`balancer: none`"):
        read_run(folder)


def test_targets_are_those_of_the_configuration(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "exp")
    config = yaml.safe_load((folder / "config.yaml").read_text())

    def targets(section):
        config["balancer_conf"] = section
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        return read_run(folder).targets()

    assert targets({"epsilon": 1e-9}) == {
        name: dict.fromkeys([1, 2, 3, 4], 0.2) for name in LOSSES
    }
    ramp = {"start": 0, "end": 6, "from_step": 1, "to_step": 3}
    weights = {**dict.fromkeys(LOSSES, 1), "adv": ramp}
    assert targets({"weights": weights})["adv"] == pytest.approx(
        {1: 0.0, 2: 0.0, 3: 3 / 7, 4: 6 / 10}
    )
    assert targets({"balance_grads": False}) == {}
