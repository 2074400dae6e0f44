"""The watch over a generator turn, on nets that do what ESPnet's may do."""

import doctest
import re

import pytest
import torch
from torch import nn

from balancer import Balancer
from balancer.espnet import turn as turns
from balancer.espnet.losses import check_balanced, lambdas_of, losses_of, read_losses
from balancer.espnet.turn import WatchedTurn


class Pair(nn.Module):
    """A module that returns two losses and something else."""

    def forward(self, y, x):
        return (y - x).abs().mean(), {"square": (y - x).square().mean(), "note": "ok"}


class Sees(nn.L1Loss):
    """A loss that notes its input's dtype and that of its own products."""

    def forward(self, y, x):
        self.seen = (y.dtype, (y @ y.T).dtype)
        return super().forward(y, x)


class Net(nn.Module):
    """A generator turn as ESPnet writes it; a test replaces `total`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(8, 8)
        self.discriminator = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
        self.generator_adv_loss = nn.SoftMarginLoss()
        self.mel_loss = nn.L1Loss()
        self.pair_loss = Pair()
        self.lambda_mel = 45.0

    def forward(self, x, total=None):
        y = self.generator(x)
        if total is not None:
            return total(self, x, y)
        scores = self.discriminator(y)
        with torch.no_grad():
            self.mel_loss(y, x)  # for a report
        loss = self.generator_adv_loss(scores, torch.ones_like(scores))
        loss += self.lambda_mel * self.mel_loss(y, x)
        return loss + self.generator.bias.square().sum()


BOTH = {"adv": "generator_adv_loss", "mel": "mel_loss"}


@pytest.fixture
def net():
    return Net().double()


@pytest.fixture
def x():
    return torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator())


def grads(net, loss):
    net.zero_grad(set_to_none=True)
    loss.backward()
    return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


def hooks(net):
    return [
        m
        for m in net.modules()
        if m._forward_hooks or m._forward_pre_hooks or m._forward_hooks_always_called
    ]


def test_example():
    assert not doctest.testmod(turns).failed


def test_losses_and_rest_are_espnets_loss(net, x):
    expected = grads(net, net(x))
    value = net(x)
    with WatchedTurn(net, BOTH) as turn:
        loss = net(x)
    losses, rest = turn.split(loss)
    assert list(losses) == ["adv", "mel"] and len(turn.outputs) == 1
    torch.testing.assert_close(rest + sum(losses.values()), value)
    torch.testing.assert_close(losses["mel"], 45 * net.mel_loss(turn.outputs[0], x))
    found = grads(net, rest + sum(losses.values()))
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad)
    # What is left has gradient of what does not depend on the output alone.
    with WatchedTurn(net, BOTH) as turn:
        loss = net(x)
    assert set(grads(net, turn.split(loss)[1])) == {"generator.bias"}


def test_results_take_the_names_in_their_order(net, x):
    def total(net, x, y):
        a, more = net.pair_loss(y, x=x)
        assert more["note"] == "ok"
        return a + 3 * more["square"] + 5 * net.pair_loss(y=2 * y, x=x)[0]

    names = ["a", "b", "c", "d"]
    with WatchedTurn(net, dict.fromkeys(names, "pair_loss")) as turn:
        loss = net(x, total)
    with pytest.raises(ValueError, match="takes part in computing another input"):
        Balancer()(turn.split(loss)[0], turn.outputs)  # y and 2 * y
    losses, _ = turn.split(loss)
    assert list(losses) == ["a", "b", "c"], "the sum has no d"
    y = net.generator(x)
    torch.testing.assert_close(losses["b"], 3 * (y - x).square().mean())
    torch.testing.assert_close(losses["c"], 5 * (2 * y - x).abs().mean())


def test_a_loss_that_is_off_is_left_out_or_zero(net, x):
    def absent(net, x, y):
        net.generator_adv_loss(net.discriminator(y), torch.ones(1))
        return net.mel_loss(y, x)

    def zero(net, x, y):
        scores = net.discriminator(y)
        adv = net.generator_adv_loss(scores, torch.ones_like(scores))
        return net.mel_loss(y, x) + 0.0 * adv

    balancer = Balancer(weights={"adv": 1.0, "mel": 1.0})
    for total, kept in [(absent, ["mel"]), (zero, ["adv", "mel"])]:
        with WatchedTurn(net, BOTH) as turn:
            loss = net(x, total)
        losses, _ = turn.split(loss)
        assert sorted(losses) == kept
        _, stats = balancer(losses, turn.outputs)
        assert stats["adv_share"] == 0 and stats["mel_share"] == pytest.approx(1)
    _, stats = balancer({"mel": net.mel_loss(y := net.generator(x), x)}, y)
    assert "adv" not in balancer.state_dict()["averages"]


def test_hooks_are_gone_after_the_turn(net, x):
    def broken(net, x, y):
        net.mel_loss(y, x)
        raise KeyError("broken")

    with WatchedTurn(net, BOTH):
        assert len(hooks(net)) == 3
        net(x)
    assert not hooks(net)
    with pytest.raises(KeyError), WatchedTurn(net, BOTH):
        net(x, broken)
    assert not hooks(net)
    with pytest.raises(AttributeError), WatchedTurn(net, {"stft": "stft_loss"}):
        pass
    assert not hooks(net)


def test_mel_loss_runs_in_float32_and_the_rest_as_autocast_says(x):
    net, half = Net(), torch.bfloat16
    net.mel_loss, net.pair_loss = Sees(), Sees()
    both = {"mel": "mel_loss", "pair": "pair_loss"}

    def total(net, x, y):
        return net.mel_loss(y, x) + net.pair_loss(y, x)

    with torch.autocast("cpu", half):
        with WatchedTurn(net, both) as turn:
            loss = net(x.float(), total)
        assert torch.is_autocast_enabled("cpu")
    assert net.mel_loss.seen == (torch.float32, torch.float32)
    assert net.pair_loss.seen == (half, half)
    (output,) = turn.outputs
    assert output.dtype == half, "the output itself, not its float32 copy"
    assert turn.split(loss)[0]["mel"].requires_grad

    def broken(net, x, y):
        return net.mel_loss(y, None)

    with torch.autocast("cpu", half):
        with pytest.raises(AttributeError), WatchedTurn(net, both):
            net(x.float(), broken)
        assert torch.is_autocast_enabled("cpu")


def test_what_the_watch_cannot_see_is_refused(net, x):
    def by_hand(net, x, y):
        return net.mel_loss(y, x) + (y - x).square().mean()

    def twice(net, x, y):
        return net.mel_loss(y, x) + net.mel_loss(y, x)

    def none(net, x, y):
        return y.sum()

    def within(net, x, y):
        inner = net.mel_loss.register_forward_hook(
            lambda _, args, loss: loss + net.generator_adv_loss(*args),
            prepend=True,
        )
        with inner:
            return net.mel_loss(y, x)

    for losses, total, message in [
        (BOTH, by_hand, "not among the balanced losses.*'adv', 'mel'.*module of its"),
        (BOTH, twice, r"mel_loss gave more losses.*\['mel'\].*mel_2: mel_loss"),
        (BOTH, none, "none of the loss modules.*'mel_loss'.*Net has.*'pair_loss'"),
        ({"mel": "mel_loss"}, None, "not among the balanced losses"),
        (BOTH, within, "generator_adv_loss runs within another"),
    ]:
        with pytest.raises(ValueError, match=message):
            with WatchedTurn(net, losses) as turn:
                loss = net(x, total)
            turn.split(loss)
        assert not hooks(net)


def test_section_and_weights_are_read_with_the_modules_in_hand(net, caplog):
    assert losses_of(net) == BOTH
    assert lambdas_of(net) == {"lambda_mel": 45.0}
    named = {"mine": "pair_loss", "mel": "mel_loss"}
    assert read_losses(net, named) == named
    for section, message in [
        ({"mine": "pairloss"}, "'mine' from 'pairloss'.*'pair_loss'.*modules are"),
        ({"mine": ""}, "'mine' from ''"),
        ({}, "must name loss modules.*{}"),
        (["mel_loss"], r"must name loss modules.*\['mel_loss'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_losses(net, section)
    with pytest.raises(ValueError, match="lacks 'mine'"):
        check_balanced(net, named, Balancer(weights={"mel": 1.0}))
    with pytest.raises(ValueError, match=re.escape("names 'adv'")):
        check_balanced(net, named, Balancer(weights={"adv": 1.0}))
    assert not caplog.records
    check_balanced(net, named, Balancer())
    assert "lambda_mel: 45.0" in caplog.text
