"""The balanced generator turn against ESPnet's own, on its speech synthesizers."""

import random

import numpy as np
import pytest
import torch
from espnet2.tasks.gan_tts import GANTTSTask
from mini_recipe import tts_recipe

from balancer import Balancer
from balancer.espnet.losses import balanced_names
from balancer.espnet.model import net_of
from balancer.espnet.probe import probe_of
from balancer.espnet.tts import BalancedGANTTSModel

SHORT, LONG = 7680, 9600  # samples


def parsed(task, config):
    parser = task.get_parser()
    known = {action.dest for action in parser._actions}
    parser.set_defaults(**{k: v for k, v in config.items() if k in known})
    return parser.parse_args([])


def vits(**changes):
    config = tts_recipe()
    config["tts_conf"].update(changes)
    return GANTTSTask.build_model(parsed(GANTTSTask, config)), BalancedGANTTSModel


MODELS = {"vits": vits}


@pytest.fixture(params=MODELS)
def build(request):
    """Build a stock model, in float64, and give it the class that balances it."""

    def make(**changes):
        seed(0)
        model, balanced = MODELS[request.param](**changes)
        return model.train().double(), balanced

    return make


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def batch():
    speech = 0.1 * torch.randn(2, LONG, dtype=torch.float64)
    return {
        "text": torch.randint(3, 29, (2, 12)),
        "text_lengths": torch.tensor([12, 9]),
        "speech": speech,
        "speech_lengths": torch.tensor([LONG, SHORT]),
    }


def turn(model):
    """A generator turn after a discriminator turn, as in a training."""
    seed(1)
    model.zero_grad(set_to_none=True)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model(forward_generator=False, **batch())
    seed(2)
    result = model(forward_generator=True, **batch())
    result["loss"].sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.load_state_dict(state)  # what BatchNorm learns in its forward
    return result, grads


@pytest.mark.parametrize("cached", [False, True])
def test_unbalanced_turn_is_espnets(build, cached):
    """With weights of 1 and nothing balanced, gradients and reports are the same."""
    model, balanced = build(cache_generator_outputs=cached, lambda_mel=45.0)
    expected, expected_grads = turn(model)
    ours = balanced(model, Balancer(balance_grads=False))
    result, grads = turn(ours)
    torch.testing.assert_close(result["loss"], expected["loss"], rtol=1e-9, atol=0)
    for key, value in expected["stats"].items():
        torch.testing.assert_close(result["stats"][key], value)
    names = {name for name in expected_grads if ".generator." in name}
    assert set(grads) == names, "only the generator gets a gradient"
    for name in names:
        scale = expected_grads[name].abs().max().item()
        torch.testing.assert_close(
            grads[name], expected_grads[name], rtol=1e-9, atol=1e-9 * scale
        )
    assert list(ours.state_dict()) == list(model.state_dict())


def test_shares_and_stats(build):
    model, balanced = build()
    names = balanced_names(net_of(model))
    weights = {name: 1.0 + i for i, name in enumerate(names)}
    balancer = Balancer(weights=weights)
    balancer.probe = probe_of(net_of(model), {"every": 1})
    result, _ = turn(balanced(model, balancer))
    for name, weight in weights.items():
        share = result["stats"][f"{name}_share"].item()
        assert share == pytest.approx(weight / sum(weights.values()), rel=1e-5)
        assert result["stats"][f"{name}_norm_test"] > 0
    assert all(value.shape == (1,) for value in result["stats"].values())
