"""What one measuring call finds out, as Python floats, the same on every rank."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from balancer._gradients.autograd import Gradients, loss_gradients
from balancer._gradients.float16 import STEP, divided, power_for
from balancer._gradients.graph import LossGraph
from balancer._norms.items import gram, item_norms
from balancer._norms.ranks import has_ranks, mean_over_ranks

# A Gram matrix cannot tell a smaller part of its gradients' norms from its rounding.
_GRAM_ROUNDING = 1e-6


@dataclass
class Measurement:
    """The norms of the losses' gradients and, if asked, how they lie to one another.

    Attributes:
        norms: name → n_i, for the losses that some rank brought.
        in_float16: whether gradients pass through float16 on some rank.
        rounding: a smaller part of the gradients' norms is rounding: of their dtype, or
            of a Gram matrix.
        cosines: `{a}_{b}_cosine` → the cosine between two gradients, 0 if one is zero.
    """

    norms: Dict[str, float]
    in_float16: bool
    rounding: float = _GRAM_ROUNDING
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
    graph: LossGraph,
    names: Sequence[str],
    last_norms: Mapping[str, float],
    per_batch_item: bool,
    pairs: bool,
    keep_graph: bool,
    group: Any,
) -> Tuple[Dict[str, Gradients], Measurement]:
    """Walk this rank's losses; return their gradients, and the norms over all ranks.

    In float16 a loss whose scaled gradient overflows is walked once more with a lower
    power of two. All ranks see the same norms, so all decide alike.

    Args:
        graph: that of the losses of this rank.
        names: the losses that any rank may bring, in the same order on each rank.
        last_norms: the norms that were measured before.
        per_batch_item: whether items are batch items; else all of an input is one.
        pairs: whether to keep the inner products of the gradients too.
        keep_graph: whether the losses' graphs are needed afterwards.
        group: the ranks to take means over, None for all.
    """
    half = graph.runs_in_float16()
    powers = {name: power_for(last_norms.get(name)) for name in names}
    kept = graph.order()
    gradients: Dict[str, Gradients] = {}
    todo = list(kept)
    while True:
        for name in todo:
            # A walk in float16 may have to be repeated.
            keep, power = keep_graph or half or kept[name], powers[name] if half else 0
            found = loss_gradients(
                name, graph.losses[name], graph.inputs, keep, 2.0**power
            )
            gradients[name] = divided(found, power) if power else found
        look = _pairs if pairs else _norms
        measured = look(gradients, names, half, per_batch_item, group)
        overflowed = {
            name
            for name in measured.non_finite()
            if measured.in_float16 and powers[name]
        }
        if not overflowed:
            kinds = [torch.finfo(tensor.dtype) for tensor in graph.inputs]
            measured.rounding = max(_GRAM_ROUNDING, *(kind.eps for kind in kinds))
            return {name: gradients[name] for name in graph.losses}, measured
        powers.update({name: max(0, powers[name] - STEP) for name in overflowed})
        todo = [name for name in kept if half and name in overflowed]


def _norms(
    gradients: Mapping[str, Gradients],
    names: Sequence[str],
    half: bool,
    per_batch_item: bool,
    group: Any,
) -> Measurement:
    """Measure the norms: K reductions, one all-reduce, one transfer to the host."""
    rows = {
        name: item_norms(grads, per_batch_item) for name, grads in gradients.items()
    }
    zero = next(iter(rows.values())).new_zeros(())
    means, items, in_float16 = _over_ranks(
        torch.stack([rows[name].mean() if name in rows else zero for name in names]),
        [len(rows[name]) if name in rows else 0 for name in names],
        half,
        group,
    )
    found = {name: mean for name, mean, count in zip(names, means, items) if count}
    return Measurement(found, in_float16)


def _pairs(
    gradients: Mapping[str, Gradients],
    names: Sequence[str],
    half: bool,
    per_batch_item: bool,
    group: Any,
) -> Measurement:
    """Measure the norms and the inner products of all pairs, as `_norms` does.

    A loss that this rank lacks counts as one with a zero gradient on this rank's items.
    """
    absent: Gradients = (None,) * len(next(iter(gradients.values())))
    products = gram([gradients.get(name, absent) for name in names], per_batch_item)
    if not has_ranks(group):
        products = products.cpu()  # the one transfer: all that follows is on the host
    norms = products.diagonal(dim1=1, dim2=2).sqrt().mean(0)
    size, count = len(names), len(products)
    present = [count if name in gradients else 0 for name in names]
    means, items, in_float16 = _over_ranks(
        torch.cat([norms, products.mean(0).flatten()]),
        present + [count] * size**2,
        half,
        group,
    )
    found = {name: mean for name, mean, n in zip(names, means, items) if n}
    cosines = _cosines(names, means[size:])
    return Measurement(
        found,
        in_float16,
        cosines=cosines,
        _names=names,
        _mean_products=means[size:],
        _gram=products,
        _group=group,
    )


def _over_ranks(
    means: Tensor, counts: Sequence[int], half: bool, group: Any
) -> Tuple[List[float], List[float], bool]:
    """Return the means over all ranks, their counts, and whether any has float16.

    That a rank's gradients pass through float16 travels as one mean more.
    """
    if not has_ranks(group):
        return (*mean_over_ranks(means, counts, group), half)
    means = torch.cat([means, means.new_tensor([float(half)])])
    found, items = mean_over_ranks(means, [*counts, 1], group)
    return found[:-1], items[:-1], found[-1] > 0


def _cosines(names: Sequence[str], products: Sequence[float]) -> Dict[str, float]:
    cosines = {}
    norms = [math.sqrt(square) for square in products[:: len(names) + 1]]
    for (i, first), (j, second) in itertools.combinations(enumerate(names), 2):
        cosine = 0.0
        if norms[i] and norms[j]:
            cosine = products[i * len(names) + j] / (norms[i] * norms[j])
        cosines[f"{first}_{second}_cosine"] = cosine
    return cosines
