"""Real trainings of a VITS by ESPnet's own trainer."""

import shutil

import pytest
import soundfile
import torch
from espnet2.tasks.gan_tts import GANTTSTask
from espnet2.train import gan_trainer, trainer
from mini_recipe import checkpoint, same, tts_recipe

from balancer.espnet.tts import BalancedGANTTSTask
from balancer.loss_balancer.checkpoint import saved_in
from balancer.reports.runs import read_run

LOSSES = ["adv", "feat_match", "mel"]


def unbalanced(config):
    return {key: value for key, value in config.items() if "balancer" not in key}


def test_reports_and_what_is_saved(trained_tts):
    saved = checkpoint(trained_tts)
    balancer = saved_in(saved["optimizers"][0], "balancer")
    assert sorted(balancer["averages"]) == LOSSES and balancer["calls"] == 2
    assert saved_in(saved["optimizers"][1], "balancer") is None
    stock = GANTTSTask.build_model_from_file(str(trained_tts / "config.yaml"))[0]
    assert list(saved["model"]) == list(stock.state_dict())
    reported = saved["reporter"]["stats"][2]
    for name in LOSSES:
        for stat in ("norm", "share", "scale", "ratio", "norm_test"):
            assert reported["train"][f"{name}_{stat}"] > 0
            assert f"{name}_{stat}" not in reported["valid"]
        assert reported["train"][f"generator_{name}_loss"] > 0
    assert reported["train"]["outside_to_balanced"] > 0
    assert list(read_run(trained_tts).of("outside_to_balanced")) == [""]
    assert reported["train"]["mel_share"] == pytest.approx(0.25, abs=0.1)
    assert reported["train"]["generator_loss"] == pytest.approx(
        sum(
            reported["train"][f"generator_{name}_loss"]
            for name in (*LOSSES, "kl", "dur")
        ),
        rel=1e-5,
    )


def test_stock_inference_speaks(trained_tts, data, tmp_path):
    from espnet2.bin.tts_inference import main

    command = f"--train_config {trained_tts}/config.yaml --model_file "
    command += f"{trained_tts}/latest.pth --data_path_and_name_and_type "
    command += f"{data}/text,text,text --output_dir {tmp_path} --ngpu 0"
    main(cmd=command.split())
    waves = [soundfile.read(path)[0] for path in (tmp_path / "wav").glob("*.wav")]
    assert len(waves) == 2 and all(len(wave) >= 64 for wave in waves)


@pytest.mark.parametrize("task", [BalancedGANTTSTask, GANTTSTask])
def test_resumes(task, trained_tts, train, tmp_path):
    """By ours with the averages that were saved; ESPnet's keeps them as they were."""
    shutil.copytree(trained_tts, tmp_path / "more")
    config = {**tts_recipe(), "max_epoch": 3}
    if task is GANTTSTask:
        config = unbalanced(config)
    folder = train(task, config, "more", "--resume", "true")
    saved = checkpoint(folder)
    assert saved["reporter"]["epoch"] == 3
    calls = saved_in(saved["optimizers"][0], "balancer")["calls"]
    assert calls == (3 if task is BalancedGANTTSTask else 2)


def test_balancer_none_is_stock_espnet_to_the_bit(train):
    config = tts_recipe()
    stock = checkpoint(train(GANTTSTask, unbalanced(config), "stock"))
    config["balancer"] = "none"
    none = checkpoint(train(BalancedGANTTSTask, config, "none"))
    assert same(stock["model"], none["model"])
    assert same(stock["optimizers"], none["optimizers"])


def test_use_amp(train, monkeypatch):
    """ESPnet's mixed precision is CUDA's; here its names stand for the CPU's.

    The losses have names of the recipe's own, too.
    """

    class GradScaler(trainer.GradScaler):
        def __init__(self):
            torch.amp.GradScaler.__init__(self, "cpu")

    def autocast(enabled):
        return torch.autocast("cpu", torch.float16, enabled)

    monkeypatch.setattr(gan_trainer, "autocast", autocast)
    monkeypatch.setattr(trainer, "GradScaler", GradScaler)
    config = tts_recipe()
    losses = {"gan": "generator_adv_loss", "features": "feat_match_loss"}
    losses["spectrum"] = "mel_loss"
    config["balancer_conf"].update(
        losses=losses,
        weights=dict.fromkeys(losses, 1.0),
        update_every=2,
        ema_decay=0.0,
    )
    config["max_epoch"] = 2
    half = checkpoint(train(BalancedGANTTSTask, {**config, "use_amp": True}, "half"))
    whole = checkpoint(train(BalancedGANTTSTask, config, "whole"))
    states = [saved_in(c["optimizers"][0], "balancer") for c in (half, whole)]
    norms, expected = (state["norms"] for state in states)
    assert half["scaler"]["scale"] >= 1.0
    assert set(norms) == set(losses)
    # The log-mel gradient of a waveform near zero hangs on float16's rounding of it.
    assert 0.25 < norms.pop("spectrum") / expected.pop("spectrum") < 4
    assert norms == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"losses": {"stft": "stft_loss"}}, "'stft_loss', which is no module.*VITS"),
        ({"losses": {"mel": "mel_loss"}}, "names 'adv', which is no loss of this VITS"),
        ({"probe": {"layer": "generator.decoder.x"}}, "no module of this VITS"),
        ({"outside_every": 0}, "outside_every must be a whole number.*but is 0"),
        ({"outside_every": True}, "outside_every must be.*but is True"),
    ],
)
def test_bad_section_is_refused_before_training(change, message, train):
    config = tts_recipe()
    config["balancer_conf"].update(change)
    with pytest.raises(ValueError, match=message):
        train(BalancedGANTTSTask, config, "refused")


def test_a_loss_left_unbalanced_is_refused_in_the_first_turn(train):
    config = tts_recipe()
    losses = {"mel": "mel_loss"}
    config["balancer_conf"].update(losses=losses, weights={"mel": 1.0})
    with pytest.raises(ValueError, match="not among.*VITS has.*'feat_match_loss'"):
        train(BalancedGANTTSTask, config, "refused")
