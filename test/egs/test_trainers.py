"""The recipes of three trainers: one training, on one process and on two."""

import resource
import sys

import numpy as np
import pytest
import soundfile
import torch
from trainer_recipes import EGS, scalars, train, train_on_two

from balancer import Balancer

LOSSES = ["l1", "stft", "adv", "feat"]
TRAINERS = ["pytorch", "accelerate", "lightning"]


@pytest.fixture(scope="module")
def wav_dir(tmp_path_factory):
    """Two recordings, of 13 segments in all: 6 steps an epoch, or 3 on two ranks."""
    folder = tmp_path_factory.mktemp("recordings")
    random = np.random.default_rng(0)
    for rate, channels, samples in ((16000, 1, 4608), (8000, 2, 2560)):
        tone = np.sin(2 * np.pi * 150 * np.arange(samples) / rate)
        wave = tone[:, None] + 0.1 * random.standard_normal((samples, channels))
        swell = np.linspace(0.05, 0.5, samples)[:, None]
        soundfile.write(folder / f"{rate}.wav", swell * wave, rate)
    return folder


def assert_same(found, expected, rel):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=rel), name


def test_resumed_equals_the_uninterrupted_plain_loop(wav_dir, tmp_path):
    """In bfloat16. What a checkpoint lacked would show in the second epoch."""
    train("pytorch", wav_dir, tmp_path / "whole", epochs=2, amp="bfloat16")
    expected = scalars(tmp_path / "whole")
    assert [len(values) for values in expected.values()] == [12] * (2 + 7 * len(LOSSES))
    assert expected["balancer/stft_share"][0] == pytest.approx(4 / 7, rel=1e-6)
    assert expected["balancer/stft_target"][0] == pytest.approx(4 / 7, rel=1e-6)
    for trainer in TRAINERS:
        for epochs in (1, 2):
            train(trainer, wav_dir, tmp_path / trainer, epochs, amp="bfloat16")
        assert_same(scalars(tmp_path / trainer), expected, rel=1e-5)


def test_the_same_on_two_processes(wav_dir, tmp_path):
    """Accelerate deals the batch to the ranks in another order."""
    train_on_two("pytorch", wav_dir, tmp_path / "whole", epochs=2)
    expected = scalars(tmp_path / "whole")
    assert len(expected["loss/l1"]) == 6
    for trainer in ("accelerate", "lightning"):
        for epochs in (1, 2):
            train_on_two(trainer, wav_dir, tmp_path / trainer, epochs)
        assert_same(scalars(tmp_path / trainer), expected, rel=1e-4)


def test_float16_with_a_grad_scaler(wav_dir, tmp_path):
    """It begins as float32 does; the scaler backs off from 2^16 and is saved."""
    for name, amp in (("whole", None), ("half", "float16")):
        train("pytorch", wav_dir, tmp_path / name, epochs=1, amp=amp)
    half = scalars(tmp_path / "half")
    for name, values in scalars(tmp_path / "whole").items():
        assert half[name][0] == pytest.approx(values[0], rel=0.01), name
    assert np.isfinite(list(half.values())).all()
    saved = torch.load(tmp_path / "half" / "checkpoint.pt", weights_only=True)
    assert saved["scaler"]["scale"] < 2.0**16


def test_averages_are_saved_with_a_wrapped_optimizer():
    """Accelerate and Lightning save and load the optimizer that they wrapped."""
    from accelerate import Accelerator
    from lightning.pytorch.core.optimizer import LightningOptimizer

    y = torch.ones(1, 2, requires_grad=True)
    for wrap in (Accelerator(cpu=True).prepare_optimizer, LightningOptimizer):
        saving, loading = Balancer(), Balancer()
        saving({"loss": y.square().sum()}, y)
        first, second = (torch.optim.Adam([y]) for _ in range(2))
        saving.checkpoint_with(wrap(first))
        loading.checkpoint_with(wrap(second))
        second.load_state_dict(first.state_dict())
        assert loading.state_dict() == saving.state_dict() != Balancer().state_dict()


def ends(capsys, *arguments, **options):
    """Return what a training says that ends at once."""
    with pytest.raises(SystemExit) as end:
        train(*arguments, **options)
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err and "epoch 1" not in shown.out
    return shown.err


def test_no_recordings(tmp_path, capsys):
    folder = tmp_path / "a folder"
    fetch = f"fetch_speech.py '{folder}'"
    said = ends(capsys, "pytorch", folder, tmp_path, epochs=1)
    assert "no recording of 0.125 s or more. " in said
    assert "--wav_dir" in said and fetch in said
    folder.mkdir()
    (folder / "bad.wav").write_text("no audio")
    said = ends(capsys, "pytorch", folder, tmp_path, epochs=1)
    assert "lines above say what is wrong" in said and "--debug" not in said


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_batch_that_the_data_cannot_fill(trainer, wav_dir, tmp_path, capsys):
    said = ends(capsys, trainer, wav_dir, tmp_path, 1, batch_size="14")
    assert "--batch_size 14 is more than the data have, 13 segments: take 13" in said
    assert not list(tmp_path.glob("*c*pt*"))


def test_wrong_options(wav_dir, tmp_path, capsys):
    for trainer, option, value, expected in (
        ("pytorch", "seed", "abc", "'abc' is not a whole number, as 0 is"),
        ("pytorch", "lr", "fast", "'fast' is not a number, as 0.001 is"),
        ("pytorch", "codec", "[1]", "'[1]' is not a section of YAML"),
        ("pytorch", "amp", "foo", "invalid choice: 'foo'"),
        ("accelerate", "mixed_precision", "b", "invalid choice: 'b'"),
    ):
        said = ends(capsys, trainer, wav_dir, tmp_path, 1, **{option: value})
        assert f"argument --{option}: {expected}" in said
    missing = str(tmp_path / "no.yaml")
    assert missing in ends(capsys, "pytorch", wav_dir, tmp_path, 1, config=missing)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_checkpoint_survives_a_full_disk(trainer, wav_dir, tmp_path, capsys):
    """Files may grow to less than a checkpoint; then there is room again."""
    train(trainer, wav_dir, tmp_path, epochs=1)
    assert "epoch 1/1" in capsys.readouterr().out
    saved = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if is_state(p)}
    assert saved
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(map(len, saved.values()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, limits[1]))
    try:
        with pytest.raises(SystemExit):
            train(trainer, wav_dir, tmp_path, epochs=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in saved} == saved
    capsys.readouterr()
    train(trainer, wav_dir, tmp_path, epochs=2)
    shown = capsys.readouterr().out
    assert "goes on after epoch 1 of 2" in shown and "epoch 2/2" in shown
    train(trainer, wav_dir, tmp_path, epochs=2)
    shown = capsys.readouterr().out
    assert "has 2 epochs already" in shown and "epoch 2/2" not in shown
    assert not [path for path in tmp_path.rglob("*.part")]


def is_state(path):
    return path.suffix in {".pt", ".ckpt", ".safetensors", ".bin", ".pkl"}


def test_a_kill_between_two_renamings_leaves_a_checkpoint(tmp_path):
    sys.path.append(str(EGS / "shared"))
    from small_training import folder_beside, resumable

    checkpoint = tmp_path / "checkpoint"
    assert resumable(checkpoint) == checkpoint
    for text in ("first", "second"):
        with folder_beside(checkpoint) as folder:
            (folder / "state").write_text(text)
    assert (resumable(checkpoint) / "state").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    checkpoint.rename(tmp_path / "checkpoint.old")
    assert (resumable(checkpoint) / "state").read_text() == "second"
