"""The averages in the optimizer's state dict."""

import pytest
import torch
from torch import nn

from balancer import Balancer


class Run:
    """A training run of a small net, deterministic in the number of the step."""

    def __init__(self, update_every=1, monitor=False):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)
        self.balancer = Balancer(
            ema_decay=0.9,
            update_every=update_every,
            monitor=monitor,
            exact_total_norm=monitor,
        )
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
    assert state.pop("balancer") == run.balancer.state_dict()
    run.optimizer.load_state_dict(state)
    assert run.balancer.state_dict() == Balancer().state_dict()


def test_plain_optimizer_loads_a_balanced_checkpoint(tmp_path):
    run = Run().train(range(3))
    plain = torch.optim.Adam(run.net.parameters())
    plain.load_state_dict(run.optimizer.state_dict())
    assert "balancer" not in plain.state_dict()
    assert plain.state_dict()["param_groups"][0]["lr"] == 0.05


def test_refused_load_changes_nothing():
    run = Run().train(range(3))
    before = run.balancer.state_dict()
    state = Run().train(range(5)).optimizer.state_dict()
    state["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError):
        run.optimizer.load_state_dict(state)
    assert run.balancer.state_dict() == before


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
