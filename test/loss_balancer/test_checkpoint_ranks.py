"""The averages through torch.distributed.checkpoint, on real gloo processes."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import WEIGHTS, batch, means, needs_sharding, net, spawn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

OPTIONS = {
    "plain": {},
    "on the host": {"cpu_offload": True},
    "flat": {"flatten_optimizer_state_dict": True},
    "full": {"full_state_dict": True},
    "from rank 0": {"full_state_dict": True, "broadcast_from_rank0": True},
}


class Run:
    """A training on this rank's half of each batch, with the averages in Adam."""

    def __init__(self, kind):
        module = net()
        self.module = fully_shard(module) if kind == "FSDP" else DDP(module)
        parameters = self.module.parameters()
        self.optimizer = (
            ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)
            if kind == "ZeRO"
            else torch.optim.Adam(parameters, lr=0.01)
        )
        self.balancer = Balancer(weights=WEIGHTS)
        self.balancer.checkpoint_with(self.optimizer)

    def train(self, steps):
        for step in steps:
            y = self.module(batch(step).chunk(2)[dist.get_rank()])
            new_losses, _ = self.balancer(means(y), y)
            self.optimizer.zero_grad()
            sum(new_losses.values()).backward()
            self.optimizer.step()
        return self


def _options(rank, kind, folder):
    """The averages before, and after each way through a checkpoint."""
    run = Run(kind).train(range(3))
    found = {"": run.balancer.state_dict()}
    for name, kept in OPTIONS.items():
        options = StateDictOptions(**kept)
        saved = get_optimizer_state_dict(run.module, run.optimizer, options=options)
        other = Run(kind)
        if rank and "broadcast_from_rank0" in kept:
            saved = {}
        set_optimizer_state_dict(other.module, other.optimizer, saved, options=options)
        found[name] = other.balancer.state_dict()
        if "full_state_dict" in kept:
            continue
        saved = get_optimizer_state_dict(run.module, run.optimizer, options=options)
        dcp.save(saved, checkpoint_id=folder / name)
        other = Run(kind)
        read = get_optimizer_state_dict(other.module, other.optimizer, options=options)
        dcp.load(read, checkpoint_id=folder / name)
        set_optimizer_state_dict(other.module, other.optimizer, read, options=options)
        found[f"{name}, saved"] = other.balancer.state_dict()
    dcp.save(run.optimizer.state_dict(), checkpoint_id=folder / "raw")
    for steps in (0, 1):  # Adam's state is empty before the first
        other = Run(kind).train(range(steps))
        read = other.optimizer.state_dict()
        dcp.load(read, checkpoint_id=folder / "raw")
        other.optimizer.load_state_dict(read)
        found[f"raw after {steps}"] = other.balancer.state_dict()
    return found


@pytest.mark.parametrize("kind", ["DDP", pytest.param("FSDP", marks=needs_sharding)])
def test_nothing_is_lost_on_the_way(kind, tmp_path):
    for found in spawn(tmp_path, _options, 2, kind, tmp_path):
        expected = found.pop("")
        assert len(found) == 10 and expected["calls"] == 3
        for name, state in found.items():
            assert state == expected, name


def _zero(rank):
    run = Run("ZeRO").train(range(3))
    run.optimizer.consolidate_state_dict(to=0)
    saved = [None if rank else run.optimizer.state_dict()]
    dist.broadcast_object_list(saved, 0)
    other = Run("ZeRO")
    other.module.load_state_dict(run.module.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(saved[0]))
    runs = [run.balancer.state_dict(), other.balancer.state_dict()]
    for each in (run, other):
        each.train(range(3, 5))
        runs.append(each.balancer.state_dict())
    return runs


def test_an_optimizer_that_has_no_state_dict_until_it_is_consolidated(tmp_path):
    for saved, loaded, went_on, resumed in spawn(tmp_path, _zero, 2):
        assert loaded == saved and resumed == went_on != saved
