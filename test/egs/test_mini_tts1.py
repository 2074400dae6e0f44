"""The mini recipe of a speech synthesizer, as a user types it."""

import functools

import numpy as np
import pytest
import soundfile
from run_sh import run as run_sh

run = functools.partial(run_sh, "mini", task="tts1")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--codec", "dac"], "unknown option: --codec"),
        (["--stage", "9"], "--stage is 1 to 4, not 9"),
        (["--wav_dir", "/no/such/folder"], "no folder: /no/such/folder"),
    ],
)
def test_bad_option_gets_a_usage_line(options, message):
    result = run(*options)
    assert result.returncode == 2
    assert message in result.stderr and "Usage: run.sh" in result.stderr


def record(folder, said, seconds=1.0):
    """Write a.wav, b.wav … of another rate, with the texts that there are."""
    folder.mkdir()
    time = np.arange(int(22050 * seconds)) / 22050
    for name, text in said.items():
        wave = 0.1 * np.sign(np.sin(2 * np.pi * 120 * time))
        soundfile.write(folder / f"{name}.wav", wave, 22050)
        if text is not None:
            (folder / f"{name}.txt").write_text(text)


def test_all_stages_on_recordings_with_texts(tmp_path):
    """Training, stock inference that speaks, the table and the picture."""
    said = {"a": "Held out.", "b": "It's\nHERE, one", "c": "another 1", "d": None}
    record(tmp_path / "in", {**said, "e": "4 5"})
    options = ["--wav_dir", tmp_path / "in", "--data_dir", tmp_path / "data"]
    options += ["--exp_dir", tmp_path / "exp", "--tag", "try", "--train_args"]
    quick = "--use_matplotlib false --use_tensorboard false --num_iters_per_epoch 1"
    result = run(*options, f"--max_epoch 1 {quick}")
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    assert "left out, without a text: " in log and "d.wav" in log and "e.wav" in log
    texts = (tmp_path / "data/train/text").read_text().splitlines()
    assert texts == ["b it's here one", "c another"]
    assert (tmp_path / "data/valid/text").read_text() == "a held out\n"
    assert "epoch 1/1" in log and "validation generator_mel_loss" in log
    exp = tmp_path / "exp" / "try"
    (spoken,) = (exp / "decode" / "wav").glob("*.wav")
    assert len(soundfile.read(spoken)[0]) > 1000
    table = (exp / "balance.txt").read_text().splitlines()
    names = [line.split()[0] for line in table[1:]]
    assert names == ["adv", "feat_match", "mel"]
    assert [float(line.split()[2]) for line in table[1:]] == [0.25, 0.5, 0.25]
    assert (exp / "balance.png").read_bytes().startswith(b"\x89PNG")


def test_one_recording_is_not_enough(tmp_path):
    record(tmp_path / "in", {"a": "alone"})
    folders = ["--wav_dir", tmp_path / "in", "--data_dir", tmp_path / "data"]
    result = run(*folders, "--stop_stage", 1)
    assert result.returncode != 0 and "has not two recordings" in result.stderr
    assert not (tmp_path / "data" / "train").exists()
