"""The averages in the optimizer's state dict."""

import copy
import math

import pytest
import torch
from torch import nn

from balancer import Balancer
from balancer.loss_balancer.checkpoint import saved_in


class Run:
    """A training run of a small net, deterministic in the number of the step."""

    def __init__(self, update_every=1, monitor=False, checkpoint=True, groups=1):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        parts = [self.net] if groups == 1 else [self.net[0], self.net[2]]
        options = [{"params": list(part.parameters())} for part in parts]
        self.optimizer = torch.optim.Adam(options, lr=0.05)
        self.balancer = Balancer(
            ema_decay=0.9,
            update_every=update_every,
            monitor=monitor,
            exact_total_norm=monitor,
        )
        if checkpoint:
            self.balancer.checkpoint_with(self.optimizer)

    def train(self, steps):
        for step in steps:
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
            y = self.net(x)
            losses = {"l1": (y - 1).abs().mean(), "l2": 1e4 * y.square().mean()}
            new_losses, self.stats = self.balancer(losses, y)
            self.optimizer.zero_grad()
            sum(new_losses.values()).backward()
            self.optimizer.step()
        return self

    def save(self, path):
        torch.save([self.net.state_dict(), self.optimizer.state_dict()], path)

    def load(self, path):
        net, optimizer = torch.load(path, weights_only=True)
        self.net.load_state_dict(net)
        self.optimizer.load_state_dict(optimizer)
        return self


@pytest.mark.parametrize("update_every", [1, 3])
def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, update_every):
    whole = Run(update_every, monitor=True).train(range(10))
    Run(update_every, monitor=True).train(range(5)).save(tmp_path / "c.pt")
    resumed = (
        Run(update_every, monitor=True).load(tmp_path / "c.pt").train(range(5, 10))
    )
    for a, b in zip(whole.net.parameters(), resumed.net.parameters()):
        assert torch.equal(a, b)
    assert resumed.stats == whole.stats
    assert resumed.balancer.state_dict() == whole.balancer.state_dict()


def test_checkpoint_without_balancer_leaves_it_fresh(tmp_path):
    run = Run().train(range(3))
    torch.save(run.optimizer.state_dict(), tmp_path / "c.pt")
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert saved_in(state, "balancer") == run.balancer.state_dict()
    del state["param_groups"][0]["balancer"]
    run.optimizer.load_state_dict(state)
    assert run.balancer.state_dict() == Balancer().state_dict()


def test_dict_beside_the_groups_as_it_once_was_is_loaded():
    run = Run().train(range(3))
    state = run.optimizer.state_dict()
    del state["param_groups"][0]["balancer"]
    other = Run()
    other.optimizer.load_state_dict({**state, "balancer": run.balancer.state_dict()})
    assert other.balancer.state_dict() == run.balancer.state_dict()


@pytest.mark.parametrize("weights", [[0.1, math.nan], [1e-300, math.inf]])
def test_text_holds_all_numbers_to_the_bit(weights):
    run, other = Run(), Run()
    y = run.net(torch.ones(4, 3))
    losses = {
        f"l{i}": weight * (y - i).abs().mean() for i, weight in enumerate(weights)
    }
    run.balancer(losses, y)
    other.optimizer.load_state_dict(run.optimizer.state_dict())
    assert repr(other.balancer.state_dict()) == repr(run.balancer.state_dict())


def test_plain_optimizer_trains_on_from_a_balanced_checkpoint():
    run, plain = Run().train(range(3)), Run(checkpoint=False)
    plain.net.load_state_dict(run.net.state_dict())
    plain.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    plain.balancer.load_state_dict(run.balancer.state_dict())
    run.train(range(3, 5))
    plain.train(range(3, 5))
    for a, b in zip(run.net.parameters(), plain.net.parameters()):
        assert torch.equal(a, b)


def test_checkpoint_that_was_loaded_before_the_balancer_came():
    run, late = Run().train(range(3)), Run(checkpoint=False)
    late.optimizer.load_state_dict(run.optimizer.state_dict())
    late.balancer.checkpoint_with(late.optimizer)
    assert late.balancer.state_dict() == run.balancer.state_dict()


