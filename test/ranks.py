"""Gloo processes for tests, and a small training with one result whoever runs it."""

import os
import sys
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

# An optimizer imports torch._dynamo, which takes longer than most of these trainings.
PRELOAD = ["torch", "torch.distributed.fsdp", "torch._dynamo", "balancer"]
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}
# What fully_shard needs and torch 2.6 lacks without a GPU.
SHARDS_ON_CPU = hasattr(torch.cpu.Stream, "record_event")
needs_sharding = pytest.mark.skipif(
    not SHARDS_ON_CPU, reason="this torch cannot shard on the CPU"
)


def spawn(tmp_path, function, ranks, *args):
    """Run function(rank, *args) in each process; return what each returned."""
    results = [tmp_path / f"{rank}.pt" for rank in range(ranks)]
    store = f"file://{tmp_path}/store{time.time_ns()}"
    context()
    mp.start_processes(
        _run,
        (ranks, store, results, function, args),
        nprocs=ranks,
        start_method="forkserver",
    )
    return [torch.load(path, weights_only=False) for path in results]


def context():
    """Return what starts processes: a server that imported once what each needs.

    ESPnet is not in it: there is one server for all tests.
    """
    found = mp.get_context("forkserver")
    found.set_forkserver_preload(PRELOAD)
    return found


def _run(rank, ranks, store, results, function, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    try:
        torch.save(function(rank, *args), results[rank])
    except BaseException:
        # A process that ends with its group alive can wait for the others for good.
        dist.destroy_process_group()
        raise
    # In PyTorch 2.6 the group's end holds Python while it waits for a thread which may
    # need Python to free a tensor. So the process ends without it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 3, generator=generator, dtype=torch.float64)


def sums(y):
    """Losses that are sums over items, so that a rank's are its part of the joined."""
    return {
        "a": 1e-3 * y.abs().sum(),
        "b": 10 * (y - 1).square().sum(),
        "c": y[:, 0].exp().sum(),
    }


def means(y):
    return {name: loss / max(len(y), 1) for name, loss in sums(y).items()}


def train(module, balancer, batches, losses_of, multiply=1.0):
    """Train with SGD; return the stats of each step, parameters and state."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    stats = []
    for x, names in batches:
        y = module(x)
        losses = losses_of(y)
        new_losses, found = balancer(
            losses if names is None else {n: losses[n] for n in names}, y
        )
        optimizer.zero_grad()
        (multiply * sum(new_losses.values())).backward()
        optimizer.step()
        stats.append(found)
    parameters = [p.detach().clone() for p in module.parameters()]
    return {"stats": stats, "parameters": parameters, "state": balancer.state_dict()}


def assert_close(found, expected):
    for a, b in zip(found["parameters"], expected["parameters"]):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for a, b in zip(found["stats"], expected["stats"]):
        assert a == pytest.approx(b, rel=1e-9)
    for name, pair in expected["state"]["averages"].items():
        assert found["state"]["averages"][name] == pytest.approx(pair, rel=1e-9)
