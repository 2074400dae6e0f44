"""Several ranks, on real gloo processes, against one process on the joined batch."""

import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}


def spawn(tmp_path, function, ranks, *args):
    """Run function(rank, *args) in each process; return what each returned."""
    results = [tmp_path / f"{rank}.pt" for rank in range(ranks)]
    store = f"file://{tmp_path}/store{time.time_ns()}"
    mp.spawn(_run, (ranks, store, results, function, args), nprocs=ranks)
    return [torch.load(path, weights_only=False) for path in results]


def _run(rank, ranks, store, results, function, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    torch.save(function(rank, *args), results[rank])
    dist.destroy_process_group()


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


def _sums(rank, splits, options):
    batches = [(batch(step).split(splits)[rank], None) for step in range(5)]
    ranks = dist.get_world_size()
    module = DDP(net())
    # DDP takes the mean over ranks of what is, here, a part of a sum.
    result = train(module, Balancer(**options), batches, sums, multiply=ranks)
    return result


@pytest.mark.parametrize("splits", [[12], [5, 7], [1, 9, 2], [3, 3, 3, 3]])
@pytest.mark.parametrize("options", [{}, {"weights": WEIGHTS, "monitor": True}])
def test_equals_one_process_on_the_joined_batch(tmp_path, splits, options):
    """Uneven batches too; averages, scales, stats and parameters."""
    options = {**options, "update_every": 2}
    found = spawn(tmp_path, _sums, len(splits), splits, options)
    expected = train(
        net(), Balancer(**options), [(batch(step), None) for step in range(5)], sums
    )
    for result in found:
        assert_close(result, expected)
        assert result["stats"] == found[0]["stats"]
        assert result["state"] == found[0]["state"]


def _means(rank, ranks):
    batches = [(batch(step).chunk(ranks)[rank], None) for step in range(4)]
    return train(
        DDP(net()), Balancer(total_norm=float(ranks), epsilon=0.0), batches, means
    )


def test_mean_losses_need_total_norm_times_ranks(tmp_path):
    """A mean over a smaller batch has a larger gradient for each of its items."""
    batches = [(batch(step), None) for step in range(4)]
    expected = train(net(), Balancer(epsilon=0.0), batches, means)
    for result in spawn(tmp_path, _means, 2, 2):
        for a, b in zip(result["parameters"], expected["parameters"]):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def _absent(rank, update_every):
    """Rank 1 lacks c at steps 0 and 2; the order of the losses differs."""
    names = [list("abc"), list("cba")][rank]
    batches = []
    for step in range(4):
        present = [n for n in names if n != "c" or rank == 0 or step % 2]
        batches.append((batch(step).chunk(2)[rank], present))
    balancer = Balancer(weights=WEIGHTS, ema_decay=0.0, update_every=update_every)
    return train(DDP(net()), balancer, batches, sums)


@pytest.mark.parametrize("update_every", [1, 3])
def test_loss_missing_on_one_rank(tmp_path, update_every):
    """It counts with the items of the ranks that have it; the stats stay the same."""
    first, second = spawn(tmp_path, _absent, 2, update_every)
    assert first["stats"] == second["stats"] and first["state"] == second["state"]
    y = net()(batch(0).chunk(2)[0])
    grad = torch.autograd.grad(sums(y)["c"], y)[0]
    norm = grad.norm(dim=1).mean().item()
    assert first["stats"][0]["c_norm"] == pytest.approx(norm, rel=1e-9)
    assert first["stats"][0]["c_scale"] == pytest.approx(0.5 / norm, rel=1e-9)


def _empty(rank):
    splits = [[6, 6], [12, 0], [6, 6]]
    batches = [(batch(step).split(splits[step])[rank], None) for step in range(3)]
    return train(DDP(net()), Balancer(weights=WEIGHTS), batches, sums, multiply=2)


def test_empty_batch_on_one_rank(tmp_path):
    expected = train(
        net(),
        Balancer(weights=WEIGHTS),
        [(batch(step), None) for step in range(3)],
        sums,
    )
    for result in spawn(tmp_path, _empty, 2):
        assert_close(result, expected)


def _all_empty(rank):
    y = net()(batch(0)[:0])
    try:
        Balancer()(sums(y), y)
    except ValueError as error:
        return str(error)


def test_empty_batch_on_all_ranks_is_refused_on_all(tmp_path):
    assert all("every rank" in message for message in spawn(tmp_path, _all_empty, 2))


def _other_names(rank):
    y = net()(batch(0))
    losses = sums(y)
    balancer = Balancer()
    if rank == 1:
        losses["d"] = losses.pop("c")
    try:
        balancer(losses, y)
    except ValueError as error:
        return str(error), balancer.state_dict()


def test_other_names_on_a_rank_raise_on_every_rank(tmp_path):
    found = spawn(tmp_path, _other_names, 3)
    assert all("without `weights`" in message for message, _ in found)
    assert "'d'" in found[1][0] and "'d'" not in found[0][0]
    assert all(state == Balancer().state_dict() for _, state in found)


def _resumed(rank, path):
    options = dict(weights=WEIGHTS, update_every=3, ema_decay=0.9)
    batches = [(batch(step).chunk(2)[rank], None) for step in range(8)]
    whole = train(DDP(net()), Balancer(**options), batches, sums)
    module, balancer = DDP(net()), Balancer(**options)
    train(module, balancer, batches[:4], sums)
    if rank == 0:
        torch.save(balancer.state_dict(), path)
    dist.barrier()
    resumed = Balancer(**options)
    resumed.load_state_dict(torch.load(path, weights_only=True))
    return whole, train(module, resumed, batches[4:], sums)


def test_ranks_resume_in_step_from_one_checkpoint(tmp_path):
    for whole, resumed in spawn(tmp_path, _resumed, 2, tmp_path / "c.pt"):
        assert resumed["stats"] == whole["stats"][4:]
        assert resumed["state"] == whole["state"]
        assert all(map(torch.equal, resumed["parameters"], whole["parameters"]))
