"""The LibriTTS recipe: its full-size models, its data and its stages."""

import functools

import numpy as np
import pytest
import soundfile
import torch
import yaml
from run_sh import EGS
from run_sh import run as run_sh

RECIPE = EGS / "libritts" / "codec1"
run = functools.partial(run_sh, "libritts")
CODECS = ["soundstream", "encodec", "dac", "funcodec"]
PARTS = ["train-clean-100", "train-other-500", "dev-clean", "test-clean"]


def tone(path, seconds, rate=24000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(seconds * rate)) / rate
    wave = 0.1 * np.sign(np.sin(2 * np.pi * 120 * time))
    soundfile.write(path, np.stack([wave] * channels, axis=1), rate)
    return path


@pytest.fixture
def libritts(tmp_path):
    """A folder laid out like LibriTTS, three tones in each of its parts."""
    corpus = tmp_path / "Libri TTS"
    for i, part in enumerate(PARTS):
        for number, seconds in enumerate([0.7, 0.5, 0.1]):
            name = f"{i}_7_{number:06d}_000000"
            tone(corpus / part / str(i) / "7" / f"{name}.wav", seconds)
            text = corpus / part / str(i) / "7" / f"{name}.normalized.txt"
            text.write_text("Not audio.\n")
    return corpus


@pytest.fixture
def small(tmp_path):
    """SoundStream's configuration with a small model and short chunks."""
    config = yaml.safe_load((RECIPE / "conf" / "train_soundstream.yaml").read_text())
    codec = config["codec_conf"]
    codec["generator_params"].update(
        hidden_dim=16,
        encdec_n_filters=2,
        encdec_n_residual_layers=1,
        encdec_lstm=1,
        quantizer_n_q=2,
        quantizer_bins=16,
        quantizer_target_bandwidth=[0.6],
    )
    discriminator = codec["discriminator_params"]
    discriminator["scales"] = 1
    discriminator["scale_discriminator_params"].update(
        channels=16, max_downsample_channels=16
    )
    discriminator["complexstft_discriminator_params"]["channels"] = 2
    codec["mel_loss_params"].update(range_end=8, n_mels=10)
    config.update(chunk_length=4800, num_workers=0, batch_size=2, log_interval=1)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def lines(folder, name):
    text = (folder / name).read_text()
    return dict(line.split(maxsplit=1) for line in text.splitlines())


@pytest.mark.parametrize("codec", CODECS)
def test_full_size_model_steps(codec, tmp_path):
    from balancer.espnet.task import BalancedGANCodecTask

    conf = RECIPE / "conf" / f"train_{codec}.yaml"
    args = BalancedGANCodecTask.get_parser().parse_args(
        ["--config", str(conf), "--output_dir", str(tmp_path)]
    )
    torch.manual_seed(0)
    model = BalancedGANCodecTask.build_model(args).train()
    optimizers = BalancedGANCodecTask.build_optimizers(args, model)
    parameters = sum(p.numel() for p in model.codec.generator.parameters())
    assert 15e6 < parameters < 40e6
    # A whole number of frames, or the decoder gives back more.
    audio = 0.1 * torch.randn(1, 2560)
    for turn, module in enumerate([model.codec.generator, model.codec.discriminator]):
        before = [p.detach().clone() for p in module.parameters()]
        result = model(audio=audio, forward_generator=turn == 0)
        assert result["optim_idx"] == turn and result["loss"].isfinite()
        optimizers[turn].zero_grad()
        result["loss"].backward()
        optimizers[turn].step()
        after = list(module.parameters())
        assert any(not torch.equal(a, b) for a, b in zip(before, after))
        assert all(p.isfinite().all() for p in after)
        if turn == 0:
            shares = {
                name: float(result["stats"][f"{name}_share"])
                for name in args.balancer_conf["weights"]
            }
            total = sum(args.balancer_conf["weights"].values())
            for name, weight in args.balancer_conf["weights"].items():
                assert shares[name] == pytest.approx(weight / total, rel=1e-3)
            assert result["stats"]["adv_mel_cosine"].isfinite()


