"""The command as a user types it, and what it measures."""

import itertools
import os
import re
import sys

import numpy as np
import pytest
import soundfile
import torch
import yaml
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from mini_recipe import recipe as mini
from reference_turn import generate, output_losses

from balancer.bin.inspect import main
from balancer.espnet import inspection, recipe

LOSSES = ["reconstruct", "adv", "feat_match", "mel", "mel_real"]


def write(path, data=None, balancer=False, **codec_conf):
    """A stock recipe, of ESPnet's own keys alone, or a balanced one."""
    config = mini("soundstream")
    config["codec_conf"].update(codec_conf)
    if not balancer:
        config = {k: value for k, value in config.items() if "balancer" not in k}
    if data:
        kinds = [[f"{data}/wav.scp", "audio", "sound"]]
        config["train_data_path_and_name_and_type"] = kinds
        config["train_shape_file"] = [f"{data}/utt2num_samples"]
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def start(config):
    """The model and the batches that the command has."""
    args = recipe.read_config(config)
    set_all_random_seed(args.seed)
    return args, recipe.build_model(args), recipe.batches(args)


def norms_by_hand(model, batch):
    """Loss → the mean over items of its gradient's norm over both outputs."""
    audio = batch["audio"].unsqueeze(1)
    y, _, _, y_real = generate(model.train().codec, audio)
    norms = {}
    for name, loss in output_losses(model.codec, audio, y, y_real).items():
        grads = torch.autograd.grad(
            loss, [y, y_real], retain_graph=True, allow_unused=True
        )
        squares = sum(g.double().square().sum((1, 2)) for g in grads if g is not None)
        norms[name] = squares.sqrt().mean().item()
    return norms


def printed_section(text):
    text = text[text.index("balancer: grad_norm") :]
    return yaml.safe_load(text[: text.index("\n\n")])


def printed_rows(text):
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:1] == ["loss"]) + 1
    return {line[0]: [float(x) for x in line[1:]] for line in lines[start : start + 5]}


def test_pasted_weights_keep_the_shares(data, tmp_path, capsys):
    """Norms and shares are those taken by hand; the weights give them to a balancer."""
    config = write(tmp_path / "stock.yaml", data, lambda_mel=45.0)
    main([str(config), "--steps", "2"])
    text = capsys.readouterr().out
    rows, section = printed_rows(text), printed_section(text)
    assert list(rows) == list(section["balancer_conf"]["weights"]) == LOSSES

    _, model, batches = start(config)
    by_hand = [norms_by_hand(model, batch) for batch in itertools.islice(batches, 2)]
    means = {name: sum(norms[name] for norms in by_hand) / 2 for name in LOSSES}
    shares = {name: mean / sum(means.values()) for name, mean in means.items()}
    assert {n: row[0] for n, row in rows.items()} == pytest.approx(means, rel=5e-3)
    assert {n: row[1] for n, row in rows.items()} == pytest.approx(shares, rel=5e-3)
    assert {row[2] for row in rows.values()} == {0.2}
    assert "lambda_mel: 45" in text and "--model_file" in text

    pasted = tmp_path / "pasted.yaml"
    pasted.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **section}))
    _, balanced, batches = start(pasted)
    result = balanced.train()(audio=next(batches)["audio"])
    total = section["balancer_conf"]["total_norm"]
    assert total == pytest.approx(sum(means.values()), rel=2e-3)
    assert "the losses outside the balance pull with" in text
    given = {name: result["stats"][f"{name}_share"].item() for name in LOSSES}
    assert given == pytest.approx(shares, rel=2e-3)
    main([str(pasted), "--steps", "1"])
    rows = printed_rows(capsys.readouterr().out)
    targets = {name: row[2] for name, row in rows.items()}
    assert targets == pytest.approx(shares, abs=5e-4)


