"""TensorBoard's custom-scalars page, in a real training's events."""

import re
import shutil

import numpy as np
from mini_recipe import recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from balancer.espnet.task import BalancedGANCodecTask

TAG = "custom_scalars__config__"


def read(folder):
    """The charts that are written, title → regular expressions; and all scalars."""
    events = EventAccumulator(str(folder / "tensorboard" / "train")).Reload()
    layouts = events.Tensors(TAG)
    assert len(layouts) == 1
    layout = layout_pb2.Layout()
    layout.ParseFromString(np.asarray(layouts[0].tensor_proto.string_val).item())
    (page,) = layout.category
    charts = {chart.title: list(chart.multiline.tag) for chart in page.chart}
    return charts, events.Tags()["scalars"]


def shown(patterns, tags):
    return [tag for pattern in patterns for tag in tags if re.match(pattern, tag)]


def test_each_stat_has_a_chart_with_all_losses(trained):
    charts, tags = read(trained)
    losses = ["reconstruct", "adv", "feat_match", "mel", "mel_real"]
    assert len(charts) == 5 + 3
    for title, stat in {
        "Share of the balanced gradient": "share",
        "Share if nothing were balanced (ratio)": "ratio",
        "Gradient norm": "norm",
        "Scale": "scale",
        "Norm test": "norm_test",
        "Mean gradient signal-to-noise ratio": "mean_gsnr",
        "Critical batch size": "critical_batch_size",
    }.items():
        assert shown(charts[title], tags) == [f"{name}_{stat}" for name in losses]
    cosines = shown(charts["Cosine of two gradients"], tags)
    assert sorted(cosines) == sorted(tag for tag in tags if tag.endswith("_cosine"))
    assert len(cosines) == len(charts["Cosine of two gradients"]) == 10


def test_resumed_training_has_one_layout_of_what_it_reports(trained, train, tmp_path):
    shutil.copytree(trained, tmp_path / "more")
    config = {**recipe("soundstream"), "use_tensorboard": True, "max_epoch": 3}
    del config["balancer_conf"]["probe"]
    train(BalancedGANCodecTask, config, "more", "--resume", "true")
    charts, tags = read(tmp_path / "more")
    assert "Cosine of two gradients" not in charts and len(charts) == 4


def test_nothing_is_written_without_need(train):
    config = recipe("soundstream")
    config["use_tensorboard"] = True
    folder = train(BalancedGANCodecTask, config, "dry", "--dry_run", "true")
    assert not (folder / "tensorboard").exists()
    config["use_tensorboard"] = False
    folder = train(BalancedGANCodecTask, config, "off")
    assert not (folder / "tensorboard").exists()
