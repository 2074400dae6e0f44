"""What one measuring call finds out, as Python floats, the same on every rank."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Set

import torch
from torch import Tensor

from balancer.distributed import has_ranks, mean_over_ranks
from balancer.gradients import Gradients, gram, item_norms


@dataclass
class Measurement:
    """The norms of the losses' gradients and, if asked, how they lie to one another.

    Attributes:
        norms: name → n_i, for the losses that some rank brought.
        cosines: `{a}_{b}_cosine` → the cosine between two gradients, 0 if one is zero.
    """

    norms: Dict[str, float]
    cosines: Dict[str, float] = field(default_factory=dict)
    _names: Sequence[str] = ()
    _mean_products: Sequence[float] = ()
    _gram: Optional[Tensor] = None
    _group: Any = None

    def non_finite(self) -> Set[str]:
        """Return the names of the losses whose norm is infinite or NaN."""
        return {name for name, norm in self.norms.items() if not math.isfinite(norm)}

    def gram(self, names: Sequence[str]) -> Tensor:
        """Return the mean inner products of these losses' gradients, on the host.

        Returns:
            [K, K], float64.
        """
        size = len(self._names)
        whole = torch.tensor(self._mean_products, dtype=torch.float64)
        index = [self._names.index(name) for name in names]
        return whole.reshape(size, size)[index][:, index]

    def total_norm(self, scales: Mapping[str, float]) -> float:
        """Return n of Σ_i s_i g_i; a loss without a scale adds nothing."""
        assert self._gram is not None
        factors = self._gram.new_tensor([scales.get(n, 0.0) for n in self._names])
        squares = torch.einsum("i,bij,j->b", factors, self._gram, factors)
        norms = squares.clamp(min=0).sqrt()
        return mean_over_ranks(norms.mean()[None], [len(norms)], self._group)[0][0]


def measure(
    gradients: Mapping[str, Gradients],
    names: Sequence[str],
    per_batch_item: bool,
    group: Any,
) -> Measurement:
    """Measure the norms: K reductions, one all-reduce, one transfer to the host.

    Args:
        gradients: name → the gradients of a loss of this rank.
        names: the losses that any rank may bring, in the same order on each rank.
        per_batch_item: whether items are batch items; else all of an input is one.
        group: the ranks to take means over, None for all.
    """
    rows = {
        name: item_norms(grads, per_batch_item) for name, grads in gradients.items()
    }
    zero = next(iter(rows.values())).new_zeros(())
    means, items = mean_over_ranks(
        torch.stack([rows[name].mean() if name in rows else zero for name in names]),
        [len(rows[name]) if name in rows else 0 for name in names],
        group,
    )
    return Measurement(
        {name: mean for name, mean, count in zip(names, means, items) if count}
    )


def measure_pairs(
    gradients: Mapping[str, Gradients],
    names: Sequence[str],
    per_batch_item: bool,
    group: Any,
) -> Measurement:
    """Measure the norms and the inner products of all pairs, as `measure` does.

    A loss that this rank lacks counts as one with a zero gradient on this rank's items.
    """
    absent: Gradients = (None,) * len(next(iter(gradients.values())))
    products = gram([gradients.get(name, absent) for name in names], per_batch_item)
    if not has_ranks(group):
        products = products.cpu()  # the one transfer: all that follows is on the host
    norms = products.diagonal(dim1=1, dim2=2).sqrt().mean(0)
    size, count = len(names), len(products)
    present = [count if name in gradients else 0 for name in names]
    means, items = mean_over_ranks(
        torch.cat([norms, products.mean(0).flatten()]),
        present + [count] * size**2,
        group,
    )
    found = {name: mean for name, mean, n in zip(names, means, items) if n}
    cosines = _cosines(names, means[size:])
    return Measurement(found, cosines, names, means[size:], products, group)


def _cosines(names: Sequence[str], products: Sequence[float]) -> Dict[str, float]:
    cosines = {}
    norms = [math.sqrt(square) for square in products[:: len(names) + 1]]
    for (i, first), (j, second) in itertools.combinations(enumerate(names), 2):
        cosine = 0.0
        if norms[i] and norms[j]:
            cosine = products[i * len(names) + j] / (norms[i] * norms[j])
        cosines[f"{first}_{second}_cosine"] = cosine
    return cosines
