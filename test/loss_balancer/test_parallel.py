"""PyTorch's own wrappers of a model, in their modes, on real gloo processes."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from ranks import (
    SHARDS_ON_CPU,
    WEIGHTS,
    assert_close,
    batch,
    needs_sharding,
    net,
    spawn,
    sums,
    train,
)
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

BATCHES = [(batch(step), None) for step in range(4)]
OPTIONS = {"weights": WEIGHTS, "update_every": 2}
MODES = {
    "default": {},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
}


def mine(x):
    """This rank's part of a batch."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def _wrapped(mode, input_only):
    balancer = Balancer(**OPTIONS, input_only=input_only)
    batches = [(mine(x), names) for x, names in BATCHES]
    return train(DDP(net(), **MODES[mode]), balancer, batches, sums, multiply=2)


@pytest.mark.parametrize("input_only", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_distributed_data_parallel(ranks, mode, input_only):
    expected = train(net(), Balancer(**OPTIONS), BATCHES, sums)
    for result in ranks:
        assert_close(result[mode, input_only], expected)


class Gan(nn.Module):
    """A generator and a critic under one wrapper, as ESPnet has them."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = net(), net()
        self.balancer = Balancer(weights={"rec": 1.0, "adv": 2.0}, input_only=True)

    def forward(self, x, turn):
        y = self.generator(x)
        if turn == "critic":
            return self.critic(x).square().sum() + (self.critic(y.detach()) - 1).sum()
        losses = {"rec": (y - x).abs().sum(), "adv": self.critic(y).square().sum()}
        return sum(self.balancer(losses, y)[0].values())


def train_gan(gan, batches, multiply):
    optimizer = torch.optim.SGD(gan.parameters(), lr=0.01)
    for x in batches:
        for turn in ("generator", "critic"):
            optimizer.zero_grad()
            (multiply * gan(x, turn)).backward()
            optimizer.step()
    return [p.detach().clone() for p in gan.parameters()]


def _gan():
    batches = [mine(x) for x, _ in BATCHES]
    return train_gan(DDP(Gan(), find_unused_parameters=True), batches, 2)


def test_call_inside_the_wrapper_leaves_the_critic_unused(ranks):
    """As in ESPnet: the generator's turn has no gradient for the critic."""
    expected = train_gan(Gan(), [x for x, _ in BATCHES], 1)
    for result in ranks:
        for a, b in zip(result["gan"], expected):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def accumulate(module, balancer, batches, multiply):
    """Two calls a step; the gradients of the first are not yet reduced."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    stats = []
    for first, second in zip(batches[::2], batches[1::2]):
        optimizer.zero_grad()
        for x, last in ((first, False), (second, True)):
            wait = last or not isinstance(module, DDP)
            with contextlib.nullcontext() if wait else module.no_sync():
                y = module(x)
                new_losses, found = balancer(sums(y), y)
                (multiply * sum(new_losses.values())).backward()
            stats.append(found)
        optimizer.step()
    parameters = [p.detach().clone() for p in module.parameters()]
    return {"stats": stats, "parameters": parameters, "state": balancer.state_dict()}


def _accumulated():
    batches = [mine(x) for x, _ in BATCHES]
    return accumulate(DDP(net()), Balancer(**OPTIONS), batches, 2)


def test_gradient_accumulation_under_no_sync(ranks):
    expected = accumulate(net(), Balancer(**OPTIONS), [x for x, _ in BATCHES], 1)
    for result in ranks:
        assert_close(result["accumulated"], expected)


def _sharded(input_only):
    module = net()
    for layer in module:
        fully_shard(layer)
    fully_shard(module)
    balancer = Balancer(**OPTIONS, input_only=input_only)
    batches = [(mine(x), names) for x, names in BATCHES]
    found = train(module, balancer, batches, sums, multiply=2)
    found["parameters"] = [p.full_tensor() for p in found["parameters"]]
    return found


@needs_sharding
@pytest.mark.parametrize("input_only", [True, False])
def test_fully_sharded_data_parallel(ranks, input_only):
    expected = train(net(), Balancer(**OPTIONS), BATCHES, sums)
    for result in ranks:
        assert_close(result["sharded", input_only], expected)


def _all(rank):
    results = {"gan": _gan(), "accumulated": _accumulated()}
    for input_only in (True, False):
        if SHARDS_ON_CPU:
            results["sharded", input_only] = _sharded(input_only)
        for mode in MODES:
            results[mode, input_only] = _wrapped(mode, input_only)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, in one start of the processes."""
    return spawn(tmp_path_factory.mktemp("ranks"), _all, 2)


def _grouped(rank):
    """Ranks 0 and 2 share a batch, as do 1 and 3: two models in one job."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[rank % 2]
    batches = [(10.0 ** (rank % 2) * x.chunk(2)[rank // 2], n) for x, n in BATCHES]
    options = dict(OPTIONS, monitor=True) if rank % 2 else {}  # {} compares the names
    balancer = Balancer(**options, process_group=group)
    module = DDP(net(), process_group=group)
    found = train(module, copy.deepcopy(balancer), batches, sums, multiply=2)
    try:
        Balancer(process_group=groups[1 - rank % 2])
    except ValueError as error:
        found["refused"] = str(error)
    return found


def test_process_group(tmp_path):
    for rank, result in enumerate(spawn(tmp_path, _grouped, 4)):
        batches = [(10.0 ** (rank % 2) * x, names) for x, names in BATCHES]
        options = dict(OPTIONS, monitor=True) if rank % 2 else {}
        assert_close(result, train(net(), Balancer(**options), batches, sums))
        assert "no member of process_group" in result["refused"]


def test_what_is_no_process_group_is_refused():
    with pytest.raises(TypeError, match="process_group.*'dp'"):
        Balancer(process_group="dp")
