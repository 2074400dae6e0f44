"""What a call costs beside its walks, counted: transfers, collectives, checks."""

import pytest
import torch
import torch.distributed as dist
import typeguard
from ranks import WEIGHTS, spawn
from torch.utils._python_dispatch import TorchDispatchMode

from balancer import Balancer


def call(balancer):
    y = torch.ones(4, 3, requires_grad=True) * 2
    losses = {"a": y.mean(), "b": y.square().mean(), "c": y.abs().sum()}
    return sum(balancer(losses, y)[0].values())


class Ops(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def transfers(monkeypatch):
    """The calls that would wait for a device, in order."""
    seen = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__bool__", "__int__"):
        method = getattr(torch.Tensor, name)

        def counted(self, *args, _name=name, _method=method, **kwargs):
            seen.append(_name)
            return _method(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return seen


@pytest.mark.parametrize("monitor", [False, True])
def test_one_transfer_a_measurement_and_none_on_other_calls(transfers, monitor):
    balancer = Balancer(update_every=2, monitor=monitor)
    call(Balancer(monitor=monitor)).backward()  # what PyTorch looks at only once
    for step in range(4):
        transfers.clear()
        with Ops() as ops:
            call(balancer).backward()
        on_host = {"tolist", "item"} if monitor else set()
        waits = [name for name in transfers if name not in on_host]
        expected = ["cpu"] if monitor else ["tolist"]
        assert waits == (expected if step % 2 == 0 else [])
        assert "_local_scalar_dense" not in ops.counts or monitor


def test_a_call_checks_no_types_by_typeguard(monkeypatch):
    balancer = Balancer()
    monkeypatch.setattr(typeguard, "check_type", None)
    monkeypatch.setattr("typeguard._functions.check_argument_types_internal", None)
    call(balancer)


KINDS = [
    {},
    {"weights": WEIGHTS},
    {"weights": WEIGHTS, "weighting": "mgda"},
    {"weights": WEIGHTS, "monitor": True, "exact_total_norm": True},
]


def _count_collectives(rank):
    found, count = [], []
    all_reduce = dist.all_reduce

    def counted(*args, **kwargs):
        count.append(args[0].numel())
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counted
    for options in KINDS:
        balancer = Balancer(**options, update_every=2)
        for _ in range(4):
            count.clear()
            call(balancer).backward()
            found.append(list(count))
    return found


def test_one_collective_a_measurement(tmp_path):
    """Each time one of 2K + 2 numbers, of 2(K + K²) + 2 where pairs are measured.

    The two say whether a rank's gradients pass through float16.

    And one more: before it of two numbers, to compare the names while there are no
    weights; after it of two, for the norm of the balanced gradient.
    """
    sizes = [[2, 8], [8], [26], [26, 2]]
    expected = [numbers for size in sizes for numbers in (size, [], size, [])]
    assert spawn(tmp_path, _count_collectives, 2) == [expected, expected]
