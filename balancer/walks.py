"""One measurement: the walks through the losses' graphs, and what they show."""

from typing import Any, Dict, Mapping, Sequence, Tuple

from torch import Tensor

from balancer.gradients import Gradients, loss_gradients
from balancer.graph import walk_order, why_independent
from balancer.half import STEP, divided, power_for, runs_in_float16
from balancer.measurement import Measurement, measure, measure_pairs


def take_gradients(
    losses: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    names: Sequence[str],
    last_norms: Mapping[str, float],
    per_batch_item: bool,
    pairs: bool,
    keep_graph: bool,
    group: Any,
) -> Tuple[Dict[str, Gradients], Measurement]:
    """Return the losses' gradients on this rank and their norms over all ranks.

    In float16 a loss whose scaled gradient overflows is walked once more with a lower
    power of two. All ranks see the same norms, so all decide alike.

    Args:
        losses: name → loss of this rank.
        inputs: what the gradients are taken for.
        names: the losses that any rank may bring, in the same order on each rank.
        last_norms: the norms that were measured before.
        per_batch_item: whether norms are taken for each batch item.
        pairs: whether to keep the inner products of the gradients too.
        keep_graph: whether the losses' graphs are needed afterwards.
        group: the ranks to take means over, None for all.

    Raises:
        ValueError: a loss does not depend on the inputs.
    """
    half = runs_in_float16(inputs)
    powers = {name: power_for(last_norms.get(name)) if half else 0 for name in names}
    # A walk in float16 may have to be repeated.
    all_kept = keep_graph or half
    kept = dict.fromkeys(losses, True) if all_kept else walk_order(losses, inputs)
    gradients: Dict[str, Gradients] = {}
    again = list(kept)
    while True:
        for name in again:
            gradients[name] = _walk(
                name, losses[name], inputs, kept[name], powers[name]
            )
        measured = (measure_pairs if pairs else measure)(
            gradients, names, per_batch_item, group
        )
        overflowed = {name for name in measured.non_finite() if powers[name]}
        if not overflowed:
            return {name: gradients[name] for name in losses}, measured
        powers.update({name: max(0, powers[name] - STEP) for name in overflowed})
        again = [name for name in losses if name in overflowed]


def _walk(
    name: str, loss: Tensor, inputs: Sequence[Tensor], keep_graph: bool, power: int
) -> Gradients:
    found = loss_gradients(name, loss, inputs, keep_graph, 2.0**power)
    if all(grad is None for grad in found):
        raise ValueError(why_independent(name, loss, inputs))
    return divided(found, power) if power else found
