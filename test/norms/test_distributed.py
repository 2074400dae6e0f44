"""Several ranks, on real gloo processes, against one process on the joined batch."""

import pytest
import torch
import torch.distributed as dist
from ranks import WEIGHTS, assert_close, batch, means, net, spawn, sums, train
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

OPTIONS = [
    {"update_every": 2},
    {
        "update_every": 2,
        "weights": WEIGHTS,
        "monitor": True,
        "exact_total_norm": True,
    },
]


def _sums(rank, splits):
    return [_sums_with(options, rank, splits) for options in OPTIONS]


def _sums_with(options, rank, splits):
    batches = [(batch(step).split(splits)[rank], None) for step in range(5)]
    ranks = dist.get_world_size()
    # DDP takes the mean over ranks of what is, here, a part of a sum.
    return train(DDP(net()), Balancer(**options), batches, sums, multiply=ranks)


@pytest.mark.parametrize("splits", [[12], [5, 7], [1, 9, 2], [3, 3, 3, 3]])
def test_equals_one_process_on_the_joined_batch(tmp_path, splits):
    """Uneven batches too; averages, scales, stats and parameters."""
    batches = [(batch(step), None) for step in range(5)]
    expected = [train(net(), Balancer(**options), batches, sums) for options in OPTIONS]
    found = spawn(tmp_path, _sums, len(splits), splits)
    for results in found:
        for result, first, one in zip(results, found[0], expected):
            assert_close(result, one)
            assert result["stats"] == first["stats"]
            assert result["state"] == first["state"]


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


def _left_out(rank):
    names = [["a", "b"], ["a"]]
    batches = [(batch(step).chunk(2)[rank], names[step]) for step in range(2)]
    return train(DDP(net()), Balancer(update_every=4), batches, sums)


def test_loss_that_all_ranks_leave_out_of_a_held_call_without_weights(tmp_path):
    """Its share is the others', as on one process."""
    for result in spawn(tmp_path, _left_out, 2):
        assert [stats["a_share"] for stats in result["stats"]] == pytest.approx(
            [0.5, 1.0]
        )


def _changed_names(rank):
    balancer, found = Balancer(update_every=2), []
    for step in range(3):
        y = net()(batch(step))
        losses = sums(y)
        if rank == 1 and step:
            losses["d"] = losses.pop("c")
        try:
            found.append(sorted(balancer(losses, y)[0]))
        except ValueError as error:
            found.append(str(error))
    return found


def test_names_that_come_to_differ_raise_on_every_rank_at_the_next_measurement(
    tmp_path,
):
    """A call that holds its averages exchanges nothing, so it cannot tell."""
    for found in spawn(tmp_path, _changed_names, 2):
        assert "without `weights`" in found[2]


def _weightless(rank):
    """Rank 1 brings only a loss of weight 0, then both do."""
    balancer = Balancer(weights={"a": 1.0, "off": 0.0})
    found = []
    for names in (["a", "off"], ["off"]):
        y = net()(batch(0)).detach().requires_grad_()
        losses = {"a": y.sum(), "off": y.square().sum()}
        present = ["off"] if rank == 1 else names
        try:
            found.append(balancer({name: losses[name] for name in present}, y)[1])
        except ValueError as error:
            found.append(str(error))
    return found


def test_rank_that_has_only_losses_of_weight_zero(tmp_path):
    """It takes part; where all ranks have nothing that weighs, all raise."""
    first, second = spawn(tmp_path, _weightless, 2)
    assert first[0] == second[0] and first[0]["a_share"] == pytest.approx(1.0)
    assert "sum to zero" in first[1] and "sum to zero" in second[1]


def _half_on_one(rank):
    """Rank 1's losses pass through float16, and first overflow with their power."""
    torch.manual_seed(rank)
    y = torch.randn(4, 8, requires_grad=True)
    critic = torch.nn.Linear(8, 3)
    losses = {"a": y.abs().mean(), "b": critic(y).mean()}
    if rank == 1:
        losses["b"] = 60.0 * critic.half()(y.half()).sum()
    balancer = Balancer(weights={"a": 1.0, "b": 1.0})
    _, stats = balancer(losses, y)
    return stats


def test_float16_on_one_rank_alone(tmp_path):
    """A walk that overflowed is repeated there, and the others take part."""
    first, second = spawn(tmp_path, _half_on_one, 2)
    assert first == second
    assert 0 < first["b_norm"] < float("inf")
