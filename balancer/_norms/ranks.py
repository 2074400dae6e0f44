"""What ranks tell each other. Alone, nothing here does anything.

A group is a torch.distributed.ProcessGroup, or None for all ranks.
"""

import hashlib
from typing import Any, Iterable, List, Sequence, Tuple

import torch
from torch import Tensor
from torch import distributed as dist


def check_group(group: Any) -> None:
    """Raise TypeError or ValueError if this rank cannot communicate in a group."""
    if group is None:
        return
    if dist.is_available() and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "this rank is no member of process_group: give each rank the group of the "
            "ranks that hold other parts of its batch"
        )
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "process_group must be a torch.distributed.ProcessGroup, as "
            f"torch.distributed.new_group returns it, but is {group!r}"
        )


def has_ranks(group: Any = None) -> bool:
    """Tell whether this process is one of several in an initialized process group."""
    return (
        dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
    )


def is_first_rank(group: Any = None) -> bool:
    """Tell whether this process is the one of its group that speaks for all."""
    return not has_ranks(group) or dist.get_rank(group) == 0


def mean_over_ranks(
    means: Tensor, counts: Sequence[int], group: Any = None
) -> Tuple[List[float], List[float]]:
    """Return the means over all items of all ranks, by at most one all-reduce.

    Args:
        means: [M], this rank's means.
        counts: how many items each is the mean of; zero where this rank has none.
        group: the ranks.

    Returns:
        Σ_r counts_r·means_r / Σ_r counts_r over the ranks r, 0 where no rank has an
        item, and Σ_r counts_r. Both reach the host in one transfer.
    """
    if not has_ranks(group):
        return means.tolist(), [float(count) for count in counts]
    weights = means.new_tensor(counts)
    sums = torch.where(weights > 0, means * weights, torch.zeros_like(means))
    both = torch.stack([sums, weights])
    dist.all_reduce(both, group=group)
    totals, items = both.tolist()
    return [
        total / count if count else 0.0 for total, count in zip(totals, items)
    ], items


def gather_rows(rows: Tensor, group: Any = None) -> Tensor:
    """Return the rows of all ranks under one another, the same on each rank.

    Args:
        rows: [N, D], this rank's rows. N may differ from rank to rank and be zero.
        group: the ranks.

    Returns:
        [Σ_r N_r, D], in the order of the ranks; alone, `rows` themselves.
    """
    if not has_ranks(group):
        return rows
    counts = torch.zeros(
        dist.get_world_size(group), dtype=torch.int64, device=rows.device
    )
    counts[dist.get_rank(group)] = len(rows)
    dist.all_reduce(counts, group=group)
    sizes = counts.tolist()
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes)])


def check_same_names(
    names: Iterable[str], device: torch.device, group: Any = None
) -> None:
    """Raise on every rank if the ranks bring different losses, by one all-reduce.

    Raises:
        ValueError: the ranks' names differ.
    """
    if not has_ranks(group):
        return
    text = "\0".join(sorted(names))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    both = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    highest, lowest = both.tolist()
    if highest != -lowest:
        raise ValueError(
            f"the ranks bring different losses, and this one brings {sorted(names)}: "
            "without `weights` every rank must bring the same; give `weights` for all"
        )