def test_batches_do_not_share_cached_outputs(data, tmp_path):
    config = write(tmp_path / "c.yaml", data, cache_generator_outputs=True)
    args, model, batches = start(config)
    two = list(itertools.islice(batches, 2))
    found = inspection.measure(model, args, iter(two))
    model.load_state_dict(start(config)[1].state_dict())
    by_hand = [norms_by_hand(model, batch) for batch in two]
    mean = (by_hand[0]["mel"] + by_hand[1]["mel"]) / 2
    assert found.norms["mel"] == pytest.approx(mean, rel=1e-3)


def test_measuring_trains_nothing_and_training_both_nets(data, tmp_path):
    args, model, batches = start(write(tmp_path / "c.yaml", data, balancer=True))
    args.use_tensorboard, args.output_dir = True, str(tmp_path / "exp")

    def parameters():
        return {name: p.clone() for name, p in model.named_parameters()}

    before = parameters()
    inspection.measure(model, args, itertools.islice(batches, 2))
    after = parameters()
    assert all(torch.equal(before[name], after[name]) for name in before)
    inspection.train(model, args, itertools.islice(batches, 2))
    after = parameters()
    changed = {
        name.split(".")[1]
        for name in before
        if not torch.equal(before[name], after[name])
    }
    assert changed == {"generator", "discriminator"}
    assert not (tmp_path / "exp").exists()


def test_recordings_of_another_rate_and_what_looks_wrong(tmp_path, capsys):
    """Warnings for a loss that trains nothing and for one that drowns the others."""
    (tmp_path / "wavs" / "deep").mkdir(parents=True)
    time = np.arange(44100) / 22050
    wave = np.sign(np.sin(2 * np.pi * 110 * time)) * 0.1
    soundfile.write(
        tmp_path / "wavs" / "deep" / "a.flac", np.stack([wave] * 2, 1), 22050
    )
    soundfile.write(tmp_path / "wavs" / "short.wav", wave[:99], 22050)
    changes = dict(lambda_adv=0.0, use_dual_decoder=False, use_loss_balancer=True)
    config = write(tmp_path / "c.yaml", **changes)
    options = ["--wav_dir", str(tmp_path / "wavs"), "--train_steps", "1", "--seed", "3"]
    main([str(config), "--steps", "2", *options])
    text = capsys.readouterr().out
    assert "as initialized and trained for 1 steps" in text and "seed 3" in text
    assert "WARNING: adv has a zero gradient" in text
    assert "WARNING: mel supplies 99.9" in text and text.count("WARNING") == 2
    assert list(printed_section(text)["balancer_conf"]["weights"]) == LOSSES[:-1]


def test_a_trainings_own_config_and_model(trained, capsys):
    """config.yaml has keys that ESPnet adds, and the data of the training."""
    model = trained / "latest.pth"
    options = ["--steps", "1", "--model_file", str(model)]
    main([str(trained / "config.yaml"), *options])
    text = capsys.readouterr().out
    assert f"of {model};" in text and "as weighted" in text
    targets = {name: row[2] for name, row in printed_rows(text).items()}
    weights = mini("soundstream")["balancer_conf"]["weights"]
    target = weights["adv"] / sum(weights.values())
    assert targets["adv"] == pytest.approx(target, abs=5e-4)
    args, built, _ = start(trained / "config.yaml")
    assert not torch.equal(
        built.state_dict()["codec.generator.decoder.model.0.conv.conv.bias"],
        torch.load(model)["codec.generator.decoder.model.0.conv.conv.bias"],
    )
    loaded = recipe.build_model(args, model).state_dict()
    assert all(torch.equal(loaded[key], v) for key, v in torch.load(model).items())


