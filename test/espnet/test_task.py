"""Real trainings by ESPnet's own trainer."""

import logging
import subprocess
import sys

import pytest
import torch
import yaml
from espnet2.tasks.gan_codec import GANCodecTask
from espnet2.train import gan_trainer, trainer
from mini_recipe import CODECS, checkpoint, recipe, same

from balancer.espnet.task import BalancedGANCodecTask
from balancer.loss_balancer.checkpoint import saved_in


def unbalanced(config):
    return {key: value for key, value in config.items() if "balancer" not in key}


@pytest.mark.parametrize("codec", CODECS)
def test_trains_and_stock_inference_decodes(codec, train, decode):
    config = recipe(codec)
    folder = train(BalancedGANCodecTask, config, "balanced")
    saved = checkpoint(folder)
    balancer = saved_in(saved["optimizers"][0], "balancer")
    assert set(balancer["averages"]) == set(config["balancer_conf"]["weights"])
    assert balancer["calls"] == 2
    assert saved_in(saved["optimizers"][1], "balancer") is None
    stock = GANCodecTask.build_model_from_file(str(folder / "config.yaml"))[0]
    assert list(saved["model"]) == list(stock.state_dict())
    waves = decode(folder)
    assert len(waves) == 2 and all(abs(len(wave) - 9600) < 640 for wave in waves)


def test_resumed_equals_uninterrupted(train):
    config = recipe("soundstream")
    whole = train(BalancedGANCodecTask, {**config, "max_epoch": 2}, "whole")
    train(BalancedGANCodecTask, config, "parts")
    parts = train(
        BalancedGANCodecTask, {**config, "max_epoch": 2}, "parts", "--resume", "true"
    )
    whole, parts = checkpoint(whole), checkpoint(parts)
    assert saved_in(parts["optimizers"][0], "balancer")["calls"] == 4
    assert same(whole["model"], parts["model"])
    assert same(whole["optimizers"], parts["optimizers"])


@pytest.mark.parametrize("codec", CODECS)
def test_use_amp(codec, train, monkeypatch):
    """ESPnet's mixed precision is CUDA's; here its two names stand for the CPU's."""

    class GradScaler(trainer.GradScaler):
        def __init__(self):
            torch.amp.GradScaler.__init__(self, "cpu")

    def autocast(enabled):
        return torch.autocast("cpu", torch.float16, enabled)

    monkeypatch.setattr(gan_trainer, "autocast", autocast)
    monkeypatch.setattr(trainer, "GradScaler", GradScaler)
    config = recipe(codec)
    config["balancer_conf"].update(update_every=2, ema_decay=0.0)
    # ESPnet's exchange of dead codes fails in float16, balanced or not.
    config["codec_conf"]["generator_params"]["quantizer_threshold_ema_dead_code"] = 0
    half = checkpoint(train(BalancedGANCodecTask, {**config, "use_amp": True}, "half"))
    whole = checkpoint(train(BalancedGANCodecTask, config, "whole"))
    norms, expected = (
        saved_in(c["optimizers"][0], "balancer")["norms"] for c in (half, whole)
    )
    assert half["scaler"]["scale"] >= 1.0
    # The mel loss's gradient grows without bound where it is quiet, and so do errors.
    assert norms == pytest.approx(expected, rel=0.3)


def test_data_parallel_is_refused(train):
    """It is what ESPnet's default comes to; the message names the option."""
    way_out = "--ngpu 2 .* set --multiprocessing_distributed true"
    with pytest.raises(ValueError, match=way_out):
        train(BalancedGANCodecTask, recipe("soundstream"), "two", "--ngpu", "2")


def test_balancer_none_is_stock_espnet_to_the_bit(train):
    config = recipe("soundstream")
    stock = checkpoint(train(GANCodecTask, unbalanced(config), "stock"))
    none = checkpoint(
        train(BalancedGANCodecTask, {**config, "balancer": "none"}, "none")
    )
    assert same(stock["model"], none["model"])
    assert same(stock["optimizers"], none["optimizers"])
    balanced = checkpoint(train(BalancedGANCodecTask, config, "balanced"))
    assert not same(stock["model"], balanced["model"])


def test_stock_training_resumes_from_a_balanced_one(train):
    config = recipe("soundstream")
    folder = train(BalancedGANCodecTask, config, "mixed")
    more = {**unbalanced(config), "max_epoch": 2}
    train(GANCodecTask, more, "mixed", "--resume", "true")
    saved = checkpoint(folder)
    assert saved["reporter"]["epoch"] == 2
    assert saved_in(saved["optimizers"][0], "balancer")["calls"] == 2  # as it was


def test_command_line_and_reports(data, tmp_path):
    """The command as a user types it: options, log lines, images, TensorBoard."""
    config = unbalanced(recipe("soundstream"))
    config.update(use_matplotlib=True, use_tensorboard=True)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    parts = [
        f"--{part}_{what}"
        for part in ("train", "valid")
        for what in (
            f"data_path_and_name_and_type={data}/wav.scp,audio,sound",
            f"shape_file={data}/utt2num_samples",
        )
    ]
    options = ["--balancer", "grad_norm", "--balancer_conf", "ema_decay=0.5"]
    options += ["--balancer_conf", "epsilon=1e-9", "--balancer_conf", "total_norm=1000"]
    options += ["--ngpu", "0"]
    run = subprocess.run(
        [sys.executable, "-m", "balancer.bin.gan_codec_train", *options, *parts]
        + ["--config", f"{tmp_path}/c.yaml", "--output_dir", f"{tmp_path}/exp"],
        capture_output=True,
        text=True,
    )
    log = run.stderr + run.stdout
    assert run.returncode == 0, log
    lines = [line for line in log.splitlines() if "mel_share=" in line]
    assert lines and all("adv_scale=" in line for line in lines), log
    assert "missing" not in log and "not found" not in log.lower()
    assert not [line for line in log.splitlines() if "WARNING" in line], log
    images = {path.name for path in (tmp_path / "exp" / "images").iterdir()}
    assert {"mel_share.png", "adv_norm.png", "mel_real_ratio.png"} <= images
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "exp" / "tensorboard" / "train"))
    tags = events.Reload().Tags()["scalars"]
    assert any("mel_share" in tag for tag in tags), tags
    saved = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    assert saved["balancer"] == "grad_norm"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ema_decai": 0.9}, "'ema_decai'.*'ema_decay'"),
        ({"weights": {"mel": 1.0}}, "lacks 'reconstruct'"),
        ({"ema_decay": 2}, "ema_decay.*2"),
    ],
)
def test_bad_section_is_refused_before_training(change, message, train):
    config = recipe("soundstream")
    config["balancer_conf"] = {**config["balancer_conf"], **change}
    with pytest.raises(ValueError, match=message):
        train(BalancedGANCodecTask, config, "refused")


def test_idle_lambda_is_warned_of_once(train, caplog):
    config = recipe("soundstream")
    config["codec_conf"]["lambda_mel"] = 45.0
    with caplog.at_level(logging.WARNING):
        train(BalancedGANCodecTask, {**config, "max_epoch": 2}, "idle")
    assert sum("lambda_mel: 45.0" in record.message for record in caplog.records) == 1
