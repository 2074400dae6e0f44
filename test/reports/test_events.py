"""What a folder of TensorBoard's events is read as."""

import math

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from balancer.reports.events import read_events


def train(folder, steps, value, prefix="", epoch_every=0, every=1, begin=0):
    """Write as a trainer does, every so many steps after the one called begin.

    A value is `value` + its step / 1000, an epoch's mean -1.
    """
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            if (step - begin) % every == 0:
                write(writer, prefix, step, value + step / 1000)
            if epoch_every and step % epoch_every == 0:
                writer.add_scalar("iter_epoch", step // epoch_every, step)
                write(writer, prefix, step, -1.0)


def write(writer, prefix, step, value):
    for tag in ("mel_share", "mel_scale", "lr"):
        writer.add_scalar(prefix + tag, value, step)


def shares(folder, prefix=""):
    """Step → the value that it was written with, without its step."""
    points = read_events(folder)[prefix]["mel_share"]
    return {step: round(value - step / 1000, 4) for step, value in points.items()}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("prefix", ["", "balancer/"])
def test_a_training_started_anew_replaces_the_old(tmp_path, prefix, first):
    train(tmp_path, range(first, 31), 0.0, prefix)
    train(tmp_path, range(first, 11), 1.0, prefix)
    assert shares(tmp_path, prefix) == dict.fromkeys(range(first, 11), 1.0)
    # Also with another interval, and with one interval alone.
    train(tmp_path, range(first, 31), 2.0, prefix, every=10)
    every_10th = [step for step in (0, 10, 20, 30) if step >= first]
    assert shares(tmp_path, prefix) == dict.fromkeys(every_10th, 2.0)
    train(tmp_path, range(first, 11), 3.0, prefix, every=10)
    assert shares(tmp_path, prefix) == dict.fromkeys(every_10th[:-2], 3.0)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_resumed_training_is_drawn_whole(tmp_path, every):
    """What was done again after the checkpoint at step 10 replaces what came first."""
    train(tmp_path, range(1, 15), 0.0)
    train(tmp_path, range(11, 31), 1.0, every=every, begin=10)
    later = {step: 1.0 for step in range(11, 31) if (step - 10) % every == 0}
    assert shares(tmp_path) == {**dict.fromkeys(range(1, 11), 0.0), **later}
    train(tmp_path, range(31, 32), 2.0)
    assert shares(tmp_path)[31] == 2.0 and shares(tmp_path)[1] == 0.0
    train(tmp_path, range(1, 4), 3.0)
    assert shares(tmp_path) == dict.fromkeys(range(1, 4), 3.0)


def test_trainings_that_share_a_writer(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for value, steps in ((0.0, range(9)), (1.0, range(5)), (2.0, range(3, 8))):
            for step in steps:
                write(writer, "", step, value + step / 1000)
    earlier, later = dict.fromkeys(range(3), 1.0), dict.fromkeys(range(3, 8), 2.0)
    assert shares(tmp_path) == {**earlier, **later}


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_epochs_last_step_has_its_own_value(tmp_path, epochs):
    """Not the epoch's mean, nor that of a training before."""
    train(tmp_path, range(1, 31), 0.0, epoch_every=10)
    train(tmp_path, range(1, 10 * epochs + 1), 1.0, epoch_every=10)
    assert shares(tmp_path) == dict.fromkeys(range(1, 10 * epochs + 1), 1.0)
    train(tmp_path, range(1, 31), 2.0, epoch_every=10, every=99)
    means = read_events(tmp_path)[""]["mel_share"]
    assert means == {10: -1.0, 20: -1.0, 30: -1.0}


def test_what_else_is_written_there_changes_nothing(tmp_path):
    """Another writer, of other tags with steps of their own, and broken files."""
    train(tmp_path, range(1, 21), 0.0, "balancer/")
    with SummaryWriter(str(tmp_path)) as writer:
        for epoch in range(1, 3):
            writer.add_scalar("valid/loss", 1.0, epoch)
            writer.add_scalar("market_share", 1.0, epoch)
            writer.add_text("balancer/mel_share", "text", epoch)
            writer.add_scalar("balancer/mel_share", math.nan, 20 + epoch)
    (whole,) = sorted(tmp_path.glob("*tfevents*"))[:1]
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) - 7])
    (tmp_path / "events.out.tfevents.garbage").write_bytes(b"garbage" * 99)
    (tmp_path / "events.out.tfevents.empty").write_bytes(b"")
    found = read_events(tmp_path)
    assert list(found) == ["balancer/"]
    points = found["balancer/"]["mel_share"]
    assert list(points) == list(range(1, 23))
    assert math.isnan(points[22]) and points[20] == pytest.approx(0.02)


def test_each_balancer_has_its_own_prefix(tmp_path):
    train(tmp_path, range(1, 4), 0.0, "gen/")
    train(tmp_path, range(1, 4), 1.0, "deep/dec/")
    assert shares(tmp_path, "gen/") == dict.fromkeys(range(1, 4), 0.0)
    assert shares(tmp_path, "deep/dec/") == dict.fromkeys(range(1, 4), 1.0)


def test_lightnings_names_of_steps_and_epochs(tmp_path):
    """A tag by step and by epoch has two names, and steps count both optimizers'."""
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 20, 2):
            for tag in ("b/mel_share", "b/mel_scale"):
                writer.add_scalar(f"{tag}_step", step, step)
        writer.add_scalar("b/mel_share_epoch", 0.5, 19)
        writer.add_scalar("b/mel_scale_epoch", 0.5, 19)
    points = read_events(tmp_path)["b/"]["mel_share"]
    assert points == {step: step for step in range(1, 20, 2)}


def test_both_forms_of_a_scalar_and_no_tensor_of_several(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for step, form in enumerate(({}, {"new_style": True}), 1):
            for precise in (False, True):
                for tag in ("mel_share", "mel_scale"):
                    writer.add_scalar(
                        tag, 0.5, 2 * step + precise, double_precision=precise, **form
                    )
        writer.add_pr_curve("mel_share", np.ones(3), np.ones(3), 9)
    assert read_events(tmp_path)[""]["mel_share"] == dict.fromkeys(range(2, 6), 0.5)
