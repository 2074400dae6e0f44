"""The probe on several ranks, on real gloo processes, against one process."""

import pytest
from ranks import WEIGHTS, batch, means, net, spawn
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer, GradientProbe
from balancer.quantities.probe import QUANTITIES


def quantities(module, batches, present=None):
    """The quantities of each loss after each step, with parameters that stay."""
    layer = (module.module if isinstance(module, DDP) else module)[2]
    probe = GradientProbe(layer, list(QUANTITIES), every=2)
    balancer, found = Balancer(weights=WEIGHTS, probe=probe), []
    for x in batches:
        y = module(x)
        losses = means(y)
        losses = {name: losses[name] for name in present or losses}
        new_losses, stats = balancer(losses, y)
        sum(new_losses.values()).backward()
        ends = tuple(QUANTITIES)
        found.append({key: stats[key] for key in stats if key.endswith(ends)})
    return found


def _splits(rank, splits):
    batches = [batch(step).split(splits)[rank] for step in range(4)]
    return quantities(DDP(net()), batches)


@pytest.mark.parametrize("splits", [[5, 7], [1, 11, 0], [12, 0]])
def test_equals_one_process_on_the_joined_batch(tmp_path, splits):
    """Uneven batches and an empty one; each rank has the same to the bit."""
    found = spawn(tmp_path, _splits, len(splits), splits)
    expected = quantities(net(), [batch(step) for step in range(4)])
    assert expected[1] == expected[0] != expected[2]
    for result in found:
        assert result == found[0]
        for step, reference in zip(result, expected):
            assert step == pytest.approx(reference, rel=1e-9)


def _absent(rank):
    present = [list("abc"), list("ba")][rank]
    return quantities(DDP(net()), [batch(0).chunk(2)[rank]], present)


def test_loss_missing_on_one_rank(tmp_path):
    """Its samples are those of the ranks that have it."""
    first, second = spawn(tmp_path, _absent, 2)
    assert first == second
    whole = quantities(net(), [batch(0)])[0]
    part = quantities(net(), [batch(0).chunk(2)[0]])[0]
    expected = {key: (part if key[0] == "c" else whole)[key] for key in whole}
    assert first[0] == pytest.approx(expected, rel=1e-9)


def _early(rank):
    """Probe every second call, and run rank 1's third forward before its time."""
    module = net()
    balancer = Balancer(probe=GradientProbe(module[2], ["norm_test"], every=2))
    for step in range(4):
        if step == 1:
            early = module(batch(9))
        y = early if step == 2 and rank == 1 else module(batch(step))
        balancer(means(y), y)
    return balancer.state_dict()


def test_all_ranks_wait_for_one_that_was_not_noted(tmp_path):
    first, second = spawn(tmp_path, _early, 2)
    assert first == second and first["probed_at"] == 3
