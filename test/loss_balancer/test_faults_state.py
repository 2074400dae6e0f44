"""Copies, threads, and what a checkpoint may bring."""

import copy
import io
import json
import math
import pickle
import threading

import numpy as np
import pytest
import torch
from ranks import spawn
from torch import nn

from balancer import Balancer
from balancer.loss_balancer.checkpoint import saved_in


class Run:
    """A small training run, deterministic in its seed."""

    def __init__(self, seed=0, **options):
        generator = torch.Generator().manual_seed(seed)
        self.net = nn.Linear(3, 4)
        with torch.no_grad():
            self.net.weight.copy_(torch.randn(4, 3, generator=generator))
            self.net.bias.zero_()
        self.xs = torch.randn(16, 5, 3, generator=generator)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.balancer = Balancer(ema_decay=0.9, **options)
        self.stats = []

    def train(self, steps, names=("l1", "l2"), before_backward=lambda: None):
        for step in steps:
            y = self.net(self.xs[step])
            losses = {"l1": y.abs().mean(), "l2": 1e3 * y.square().mean()}
            losses["tanh"] = 1e-3 * y.tanh().mean()
            losses = {name: losses[name] for name in names}
            new_losses, stats = self.balancer(losses, y)
            self.stats.append(stats)
            self.optimizer.zero_grad()
            before_backward()
            sum(new_losses.values()).backward()
            self.optimizer.step()
        return self

    def result(self):
        return [self.net.weight.tolist(), self.stats, self.balancer.state_dict()]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda balancer: pickle.loads(pickle.dumps(balancer)),
}


@pytest.mark.parametrize("make", COPIES)
def test_copies_keep_the_state_and_go_their_own_way(make):
    options = dict(weights={"l1": 1.0, "l2": 2.0}, update_every=3, monitor=True)
    run, other = Run(**options).train(range(4)), Run(seed=1, **options)
    before, metrics = run.balancer.state_dict(), run.balancer.metrics
    other.balancer = COPIES[make](run.balancer)
    assert other.balancer.state_dict() == before and other.balancer.metrics == metrics
    other.train(range(5))
    assert other.balancer.state_dict() != before
    assert run.balancer.state_dict() == before and run.balancer.metrics == metrics
    assert vars(other.balancer).keys() == vars(run.balancer).keys()
    uncopied = Run(**options).train(range(8))
    assert run.train(range(4, 8)).result() == uncopied.result()


def test_copy_of_an_optimizer_has_no_balancer_until_it_is_given_one():
    """torch copies no hooks of an optimizer."""
    run = Run()
    run.balancer.checkpoint_with(run.optimizer)
    run.train(range(2))
    balancer, optimizer = copy.deepcopy((run.balancer, run.optimizer))
    assert saved_in(optimizer.state_dict(), "balancer") is None
    balancer.checkpoint_with(optimizer)
    saved = saved_in(optimizer.state_dict(), "balancer")
    assert saved == run.balancer.state_dict()


@pytest.mark.parametrize("update_every", [1, 2])
def test_threads_with_a_balancer_each(update_every):
    """Their calls and backwards run at the same time; each comes out as if alone."""
    count, steps = 4, range(16)
    expected = [
        Run(seed, update_every=update_every).train(steps).result()
        for seed in range(count)
    ]
    runs = [Run(seed, update_every=update_every) for seed in range(count)]
    together = threading.Barrier(count, timeout=60)
    threads = [
        threading.Thread(
            target=run.train, args=(steps,), kwargs={"before_backward": together.wait}
        )
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.result() for run in runs] == expected


def leaves_of(state):
    if isinstance(state, (dict, list)):
        values = state.values() if isinstance(state, dict) else state
        return [leaf for value in values for leaf in leaves_of(value)]
    return [state]


PLAIN = {int, float, bool, str, type(None)}


def test_state_is_plain_numbers_that_no_device_holds():
    """So it loads with weights_only and wherever it was saved, and JSON would do."""
    run = Run(monitor=True, weights={"l1": 1.0, "l2": 2.0}).train(range(3))
    state = run.balancer.state_dict()
    assert {type(leaf) for leaf in leaves_of(state)} <= PLAIN
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="meta") == state
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("make", [torch.tensor, np.float32, np.array])
def test_numbers_that_are_tensors_or_numpys_are_read(make):
    """A tool that rewrites checkpoints may have made them so."""
    state = Run().train(range(3)).balancer.state_dict()
    balancer = Balancer(ema_decay=0.9)
    made = {
        **state,
        "averages": {n: [make(x) for x in p] for n, p in state["averages"].items()},
        "calls": make(state["calls"]),
        "norms": {name: make(norm) for name, norm in state["norms"].items()},
        "measured_at": {n: make(call) for n, call in state["measured_at"].items()},
    }
    balancer.load_state_dict(made)
    loaded = balancer.state_dict()
    assert {type(leaf) for leaf in leaves_of(loaded)} <= PLAIN
    assert loaded["averages"]["l2"] == pytest.approx(state["averages"]["l2"], rel=1e-6)
    assert loaded["calls"] == 3 and loaded["measured_at"] == {"l1": 2, "l2": 2}


def test_a_state_saved_when_all_that_was_measured_is_forgotten():
    """As it is after another per_batch_item was set: that is no damage."""
    run = Run().train(range(3))
    run.balancer.per_batch_item = False
    other = Balancer(per_batch_item=False)
    other.load_state_dict(run.balancer.state_dict())
    assert other.state_dict() == run.balancer.state_dict()
    assert other.state_dict()["calls"] == 3