def test_all_stages_on_a_folder_like_libritts(libritts, small, tmp_path):
    """Data, a training that is shortened on the command line, decoding, the reports."""
    result = run(
        *("--libritts", libritts, "--config", small, "--ngpu", 0),
        *("--data_dir", tmp_path / "data", "--exp_dir", tmp_path / "exp"),
        *("--tag", "try", "--train_args", "--max_epoch 1 --num_iters_per_epoch 2"),
    )
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    short = " shorter than 0.20 s: "
    assert f"{short}{libritts}/train-clean-100/0/7/0_7_000002_000000.wav" in log
    assert log.count(short) == 2  # of train and of valid: the test takes anything
    train, test = tmp_path / "data" / "train", tmp_path / "data" / "test"
    assert sorted(lines(train, "wav.scp")) == [
        *("0_7_000000_000000", "0_7_000001_000000"),
        *("1_7_000000_000000", "1_7_000001_000000"),
    ]
    # Nothing was copied.
    original = libritts / "train-clean-100" / "0" / "7" / "0_7_000000_000000.wav"
    assert lines(train, "wav.scp")["0_7_000000_000000"] == str(original)
    assert lines(train, "utt2num_samples")["0_7_000000_000000"] == "16800"
    assert not list((train / "wav").iterdir())
    assert len(lines(test, "wav.scp")) == 3
    exp = tmp_path / "exp" / "try"
    assert "mel_share=" in (exp / "train.log").read_text()
    decoded = {path.stem: path for path in (exp / "decode" / "wav").glob("*.wav")}
    assert sorted(decoded) == sorted(lines(test, "wav.scp"))
    assert soundfile.info(decoded["3_7_000000_000000"]).samplerate == 24000
    assert (exp / "balance.txt").read_text().count("\n") == 6
    assert (exp / "balance.png").stat().st_size > 10000


def test_any_folder(small, tmp_path):
    """What ESPnet can read as it is stays where it is, the rest is converted."""
    recordings = tmp_path / "in"
    for i in range(21):
        tone(recordings / f"r{i:02d}.wav", 0.5)
    tone(recordings / "r03.wav", 0.5, rate=48000)
    tone(recordings / "r04.wav", 0.5, channels=2)
    tone(recordings / "r05.wav", 0.5).rename(recordings / "r05.flac")
    tone(recordings / "r06.ogg", 0.5)
    (recordings / "r06.wav").unlink()
    # It would be for validation, were it not checked before.
    (recordings / "r00.wav").write_text("no audio")
    result = run(
        *("--wav_dir", recordings, "--config", small, "--stop_stage", 1),
        *("--data_dir", tmp_path / "data"),
    )
    assert result.returncode == 0, result.stderr
    folders = {x: tmp_path / "data" / x for x in ("train", "valid", "test")}
    parts = {x: sorted(lines(folder, "wav.scp")) for x, folder in folders.items()}
    assert parts["valid"] == ["r01"] and parts["test"] == ["r11"]
    expected = {f"r{i:02d}" for i in range(1, 21)} - {"r01", "r11"}
    assert set(parts["train"]) == expected
    assert "left out, not readable: " in result.stderr and "r00.wav" in result.stderr
    written = {path.stem for path in (folders["train"] / "wav").iterdir()}
    assert written == {"r03", "r04", "r06"}
    sizes = lines(folders["train"], "utt2num_samples")
    for name, path in lines(folders["train"], "wav.scp").items():
        wave, rate = soundfile.read(path)
        assert rate == 24000 and wave.shape == (int(sizes[name]),)
        assert len(wave) == pytest.approx(12000, abs=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "stage 1 needs --libritts or --wav_dir"),
        (["--libritt", "."], "unknown option: --libritt"),
        (["--libritts"], "--libritts needs a value"),
        (["--libritts", "--codec"], "--libritts needs a value"),
        (["--libritts", "/no/such/folder"], "no folder: /no/such/folder"),
        (["--libritts", ".", "--wav_dir", "."], "exclude each other"),
        (["--wav_dir", ".", "--codec", "opus"], "unknown codec: opus"),
        (["--wav_dir", ".", "--stage", "0"], "--stage is 1 to 4, not 0"),
        (["--wav_dir", ".", "--ngpu", "all"], "--ngpu is a number, not all"),
        (["--stage", "2", "--ngpu", "2", "--launcher", "torchrun"], "leave --ngpu 2"),
    ],
)
def test_bad_option_gets_a_usage_line(options, message):
    result = run(*options)
    assert result.returncode == 2
    assert message in result.stderr and "Usage: run.sh" in result.stderr


def test_folder_that_is_not_libritts(tmp_path):
    (tmp_path / "in").mkdir()
    folders = ("--libritts", tmp_path / "in", "--data_dir", tmp_path / "data")
    result = run(*folders, "--ngpu", 0)
    assert result.returncode == 2
    assert "none of the folders train-clean-100" in result.stderr
    assert "--wav_dir" in result.stderr