def test_groups_in_another_order():
    """torch.distributed.checkpoint sorts the options by the parameters' names."""
    run, other = Run(groups=2).train(range(3)), Run(groups=2)
    state = run.optimizer.state_dict()
    first, second = state["param_groups"]
    second["balancer"] = first.pop("balancer")
    other.optimizer.load_state_dict(state)
    assert other.balancer.state_dict() == run.balancer.state_dict()
    assert saved_in(other.optimizer.state_dict(), "balancer")["calls"] == 3


def test_refused_load_changes_nothing():
    run = Run().train(range(3))
    before = run.balancer.state_dict()
    state = Run().train(range(5)).optimizer.state_dict()
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError):
        run.optimizer.load_state_dict(state)
    assert run.balancer.state_dict() == before


DAMAGED_TEXTS = [
    ('{"calls": 3', "no dict in JSON"),
    ("7", "'7', which is no dict"),
    ({"calls": 3}, "which is no dict"),
    ('{"calls": 3}', "lacks.*averages"),
]


@pytest.mark.parametrize("text, message", DAMAGED_TEXTS)
def test_damaged_text_is_refused_and_changes_nothing(text, message):
    run, other = Run().train(range(3)), Run().train(range(5))
    before = copy.deepcopy(run.optimizer.state_dict())
    state = other.optimizer.state_dict()
    state["param_groups"][0]["balancer"] = text
    with pytest.raises(ValueError, match=message):
        run.optimizer.load_state_dict(state)
    after = run.optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer, and has a state dict of its own making."""

    def __init__(self, optimizer, kept):
        self.optimizer, self.kept = optimizer, kept
        self.param_groups = optimizer.param_groups

    def state_dict(self):
        inner = self.optimizer.state_dict()
        return {"slow": [], "fast": {key: inner[key] for key in self.kept}}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["fast"])


def test_wrapper_that_keeps_the_groups():
    run, other = Run(checkpoint=False), Run(checkpoint=False)
    wrappers = [
        Lookahead(each.optimizer, ["state", "param_groups"]) for each in (run, other)
    ]
    for each, wrapper in zip((run, other), wrappers):
        each.balancer.checkpoint_with(wrapper)
    run.train(range(3))
    wrappers[1].load_state_dict(wrappers[0].state_dict())
    assert other.balancer.state_dict() == run.balancer.state_dict()


def test_wrapper_that_loses_the_averages_is_refused_and_leaves_no_trace():
    run = Run(checkpoint=False)
    before = run.optimizer.state_dict()
    with pytest.raises(ValueError, match="Lookahead has not the balancer.*Adam.*own"):
        run.balancer.checkpoint_with(Lookahead(run.optimizer, ["state"]))
    assert run.optimizer.state_dict() == before
    run.balancer.checkpoint_with(run.optimizer)
    assert saved_in(run.optimizer.state_dict(), "balancer")


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match="needs an optimizer.*Linear"):
        Balancer().checkpoint_with(nn.Linear(2, 2))


def test_second_balancer_with_one_optimizer_is_refused():
    run = Run()
    with pytest.raises(ValueError, match="balancer is saved with this optimizer"):
        Balancer().checkpoint_with(run.optimizer)


BAD_STATES = [
    ({"calls": 3}, "lacks.*averages"),
    ({"averages": {"a": [1.0]}}, "averages.a.*1.0"),
    ({"averages": {"a": [0.0, 1.0]}}, "'a'.*positive"),
    ({"averages": {"a": [1.0, float("nan")]}}, "'a'.*nan"),
    ({"averages": 7}, "averages.*7"),
    ({"norms": {"a": "x"}}, "norms.a.*'x'"),
    ({"calls": None}, "calls.*None"),
    ({"probed_at": 3}, "'probed_at' 3 of 3 calls"),
    ({"probed": {"a_norm_test": "x"}}, "probed.a_norm_test.*'x'"),
]


@pytest.mark.parametrize("damage, message", BAD_STATES)
def test_damaged_state_is_refused_and_changes_nothing(damage, message):
    balancer = Run().train(range(3)).balancer
    before = balancer.state_dict()
    state = damage if "lacks" in message else {**before, **damage}
    with pytest.raises(ValueError, match=message):
        balancer.load_state_dict(state)
    assert balancer.state_dict() == before
