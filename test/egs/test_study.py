"""The study, in a small way: real trainings, results, a report; the others' rules."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from run_sh import EGS

STUDY = EGS / "study"
sys.path.append(str(STUDY))

import study  # noqa: E402
import study_conditions as conditions  # noqa: E402
import study_data  # noqa: E402
import study_plan as plan  # noqa: E402
from study_cells import versus  # noqa: E402
from study_report import section, write  # noqa: E402
from study_results import Results  # noqa: E402
from study_statistics import paired  # noqa: E402
from study_train import Training  # noqa: E402
from study_values import Values  # noqa: E402
from study_ways import Audiocraft, Espnet, GradNorm, Uncertainty, make_way  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "data" / "audiocraft_balancer.json"
NAMES = ["l1", "adv"]


def run_study(folder, command):
    argv = [command, "--quick", "--wav_dir", folder / "wav", "--exp_dir", folder]
    study.main([str(word) for word in argv])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Trainings of a few steps, on modulated noise."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "wav").mkdir()
    rng = np.random.default_rng(0)
    time = np.arange(35000) / 16000
    for i in range(3):
        wave = rng.normal(0, 0.1, len(time)) * (1 + np.sin(2 * np.pi * (3 + i) * time))
        soundfile.write(folder / "wav" / f"{i}.wav", wave, 16000)
    soundfile.write(folder / "wav" / "silence.wav", np.zeros(35000), 16000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", "")  # main sets it for its processes
        run_study(folder, "train")
        yield folder


def test_trains_scores_and_reports(folder):
    found = Results(folder / "results.jsonl").read()
    assert list(found)[0] == conditions.BASE and len(found) == len(plan.quick()) == 3
    for result in found.values():
        assert {"stoi", "snr", "mr_stft", "codes"} <= set(result["scores"])
        assert all(math.isfinite(x) for x in result["scores"].values())
        assert sum(result["shares"]["late"].values()) == pytest.approx(1, abs=1e-3)
    # The sum's factors come from the base's norms.
    matched = found[conditions.key_of("sum, matched factors", 0)]["way"]["factors"]
    norms, whole = found[conditions.BASE]["norms"], sum(conditions.WEIGHTS.values())
    for name, weight in conditions.WEIGHTS.items():
        expected = weight / whole / norms[name]
        assert matched[name] == pytest.approx(expected, rel=1e-3)
    run_study(folder, "report")
    text = (folder / "RESULTS.md").read_text()
    drawn = conditions.key_of(conditions.drawn("sum", 0), 0)
    snr = f"{found[drawn]['scores']['snr']:.2f}"
    assert f"| {snr} ({snr} to {snr}) |" in text
    assert (folder / "images" / "question_1.png").stat().st_size > 5_000


def test_a_question_with_none_of_its_own_trainings_is_not_trained_yet(tmp_path):
    values = Values(plan.runs(), {conditions.BASE: {}})
    (text,) = section(values, 4, None, tmp_path)
    planned = len(plan.runs([4]))
    assert text.startswith(f"Not trained yet: 1 of {planned} trainings")


def test_the_page_is_of_the_committed_results(tmp_path):
    runs = plan.runs()
    write(runs, Results(STUDY / "results.jsonl").of(runs), tmp_path)
    assert (tmp_path / "RESULTS.md").read_text() == (STUDY / "RESULTS.md").read_text()
    charts = {path.name for path in (tmp_path / "images").iterdir()}
    assert charts == {path.name for path in (STUDY / "images").glob("question_*")}


def test_nothing_is_trained_twice(folder):
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))  # as if it had been stopped
    run_study(folder, "train")
    again = path.read_text().splitlines(keepends=True)
    assert again[:2] == lines[:2] and len(again) == 3
    first, second = (json.loads(one[2]) for one in (lines, again))
    assert first["scores"] == pytest.approx(second["scores"], rel=1e-3)  # seeded
    assert first["config"] == second["config"]


def test_plan_is_stable_and_reads_back_from_json():
    runs = plan.runs()
    assert len({run.key for run in runs}) == len(runs)
    assert runs[0].key == conditions.BASE
    places = {run.key: i for i, run in enumerate(runs)}
    for i, run in enumerate(runs):
        # A result counts while its configuration is the plan's.
        assert json.loads(json.dumps(run.config)) == run.config
        assert all(places[key] < i for key in run.needs)
    assert conditions.draw(0)["l1"] == pytest.approx(23.86093216690147)
    assert conditions.searched()[0] == conditions.PLAIN


def test_only_code_makes_a_results_commit_dirty(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)

    for name in ("code.py", "results.jsonl"):
        (tmp_path / name).write_text("")
    git("init")
    git("add", ".")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(*author, "commit", "--message", "first")
    monkeypatch.setattr(study, "HERE", tmp_path)
    (tmp_path / "results.jsonl").write_text("{}")
    clean = study.commit()
    assert clean and not clean.endswith("-dirty")
    (tmp_path / "code.py").write_text("changed = True")
    assert study.commit() == f"{clean}-dirty"


def test_every_option_of_the_plan_is_one_of_the_balancers():
    for options in conditions.OPTIONS.values():
        make_way(conditions.ours(**options), NAMES)


def test_a_result_of_another_configuration_does_not_count(tmp_path):
    results, run = Results(tmp_path / "results.jsonl"), plan.runs()[0]
    results.add({"key": run.key, "config": {**run.config, "steps": 3}, "scores": {}})
    assert results.missing([run]) == [run]
    results.add({"key": run.key, "config": run.config, "scores": {}})
    assert results.missing([run]) == []


def linear(y, grads):
    return {name: (grad * y).sum() for name, grad in grads.items()}


def test_audiocrafts_rule_against_golden_values():
    for case in json.loads(GOLDEN.read_text())["cases"]:
        if not case["balance_grads"]:
            continue
        way = Audiocraft(
            *(case["weights"], case["ema_decay"], case["total_norm"]),
            *(case["per_batch_item"], case["epsilon"]),
        )
        for step in case["steps"]:
            y = torch.tensor(step["y"], dtype=torch.double, requires_grad=True)
            grads = {
                k: torch.tensor(v, dtype=torch.double) for k, v in step["grads"].items()
            }
            way(linear(y, grads), y).backward()
            expected = torch.tensor(step["grad"], dtype=torch.double)
            torch.testing.assert_close(y.grad, expected, rtol=1e-9, atol=0)


def random_grads(rng):
    shape = (3, 1, 7)
    return {name: torch.tensor(rng.normal(0, 1, shape)) for name in NAMES}


def test_espnets_rule_against_espnet():
    theirs = pytest.importorskip("espnet2.gan_codec.shared.loss.loss_balancer")
    rng, reference, way = np.random.default_rng(0), theirs.Balancer(), Espnet()
    for names in (NAMES[:1], NAMES, NAMES):  # one that starts late
        grads = {name: random_grads(rng)[name] for name in names}
        found = []
        for balance in (lambda *x: sum(reference(*x)[0].values()), way):
            y = torch.ones(3, 1, 7, dtype=torch.double, requires_grad=True)
            balance(linear(y, grads), y).backward()
            found.append(y.grad)
        torch.testing.assert_close(*found, rtol=1e-9, atol=0)


def test_gradnorms_slopes_are_those_of_its_loss():
    rng = np.random.default_rng(1)
    layer = torch.tensor(rng.normal(0, 1, (7, 7)), requires_grad=True)
    way = GradNorm(NAMES, layer)
    for _ in range(2):  # in the second call the losses have changed
        x = torch.tensor(rng.normal(0, 1, (3, 1, 7)))
        y = x @ layer
        losses = {"l1": y.abs().mean(), "adv": 50 * (y - 1).square().mean()}
        first = {
            name: way.first.get(name, float(x.detach())) for name, x in losses.items()
        }
        total = way(losses, y)
        torch.optim.SGD(way.learned).zero_grad()  # as trainers do before the backward
        total.backward(retain_graph=True)
        assert sum(way.scales.values()) == pytest.approx(2)
        weights = torch.tensor(list(way.scales.values()), requires_grad=True).double()
        norms = torch.stack(
            [
                torch.autograd.grad(loss, layer, retain_graph=True)[0].norm()
                for loss in losses.values()
            ]
        )
        each = weights * norms
        rates = torch.stack([loss.detach() / first[n] for n, loss in losses.items()])
        target = each.mean() * (rates / rates.mean()) ** 1.5
        (slopes,) = torch.autograd.grad((each - target.detach()).abs().sum(), weights)
        found = torch.stack([weight.grad for weight in way.learned]).double()
        torch.testing.assert_close(found, slopes, rtol=1e-5, atol=0)
        with torch.no_grad():
            way.weights["adv"] -= 0.3


@pytest.mark.parametrize("name", ["GradNorm", "uncertainty weighting"])
def test_what_a_way_learns_is_learned_in_a_training(name):
    (run,) = (x for x in plan.runs() if x.key == conditions.key_of(name, 0))
    setting = {"segment": 1984, "batch": 2, "adversarial_from": 0}
    training = Training({**run.config, "setting": setting}, [torch.randn(9000)])
    before = [float(weight.detach()) for weight in training.way.learned]
    training.turns(0, False)
    assert all(x.detach() != was for x, was in zip(training.way.learned, before))


def test_uncertainty_weighting_scales_as_it_says():
    grads = random_grads(np.random.default_rng(2))
    way = Uncertainty(NAMES)
    with torch.no_grad():
        way.learned[0].fill_(2.0)
    y = torch.ones(3, 1, 7, dtype=torch.double, requires_grad=True)
    way(linear(y, grads), y).backward()
    assert way.scales == pytest.approx({"l1": math.exp(-2) / 2, "adv": 0.5})
    expected = sum(way.scales[name] * grad for name, grad in grads.items())
    torch.testing.assert_close(y.grad, expected, rtol=1e-6, atol=1e-9)
    assert all(parameter.grad is not None for parameter in way.learned)


def test_a_paired_interval_of_three_seeds():
    found = paired({0: 2.0, 1: 4.0, 2: 6.0, 3: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    # Differences 1, 2, 3; t of two degrees of freedom is 4.303.
    assert found.mean == 2 and found.pairs == 3 and not found.is_seen
    assert found.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_settings_are_pairs_where_both_ways_are_trained():
    def result(key, snr, stft):
        (run,) = (run for run in plan.runs() if run.key == key)
        return {"config": run.config, "scores": {"snr": snr, "mr_stft": stft}}

    keys = [
        conditions.key_of(conditions.in_setting(way, setting), 0)
        for setting in ("batch 4", "music", "Spanish")
        for way in conditions.CARRIED
    ]
    scores = [(5, 2), (3, 1), (7, 2), (4, 3), (9, 1)]  # one way alone in Spanish
    results = {key: result(key, *pair) for key, pair in zip(keys, scores)}
    ways = conditions.CARRIED

    def found(score):
        values = Values(plan.runs(), results)
        return versus(*(values.by_setting(way, score) for way in ways), score)

    assert found("snr").startswith("better in 2 of 2 [")
    assert "by +2.50 [" in found("snr")
    assert found("mr_stft").startswith("better in 1 of 2 [")  # less is better
    assert "by +0.000 [" in found("mr_stft")
    results.clear()
    assert found("snr") == "–"


def test_a_debian_package_becomes_recordings(tmp_path, monkeypatch):
    G722 = pytest.importorskip("G722").G722
    if not shutil.which("dpkg-deb"):
        pytest.skip("no dpkg-deb")
    rate = study_data.RATE
    samples = (3000 * np.sin(np.arange(103 * rate) / 20)).astype(np.int16)

    def download(package, folder):
        sounds = tmp_path / "package/usr/share/asterisk/sounds/en"
        (tmp_path / "package/DEBIAN").mkdir(parents=True)
        control = f"Package: {package}\nVersion: 1\nArchitecture: all\n"
        control += "Maintainer: nobody\nDescription: none\n"
        (tmp_path / "package/DEBIAN/control").write_text(control)
        sounds.mkdir(parents=True)
        for name, seconds in {"short": 1, "whole": 3, "long": 103}.items():
            coded = G722(rate, 64000).encode(samples[: seconds * rate])
            (sounds / f"{name}.g722").write_bytes(bytes(coded))
        command = ["dpkg-deb", "--build", tmp_path / "package", folder / "x.deb"]
        subprocess.run(command, check=True, capture_output=True)
        return folder / "x.deb"

    monkeypatch.setattr(study_data, "_download", download)
    wavs = study_data.prepare("en", tmp_path / "out")
    lengths = {p.stem: soundfile.info(p).frames / rate for p in wavs.iterdir()}
    # The long one in pieces of 10 s; its last 3 s are a recording too.
    pieces = {f"sounds_en_long_{10 * i:04d}": 10.0 for i in range(10)}
    pieces["sounds_en_long_0100"] = 3.0
    assert lengths == {"sounds_en_whole_0000": 3.0, **pieces}
    decoded = soundfile.read(wavs / "sounds_en_whole_0000.wav", dtype="int16")[0]
    delay = 22  # samples, of G.722's filters
    apart = decoded[delay:].astype(float) - samples[: 3 * rate - delay]
    assert np.abs(apart[1000:]).mean() < 100
    # Fetched once.
    monkeypatch.setattr(study_data, "_download", None)
    assert study_data.prepare("en", tmp_path / "out") == wavs
    recordings = study_data.load(wavs, rate)
    assert len(recordings.train) == 10 and len(recordings.test) == 2
