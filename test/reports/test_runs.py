"""Reading back what ESPnet reported in real trainings."""

import shutil

import pytest
import torch
import yaml
from accelerate import Accelerator
from lightning.pytorch.loggers import TensorBoardLogger
from mini_recipe import recipe
from torch.utils.tensorboard import SummaryWriter

from balancer import Balancer
from balancer.espnet.task import BalancedGANCodecTask
from balancer.quantities import probe
from balancer.reports import targets
from balancer.reports.plots import draw
from balancer.reports.runs import ReportError, read_run, read_runs, rows
from balancer.reports.stats import QUANTITIES

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
    keys |= {"mel_scale": 2.0, "mel_real_scale": 3.0}
    keys |= {"mel_mel_real_cosine": 0.1, "mel_real_early_stopping": -1.0, "mel_loss": 3}
    points = {key: {1: value} for key, value in keys.items()}
    monkeypatch.setattr("balancer.reports.runs.read_events", lambda _: {"": points})
    run = read_run(trained)
    found = {key: list(points.values()) for key, points in run.series.items()}
    assert {key: found[key] for key in found if key[0] != "target"} == {
        ("share", "mel"): [0.5],
        ("share", "mel_real"): [0.5],
        ("scale", "mel"): [2.0],
        ("scale", "mel_real"): [3.0],
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


@pytest.fixture(scope="module")
def stats():
    """What a loop has to log in each of 4 steps, the second loss from the second on."""
    ramp = {"start": 0, "end": 3, "from_step": 0, "to_step": 3}
    balancer = Balancer(weights={"mel": 1, "adv": ramp}, monitor=True)
    found = []
    for step in range(4):
        y = torch.ones(2, 3, requires_grad=True)
        losses = {"mel": y.square().mean(), "adv": y.exp().sum()}
        _, of_call = balancer({k: losses[k] for k in list(losses)[: step + 1]}, y)
        found.append({**of_call, **targets(balancer, of_call)})
    return found


def by_summary_writer(folder, rows):
    with SummaryWriter(str(folder)) as writer:
        for step, row in enumerate(rows):
            for name, value in row.items():
                writer.add_scalar(f"balancer/{name}", value, step)


def by_accelerate(folder, rows):
    accelerator = Accelerator(log_with="tensorboard", project_dir=str(folder))
    accelerator.init_trackers("codec")
    for step, row in enumerate(rows):
        accelerator.log({f"balancer/{k}": v for k, v in row.items()}, step)
    accelerator.end_training()


def by_lightning(folder, rows):
    logger = TensorBoardLogger(str(folder), name="", version="")
    for step, row in enumerate(rows):
        logger.log_metrics({f"balancer/{k}": v for k, v in row.items()}, step)
    logger.finalize("success")


@pytest.mark.parametrize("log", [by_summary_writer, by_accelerate, by_lightning])
def test_any_loops_events_are_read(log, stats, tmp_path):
    """Stats, cosines and, where the loop logs them, targets; draw takes them all."""
    log(tmp_path / "exp", stats)
    (run,) = read_runs(tmp_path / "exp")
    assert run.name == "exp" and run.losses == ["mel", "adv"]
    for stat in ("share", "norm", "scale", "ratio", "target"):
        for name, points in run.of(stat).items():
            logged = {step: row[f"{name}_{stat}"] for step, row in enumerate(stats)}
            assert points == pytest.approx(logged, rel=1e-6), (stat, name)
    assert list(run.of("cosine")) == ["adv, mel"]
    targets = {0: 0.0, 1: 0.5, 2: 2 / 3, 3: 0.75}
    assert run.targets()["adv"] == pytest.approx(targets)
    assert {row[2] for row in list(rows(run))[-8:]} == {"target"}
    draw([run])


def test_a_loop_that_logs_no_targets(stats, tmp_path):
    plain = [{k: v for k, v in row.items() if "target" not in k} for row in stats]
    by_summary_writer(tmp_path / "exp" / "version_0", plain)
    (run,) = read_runs(tmp_path / "exp")
    assert len(run.of("share")["mel"]) == 4 and run.targets() == {}
    draw([run])
    by_summary_writer(tmp_path / "exp" / "version_1", plain)
    with pytest.raises(ReportError, match="2 folders of events: name.*version_0"):
        read_runs(tmp_path / "exp")


def test_two_balancers_of_one_loop_are_two_runs(stats, tmp_path):
    with SummaryWriter(str(tmp_path / "exp")) as writer:
        for prefix in ("waves/", "codes/"):
            for name, value in stats[1].items():
                writer.add_scalar(prefix + name, value, 1)
    assert [run.name for run in read_runs(tmp_path / "exp")] == [
        "exp, waves",
        "exp, codes",
    ]


def test_targets_are_of_the_losses_in_the_call():
    y = torch.ones(2, 3, requires_grad=True)

    def call(names=("a", "b"), **options):
        balancer = Balancer(**options)
        losses = {name: y.square().mean() for name in names}
        _, stats = balancer(losses, y)
        with torch.no_grad():
            evaluated = balancer(losses, y)[1]
        assert targets(balancer, evaluated) == {}
        return targets(balancer, stats)

    weights = {"a": 1.0, "b": 3.0, "c": 0.0, "d": 4.0}
    assert call() == {"a_target": 0.5, "b_target": 0.5}
    expected = {"a_target": 0.25, "b_target": 0.75, "c_target": 0.0, "d_target": 0.0}
    assert call(("a", "b", "c"), weights=weights) == expected
    assert call(balance_grads=False) == {} == call(weighting="upgrad")


def test_folders_without_a_balancers_events(tmp_path):
    with pytest.raises(ReportError, match="none is missing"):
        read_runs(tmp_path / "none")
    with pytest.raises(ReportError, match="has no TensorBoard events: give"):
        read_runs(tmp_path)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("mel_share", 1.0, 1)
    with pytest.raises(ReportError, match="no stats of a balancer in them: log"):
        read_runs(tmp_path)


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
    assert targets({"weighting": "upgrad"}) == {}
