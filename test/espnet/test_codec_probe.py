"""The probe in ESPnet's own codecs."""

import pytest
import torch
from mini_recipe import CODECS, recipe
from reference_turn import generate, output_losses
from test_codec import build
from test_task import checkpoint

from balancer import Balancer
from balancer.espnet.codec import BalancedGANCodecModel
from balancer.espnet.probe import probe_of
from balancer.espnet.task import BalancedGANCodecTask
from balancer.loss_balancer.checkpoint import saved_in
from balancer.quantities.probe import QUANTITIES

ALL = {"quantities": list(QUANTITIES), "every": 1}


def audio(dtype=None):
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(3, 4800, generator=generator, dtype=dtype)


def by_samples(codec, audio, outputs, layer):
    """The rows by plain backwards: all samples but one are constants in each."""
    y, _, _, real = outputs
    parameters = list(layer.parameters())
    rows = {}
    for i in range(len(y)):
        alone = torch.zeros(len(y), 1, 1, dtype=torch.bool)
        alone[i] = True
        masked = [
            None if tensor is None else torch.where(alone, tensor, tensor.detach())
            for tensor in (y, real)
        ]
        for name, loss in output_losses(codec, audio.unsqueeze(1), *masked).items():
            grads = torch.autograd.grad(len(y) * loss, parameters, retain_graph=True)
            row = torch.cat([grad.flatten() for grad in grads])
            rows.setdefault(name, []).append(row)
    return {name: torch.stack(found) for name, found in sorted(rows.items())}


@pytest.fixture
def in_float64(monkeypatch):
    """Have ESPnet's STFT, which casts its input to float32, compute in float64.

    The rows of a log-mel loss are sums that cancel: float32's roundings, which differ
    from processor to processor, are all that there is to see in some of them.
    """
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.fixture
def rows(monkeypatch):
    """The per-sample gradients that the probe takes, a loss after the other."""
    taken = []

    def seen(rows, group):
        taken.append(rows)
        return rows

    monkeypatch.setattr("balancer.quantities.probe.gather_rows", seen)
    return taken


def assert_same_rows(taken, expected):
    assert len(taken) == len(expected)
    for found, (name, reference) in zip(taken, expected.items()):
        scale = reference.abs().max().item()
        torch.testing.assert_close(
            found, reference, rtol=1e-9, atol=1e-9 * scale, msg=name
        )


@pytest.mark.parametrize("codec", CODECS)
def test_equals_plain_backwards_of_each_sample(codec, rows, in_float64):
    """In the default layer, and nothing with parameters comes after that."""
    codec, x = build(codec).codec.double(), audio(torch.float64)
    balancer = Balancer()
    balancer.probe = probe_of(codec, ALL)
    outputs = generate(codec, x.unsqueeze(1))
    y, _, _, real = outputs
    losses = output_losses(codec, x.unsqueeze(1), y, real)
    expected = by_samples(codec, x, outputs, balancer.probe.layer)
    _, stats = balancer(losses, [y] if real is None else [y, real])
    assert_same_rows(rows, expected)
    for name, found in zip(expected, rows):
        value = QUANTITIES["early_stopping"](found).item()
        assert stats[f"{name}_early_stopping"] == value
    last = list(codec.generator.decoder.parameters())[-1]
    assert any(last is parameter for parameter in balancer.probe.layer.parameters())


@pytest.mark.parametrize("cached", [False, True])
def test_discriminator_turn_first(cached, rows, in_float64):
    """Outputs that both turns share count; those of that turn alone do not."""
    model = build("soundstream", cache_generator_outputs=cached).double()
    x = audio(torch.float64)
    balancer = Balancer()
    balancer.probe = probe_of(model.codec, ALL)
    ours = BalancedGANCodecModel(model.codec, balancer)
    made = []
    model.codec.generator.register_forward_hook(lambda *args: made.append(args[2]))
    ours(audio=x, forward_generator=False)["loss"].backward()
    ours(audio=x, forward_generator=True)
    assert len(made) == (1 if cached else 2)
    expected = by_samples(model.codec, x, made[-1], balancer.probe.layer)
    assert_same_rows(rows, expected)


def test_recipes_section_is_reported_and_saved(train):
    config = recipe("soundstream")
    config["balancer_conf"]["probe"]["every"] = 3
    config["balancer_conf"]["update_every"] = 1
    folder = train(BalancedGANCodecTask, {**config, "max_epoch": 2}, "whole")
    reported = checkpoint(folder)["reporter"]["stats"]
    quantities = config["balancer_conf"]["probe"]["quantities"]
    for name in config["balancer_conf"]["weights"]:
        for quantity in quantities:
            assert reported[2]["train"][f"{name}_{quantity}"] > 0
            assert f"{name}_{quantity}" not in reported[2]["valid"]
    saved = saved_in(checkpoint(folder)["optimizers"][0], "balancer")
    assert saved["probed_at"] == 3 and saved["calls"] == 4
    assert (
        reported[1]["train"]["mel_norm_test"] != reported[2]["train"]["mel_norm_test"]
    )
    assert list(checkpoint(folder)["model"]) == list(build("soundstream").state_dict())


@pytest.mark.parametrize(
    "section, message",
    [
        (True, "must be a section.*True"),
        ({"evry": 3}, "'evry' in the probe's section.*'every'"),
        ({"every": 0}, "every.*0"),
        ({"quantities": ["mean_snr"]}, "'mean_snr'.*'mean_gsnr'"),
        (
            {"layer": "generator.decoder.model.15.conv.cov"},
            "SoundStream.*near.*'generator.decoder.model.15.conv.conv'",
        ),
        ({"layer": "zzz"}, "'zzz'.*its decoder has.*15.conv.conv"),
    ],
)
def test_bad_section_is_refused(section, message):
    with pytest.raises(ValueError, match=message):
        probe_of(build("soundstream").codec, section)


def test_another_layer():
    model = build("soundstream")
    name = "generator.encoder.model.0.conv.conv"
    balancer = Balancer()
    balancer.probe = probe_of(model.codec, {"layer": name, **ALL})
    assert balancer.probe.layer is model.codec.get_submodule(name)
    ours = BalancedGANCodecModel(model.codec, balancer)
    stats = ours(audio=audio(), forward_generator=True)["stats"]
    assert stats["adv_norm_test"] > 0
    layer = "discriminator.msd.discriminators.0.layers.0.0"
    balancer.probe = probe_of(model.codec, {"layer": layer, "every": 1})
    with pytest.raises(ValueError, match="no call of.*leads to `input`"):
        ours(audio=audio(), forward_generator=True)