def test_a_speech_synthesizer(trained_tts, tmp_path, capsys):
    """The losses have the section's names, and the norms are those of the turn."""
    config = yaml.safe_load((trained_tts / "config.yaml").read_text())
    names = {"gan": "generator_adv_loss", "features": "feat_match_loss"}
    names["spectrum"] = "mel_loss"
    config["balancer_conf"].update(losses=names, weights=dict.fromkeys(names, 2.0))
    config["tts_conf"]["lambda_mel"] = 45.0
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(config, sort_keys=False))
    main([str(saved), "--steps", "1"])
    text = capsys.readouterr().out
    assert "of the vits decoder" in text and "1 in tts_conf" in text
    table = text[text.index("\nloss ") : text.index("\ncosine ")]
    rows = [line.split() for line in table.splitlines()[2:] if line]
    printed = {row[0]: row[1:] for row in rows}
    assert list(printed) == list(names)
    _, model, batches = start(saved)
    batch = next(batches)
    stats = model.train()(**batch)["stats"]
    for name, (norm, share, target) in printed.items():
        assert float(norm) == pytest.approx(stats[f"{name}_norm"].item(), rel=5e-3)
        assert float(share) == pytest.approx(stats[f"{name}_ratio"].item(), rel=5e-3)
        assert target == "0.333"
    said = refused(capsys, saved, "--wav_dir", tmp_path)
    assert "recordings alone do not train a model of tts" in said
    del config["train_data_path_and_name_and_type"]
    saved.write_text(yaml.safe_dump(config))
    assert "names no training data: give the config.yaml of" in refused(capsys, saved)
    saved.write_text(yaml.safe_dump({**config, "svs_conf": {}}))
    assert "codec, tts, svs" in refused(capsys, saved)


def test_what_was_trained_is_inspected(trained, tmp_path, monkeypatch, capsys):
    """Not the file that config.yaml names as the one that the training began with."""
    config = yaml.safe_load((trained / "config.yaml").read_text())
    started_with = tmp_path / "recipe.yaml"
    started_with.write_text("balancer_conf: {weights: {adv: 99}}\nlambda_mell: 1\n")
    config["config"] = str(started_with)
    weights = config["balancer_conf"]["weights"]
    weights["adv"] *= 7
    config["codec_conf"]["lambda_mel"] = 7.0
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path.parent)
    main([str(saved), "--steps", "1"])
    text = capsys.readouterr().out
    targets = {name: row[2] for name, row in printed_rows(text).items()}
    target = weights["adv"] / sum(weights.values())
    assert targets["adv"] == pytest.approx(target, abs=5e-4)
    assert "lambda_mel: 7" in text
    saved.write_text(yaml.safe_dump({**config, "balancer": "none", "config": "gone"}))
    main([str(saved), "--steps", "1"])
    text = capsys.readouterr().out
    assert "all alike" in text
    assert {row[2] for row in printed_rows(text).values()} == {0.2}


class Hostile:
    """Runs a program when it is read."""

    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


def refused(capsys, *command):
    """What the command says, in one line, as it ends with status 2."""
    with pytest.raises(SystemExit) as end:
        main([str(part) for part in command])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[-1]


def test_hostile_files_run_nothing(data, tmp_path, capsys):
    victim = tmp_path / "owned"
    config = write(tmp_path / "c.yaml", data)
    model = tmp_path / "model.pth"
    torch.save({"codec": Hostile(victim)}, model)
    assert "model.pth is refused" in refused(capsys, config, "--model_file", model)
    fine = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**fine, "init_param": [f"{model}:a:b"]}))
    assert "model.pth is refused" in refused(capsys, config)

    scp = tmp_path / "wav.scp"
    scp.write_text(f"utt0 touch {victim}; cat {data}/utt0.wav |\n")
    for path in (scp, f"touch {victim}; cat {scp} |"):
        kinds = [[str(path), "audio", "kaldi_ark"]]
        changed = {**fine, "train_data_path_and_name_and_type": kinds}
        config.write_text(yaml.safe_dump(changed))
        assert "--wav_dir" in refused(capsys, config)
    config.write_text(f"codec: !!python/object/apply:os.mkdir ['{victim}']\n")
    assert "c.yaml is no YAML: line 1" in refused(capsys, config)
    assert not victim.exists()


