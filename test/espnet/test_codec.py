"""The balanced generator turn against ESPnet's own, on each of its codecs."""

import argparse
import random

import pytest
import torch
from espnet2.tasks.gan_codec import GANCodecTask, codec_choices
from mini_recipe import CODECS, recipe

from balancer import Balancer
from balancer.espnet.codec import BalancedGANCodecModel, balanced_names
from balancer.espnet.outside import OutsideWatch


def build(codec, **changes):
    config = recipe(codec)
    config["codec_conf"].update(changes)
    torch.manual_seed(0)
    args = argparse.Namespace(
        codec=codec, codec_conf=config["codec_conf"], model_conf={}
    )
    return GANCodecTask.build_model(args).train()


def turn(model, generator=True):
    """One turn's result, in float64, and the gradients it brings, by parameter."""
    model.double()
    torch.manual_seed(1)
    random.seed(1)
    audio = 0.1 * torch.randn(2, 4800, dtype=torch.float64)
    model.zero_grad(set_to_none=True)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    result = model(audio=audio, forward_generator=generator)
    if model.training:
        result["loss"].sum().backward()
    grads = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    model.load_state_dict(state)  # the quantizer learns in its forward
    return result, grads


def test_all_codecs_of_espnet_are_tested():
    assert set(CODECS) == set(codec_choices.classes)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_unbalanced_turn_is_espnets(codec, cached):
    """With weights of 1 and nothing balanced, gradients and reports are the same."""
    model = build(codec, cache_generator_outputs=cached)
    expected, expected_grads = turn(model)
    model.codec._cache = None
    balancer = Balancer(balance_grads=False)
    ours = BalancedGANCodecModel(model.codec, balancer)
    result, grads = turn(ours)
    assert result["optim_idx"] == 0 and torch.equal(
        result["weight"], expected["weight"]
    )
    torch.testing.assert_close(result["loss"], expected["loss"])
    for key, value in expected["stats"].items():
        torch.testing.assert_close(result["stats"][key], value)
    names = {name for name in expected_grads if name.startswith("codec.generator")}
    assert set(grads) == names, "only the generator gets a gradient"
    for name in names:
        scale = expected_grads[name].abs().max().item()
        torch.testing.assert_close(
            grads[name], expected_grads[name], rtol=1e-9, atol=1e-9 * scale
        )


@pytest.mark.parametrize("codec", CODECS)
def test_shares_and_stats(codec):
    model = build(codec)
    weights = recipe(codec)["balancer_conf"]["weights"]
    ours = BalancedGANCodecModel(model.codec, Balancer(weights=weights))
    result, _ = turn(ours)
    assert list(weights) == balanced_names(model.codec)
    for name, weight in weights.items():
        share = result["stats"][f"{name}_share"].item()
        assert share == pytest.approx(weight / sum(weights.values()), rel=1e-5)
    assert all(value.shape == (1,) for value in result["stats"].values())


def test_what_is_not_the_generators_training_turn_is_espnets():
    model = build("soundstream")
    ours = BalancedGANCodecModel(model.codec, Balancer())
    for training, generator in [(True, False), (False, False), (False, True)]:
        model.train(training)
        expected, expected_grads = turn(model, generator)
        ours.train(training)
        result, grads = turn(ours, generator)
        assert result["stats"] == expected["stats"]
        assert torch.equal(result["loss"], expected["loss"])
        assert all(torch.equal(grads[name], expected_grads[name]) for name in grads)
    assert ours.balancer.metrics == {}
    assert list(ours.state_dict()) == list(model.state_dict())


def test_cached_outputs_serve_both_turns():
    model = build("soundstream", cache_generator_outputs=True)
    ours = BalancedGANCodecModel(model.codec, Balancer())
    audio = 0.1 * torch.randn(2, 4800)
    calls = []
    model.codec.generator.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        ours(audio=audio, forward_generator=False)["loss"].backward()
        ours(audio=audio, forward_generator=True)["loss"].backward()
    assert len(calls) == 2 and model.codec._cache is None


def test_without_optional_losses():
    model = build(
        "soundstream",
        use_feat_match_loss=False,
        use_mel_loss=False,
        use_dual_decoder=False,
    )
    ours = BalancedGANCodecModel(model.codec, Balancer())
    result, _ = turn(ours)
    assert balanced_names(model.codec) == ["reconstruct", "adv"]
    assert "mel_norm" not in result["stats"]


@pytest.mark.parametrize(
    "total_norm, outside, warnings",
    [
        (1e-3, 1.0, 1),
        (1000.0, 1.0, 0),
        (1000.0, 1e9, 0),  # they rule the unbalanced losses too
        (1e-3, 1e-9, 0),  # they rule nothing
    ],
)
def test_a_total_norm_that_leaves_no_say_is_warned_of_once(
    total_norm, outside, warnings, caplog
):
    model = build("soundstream", lambda_commit=outside, lambda_quantization=outside)
    ours = BalancedGANCodecModel(model.codec, Balancer(total_norm=total_norm))
    stats = [turn(ours)[0]["stats"] for _ in range(2)]
    assert "outside_to_balanced" not in {**stats[0], **stats[1]}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warnings
    assert all("balancer_conf.total_norm is 0.001" in message for message in said)


def test_the_sum_as_it_is_has_the_stat_and_no_warning(caplog):
    weak = Balancer(balance_grads=False, weights={"reconstruct": 1e-6, "adv": 1e-6})
    changes = dict.fromkeys(
        ["use_feat_match_loss", "use_mel_loss", "use_dual_decoder"], False
    )
    ours = BalancedGANCodecModel(build("soundstream", **changes).codec, weak)
    ours.outside = OutsideWatch(ours.codec, every=1)
    assert turn(ours)[0]["stats"]["outside_to_balanced"] > 10
    assert not caplog.records


def test_refusals_and_warning(caplog):
    model = build("soundstream", lambda_mel=45.0)
    with pytest.raises(ValueError, match="names 'mle'.*SoundStream.*'mel'"):
        BalancedGANCodecModel(model.codec, Balancer(weights={"mle": 1.0}))
    with pytest.raises(ValueError, match="lacks 'reconstruct'"):
        BalancedGANCodecModel(model.codec, Balancer(weights={"mel": 1.0}))
    assert not caplog.records
    BalancedGANCodecModel(model.codec, Balancer())
    assert len(caplog.records) == 1
    assert "lambda_mel: 45.0" in caplog.text and "weights" in caplog.text
    BalancedGANCodecModel(model.codec, Balancer(balance_grads=False))
    assert len(caplog.records) == 1  # here it does not cancel out
    model = build("soundstream", use_loss_balancer=True)
    with pytest.raises(ValueError, match="use_loss_balancer"):
        BalancedGANCodecModel(model.codec, Balancer())