HALF = {**Balancer().state_dict(), "calls": 3}
DAMAGES = {
    "no dict": (lambda s: None, "state_dict.. returned, but is None"),
    "keys of two types": (
        lambda s: {1: 2, "calls": 3},
        r"lacks.*averages.*\[1, 'calls",
    ),
    "several numbers": (
        lambda s: {**s, "calls": torch.ones(2)},
        "calls.*tensor.*count",
    ),
    "no value": (
        lambda s: {**s, "norms": {"l1": torch.ones((), device="meta")}},
        "norms.l1.*meta.*number",
    ),
    "half a call": (lambda s: {**s, "calls": 2.5}, "calls.*2.5.*no count"),
    "fewer than none": (lambda s: {**s, "calls": -1}, "calls.*-1.*no count"),
    "infinite": (lambda s: {**s, "calls": math.inf}, "calls.*inf.*no count"),
    "measured in future": (
        lambda s: {**s, "measured_at": {"l1": 3}},
        "'l1' measured at call 3 of 3",
    ),
    "measured nothing": (lambda s: {**s, "norms": {}}, r"'l1' measured.*norms of \[\]"),
    "no losses": (
        lambda s: {**s, "norms": {}, "averages": {}, "measured_at": {}},
        r"3 calls and 2 measured losses, but has those of \[\]",
    ),
    "no losses, of before they were counted": (
        lambda s: {k: v for k, v in HALF.items() if k != "losses"},
        r"3 calls and 1 measured losses, but has those of \[\]",
    ),
    "one loss": (
        lambda s: {**s, "measured_at": {"l1": 2}},
        r"2 measured losses, but has those of \['l1'\]",
    ),
    "no averages": (
        lambda s: {**s, "averages": {}},
        "the norm .* of loss 'l1', but no",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_neither_balancer_nor_optimizer_changes(damage):
    """Also where the state is refused as a part of the optimizer's."""
    make, message = DAMAGES[damage]
    run = Run()
    run.balancer.checkpoint_with(run.optimizer)
    run.train(range(3))
    before = copy.deepcopy(run.optimizer.state_dict())
    damaged = make(run.balancer.state_dict())
    with pytest.raises(ValueError, match=message):
        run.balancer.load_state_dict(damaged)
    if damaged is not None:
        whole = Run().train(range(6)).optimizer.state_dict()
        with pytest.raises(ValueError, match=message):
            run.optimizer.load_state_dict({**whole, "balancer": damaged})
    after = run.optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)


def test_truncated_checkpoint_loads_nothing():
    """The averages are in the optimizer's file: all of it is there or nothing is."""
    run = Run()
    run.balancer.checkpoint_with(run.optimizer)
    run.train(range(3))
    file = io.BytesIO()
    torch.save(run.optimizer.state_dict(), file)
    whole = file.getvalue()
    run.train(range(3, 5))
    before = run.balancer.state_dict()
    for cut in range(0, len(whole), len(whole) // 20):
        with pytest.raises(Exception):
            state = torch.load(io.BytesIO(whole[:cut]), weights_only=True)
            run.optimizer.load_state_dict(state)
        assert run.balancer.state_dict() == before
    run.optimizer.load_state_dict(torch.load(io.BytesIO(whole), weights_only=True))
    assert run.balancer.state_dict()["calls"] == 3


@pytest.mark.parametrize("weights", [None, {"l2": 1.0, "tanh": 1.0}])
def test_checkpoint_of_another_set_of_losses(weights):
    """Known ones go on, missing ones start fresh, unknown ones are kept for later."""
    saved = Run(update_every=3).train(range(4)).balancer.state_dict()
    run = Run(update_every=3, weights=weights)
    run.balancer.load_state_dict(saved)
    run.train([4], names=("l2", "tanh"))
    assert all(stats["tanh_scale"] > 0 for stats in run.stats)
    state = run.balancer.state_dict()
    assert state["averages"]["l1"] == saved["averages"]["l1"]
    assert state["averages"]["l2"][1] > saved["averages"]["l2"][1]
    mass = 1 + 0.9 + 0.9**2
    assert state["averages"]["tanh"] == pytest.approx(
        [mass * run.stats[0]["tanh_norm"], mass]
    )
    assert "l1_scale" not in run.stats[0]


def _other_losses(rank, states):
    runs = []
    for state in states:
        runs.append(Run(rank, update_every=3, weights={"l2": 1.0, "tanh": 1.0}))
        runs[-1].balancer.load_state_dict(state)
        runs[-1].train(range(5), names=("l2", "tanh"))
    return [run.stats for run in runs]


def test_ranks_with_a_checkpoint_of_another_set_of_losses(tmp_path):
    """They resume between two measurements, where only saved names are known."""
    states = [
        Run(update_every=3).train(range(4), names).balancer.state_dict()
        for names in (["l1"], ["l1", "l2"])
    ]
    first, second = spawn(tmp_path, _other_losses, 2, states)
    assert first == second
    # With no known name that weighs anything, the first call measures.
    for stats, measured in zip(first, (0, 2)):
        supplied = stats[measured]["tanh_scale"] * stats[measured]["tanh_norm"]
        assert supplied == pytest.approx(0.5)
        assert all(each["l2_scale"] > 0 for each in stats)


def _ramp_to_zero(rank):
    ramp = {"start": 1.0, "end": 0.0, "from_step": 0, "to_step": 2}
    run = Run(rank, update_every=4, weights={"l1": ramp, "l2": 1.0})
    run.train(range(2), names=["l1"]).train(range(2, 5), names=["l2"])
    return run.stats


def test_ranks_whose_measured_losses_all_come_to_weigh_nothing(tmp_path):
    """The next call measures, since the last measurement says nothing any more."""
    first, second = spawn(tmp_path, _ramp_to_zero, 2)
    assert first == second
    assert [stats["l2_scale"] > 0 for stats in first] == [False] * 2 + [True] * 3