def test_a_models_file_that_does_not_fit(trained, tmp_path, capsys):
    config, model = trained / "config.yaml", tmp_path / "model.pth"
    weights = torch.load(trained / "latest.pth")
    name = next(iter(weights))
    for changed, message in [
        ({**weights, "other": torch.zeros(1)}, "other is not in the model. Give"),
        ({key: weights[key] for key in weights if key != name}, f"lacks {name}. Give"),
        ({**weights, name: torch.zeros(99)}, r"has the shape \[99\], not"),
        ({"a": torch.zeros(1)}, "and [0-9]+ more do not fit"),
        ({**weights, name: 1}, f"{name!r} is no tensor"),
    ]:
        torch.save(changed, model)
        said = refused(capsys, config, "--model_file", model)
        assert re.search(message, said), said
    checkpoint = trained / "checkpoint.pth"
    said = refused(capsys, config, "--model_file", checkpoint)
    assert "checkpoint of a whole training: give the file of a model" in said
    changed = yaml.safe_load(config.read_text())
    torch.save({"a": torch.zeros(1)}, model)
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({**changed, "init_param": [str(model)]})
    )
    assert "init_param" in refused(capsys, tmp_path / "c.yaml")


@pytest.mark.parametrize(
    "key, options, message",
    [
        ({}, [], "names no training data.*--wav_dir"),
        ({"chunk_lenght": 1}, [], "unknown key 'chunk_lenght'.*'chunk_length'"),
        ({"batch_size": 99}, ["--wav_dir", "data"], "one batch of batch_size 99"),
        ({}, ["--wav_dir", "empty"], "empty has no recording: none of .*.flac"),
        (
            {"chunk_length": 99999},
            ["--wav_dir", "data"],
            "^inspect: data has no usable",
        ),
        ({}, ["--wav_dir", "none"], "none is no folder"),
        ({"balancer": "grad_norm", "balancer_conf": {"wieghts": 1}}, [], "'weights'"),
        (
            {"codec_conf": {"lambda_mell": 1}},
            [],
            "codec_conf.lambda_mell.*'lambda_mel'",
        ),
        ({"codec_conf": {"lambda_mel": "x"}}, [], 'wrong value: .*"lambda_mel"'),
        ({"codec_conf": {"generator_params": {"a": 1}}}, [], "wrong value: .*'a'"),
        ({"codec_conf": [1]}, [], "codec_conf of c.yaml is no section"),
        ({"batch_size": "x"}, [], "^inspect: c.yaml: .*--batch_size"),
        ({"codec": "wave"}, [], "must be one of .*'soundstream'"),
        ({}, ["--model_file", "c.yaml"], "c.yaml (is refused|cannot be read)"),
        ({}, ["--model_file", "none.pth"], "none.pth is missing"),
    ],
)
def test_refusals_are_one_line(
    key, options, message, data, tmp_path, monkeypatch, capsys
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").symlink_to(data)
    config = write(tmp_path / "c.yaml")
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **key}))
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "c.yaml", *options)
    assert said.startswith("inspect: ") and re.search(message, said), said


def test_without_espnet(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "espnet2.torch_utils.set_all_random_seed", None)
    said = refused(capsys, write(tmp_path / "c.yaml"))
    assert "pip install --no-deps espnet==202511" in said


def test_bad_options(capsys):
    with pytest.raises(SystemExit):
        main(["c.yaml", "--steps", "0"])
    assert "must be at least 1, but is 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["c.yaml", "--train_steps", "-1"])
    assert "must be at least 0, but is -1" in capsys.readouterr().err
    assert "c.yaml cannot be read: No such file" in refused(capsys, "c.yaml")
    if not torch.cuda.is_available():
        assert "--ngpu 1 needs a GPU" in refused(capsys, "c.yaml", "--ngpu", 1)
