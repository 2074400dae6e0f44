"""The recipes of three trainers: one training, on one process and on two."""

import numpy as np
import pytest
import soundfile
import torch
from trainer_recipes import scalars, train, train_on_two

from balancer import Balancer

LOSSES = ["l1", "stft", "adv", "feat"]


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
    assert [len(values) for values in expected.values()] == [12] * (2 + 5 * len(LOSSES))
    assert expected["balancer/stft_share"][0] == pytest.approx(4 / 7, rel=1e-6)
    for trainer in ("pytorch", "accelerate", "lightning"):
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


def test_no_recordings(tmp_path):
    with pytest.raises(FileNotFoundError, match="(?s)0.125 s.*--wav_dir.*fetch_speech"):
        train("pytorch", tmp_path, tmp_path, epochs=1)
