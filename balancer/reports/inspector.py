"""What several losses' raw gradients are, before they are balanced.

from balancer.reports import LossInspector

inspector = LossInspector()
for batch in itertools.islice(loader, 20):
    ...                          # your loop: the output y, and losses of it
    inspector(losses, y)
    ...
print(inspector.inspection())    # norms, shares, cosines, warnings, weights, total_norm
"""

import itertools
import math
import sys
from statistics import fmean
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from torch import Tensor, nn

from balancer._scales.weights import weights_at
from balancer.loss_balancer import Balancer
from balancer.quantities.outside import norms_where_all_reach
from balancer.reports.inspection import Inspection, Meeting
from balancer.reports.stats import losses_of, subjects_of


class LossInspector:
    """Measures raw gradients in a training loop, which goes on as it is.

    Let y be the model's output, l_i its losses and g_i = ∂l_i/∂y. A call takes n_i, the
    mean over batch items of ‖g_i[b]‖₂ (or ‖g_i‖₂), and the cosines between them. It
    walks each loss's graph once and leaves it for the loop's own backward.

    Args:
        weights: loss → weight that you think of, for the column of targets; a number or
            a ramp, of which the end counts. None weighs all losses alike.
        per_batch_item: as the balancer's.
        input_only: True frees the losses' graphs, where no backward is to follow.

    Example:
        >>> import torch
        >>> inspector = LossInspector()
        >>> for _ in range(3):
        ...     y = torch.ones(2, 4, requires_grad=True)  # the model's output
        ...     losses = {"mel": 15 * y.square().mean(), "adv": 2 * y.mean()}
        ...     inspector(losses, y)
        ...     sum(losses.values()).backward()  # the loop's own
        >>> print(inspector.inspection())
        Gradients at the output; means over 3 batches.
        <BLANKLINE>
        loss  norm  share unbalanced  share balanced, all alike
        mel    7.5             0.938                      0.500
        adv    0.5            0.0625                      0.500
        <BLANKLINE>
        cosine   mel
        adv     1.00
        <BLANKLINE>
        To balance and keep the gradient as it is, give the balancer these:
        <BLANKLINE>
        weights:
            mel: 0.9375
            adv: 0.0625
        total_norm: 8.0
    """

    def __init__(
        self,
        *,
        weights: Optional[Mapping[str, Any]] = None,
        per_batch_item: bool = True,
        input_only: bool = False,
    ):
        self._weights = Balancer(weights=weights).weights
        self.balancer = Balancer(
            ema_decay=1.0,  # the mean over all batches
            per_batch_item=per_batch_item,
            balance_grads=False,
            monitor=True,
            input_only=input_only,
        )
        self._stats: List[Dict[str, float]] = []
        self._meetings: List[List[float]] = []
        self._names: Dict[str, None] = {}  # in the order of the calls

    def __call__(
        self,
        losses: Mapping[str, Tensor],
        input: Union[Tensor, Sequence[Tensor]],
        outside: Optional[Tensor] = None,
        module: Optional[nn.Module] = None,
    ) -> None:
        """Measure a batch's gradients.

        Args:
            losses: name → tensor of one element, times its factor in the loop's sum. A
                loss may be missing in some calls.
            input: y, [B, …], or several, which all losses are computed from.
            outside: the sum of the loop's other losses, such as a codebook's, which is
                what `total_norm` weighs the balanced ones against.
            module: holds the parameters that `outside` trains too. Needed with it.

        Raises:
            ValueError: a loss does not depend on `input`, or nothing requires grad;
                one of `outside` and `module` is missing; a loss has no weight.
            TypeError: a loss or an input is not a tensor.
        """
        if (outside is None) != (module is None):
            raise ValueError(
                "`outside` and `module` go together: the losses that are not balanced, "
                "and the network whose parameters they train"
            )
        weights = self._weights_of(list(losses))
        plain, stats = self.balancer(losses, input)
        if not losses_of(stats):
            raise ValueError(
                "no loss requires grad: inspect where gradients are on, outside of "
                "torch.no_grad() and torch.inference_mode()"
            )
        if outside is not None and module is not None:
            self._meet(plain, weights, outside, module)
        self._stats.append(dict(stats))
        self._names.update(dict.fromkeys(losses))

    def _meet(
        self,
        plain: Mapping[str, Tensor],
        weights: Mapping[str, float],
        outside: Tensor,
        module: nn.Module,
    ) -> None:
        """Measure where the losses meet those outside: these, plain, and balanced."""
        targets = _parts(weights)
        norms = {name: self.balancer.metrics[f"{name}_norm"] for name in plain}
        balanced = [
            targets[name] / norm * plain[name]
            for name, norm in norms.items()
            if 0 < norm < math.inf
        ]
        if balanced:
            sums: Any = {"outside": outside, "unbalanced": sum(plain.values())}
            sums["balanced"] = sum(balanced)
            found = norms_where_all_reach(sums, module)
            self._meetings += [list(found.values())] if found else []

    def _weights_of(self, names: Sequence[str]) -> Dict[str, float]:
        """Return the weights that were given, at the end of their ramps, or equal ones.

        Raises:
            ValueError: a loss has no weight.
        """
        given = self._weights or dict.fromkeys(names, 1.0)
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(
                f"loss {missing[0]!r} has no weight: weights has {list(given)}"
            )
        return weights_at({name: given[name] for name in names}, sys.maxsize)

    def inspection(self) -> "Inspection":
        """Return what was found, means over the batches.

        Raises:
            ValueError: there was no batch, or a loss has no weight.
        """
        if not self._stats:
            raise ValueError("there was no batch to inspect: call the inspector first")
        means = {
            key: fmean(stats[key] for stats in self._stats if key in stats)
            for key in dict.fromkeys(itertools.chain(*self._stats))
        }
        names = list(self._names)
        found = {subject: means[key] for key, subject in subjects_of(means, names)}
        return Inspection(
            norms={name: found["norm", name] for name in names},
            shares=_parts({name: found["norm", name] for name in names}),
            targets=_parts(self._weights_of(names)),
            cosines={
                pair: value for (stat, pair), value in found.items() if stat == "cosine"
            },
            batches=len(self._stats),
            weighted=self._weights is not None,
            meeting=Meeting.of(self._meetings),
        )


def inspect_losses(
    batches: Iterable[Tuple[Mapping[str, Tensor], Union[Tensor, Sequence[Tensor]]]],
    *,
    weights: Optional[Mapping[str, Any]] = None,
    per_batch_item: bool = True,
) -> "Inspection":
    """Return what the raw gradients of a few batches are; print it to read it.

    Args:
        batches: of each the losses, times their factors in your sum, and the output
            that they are computed from.
        weights, per_batch_item: see LossInspector.

    Raises:
        ValueError: there is no batch, or a loss does not depend on the output.

    Example:
        >>> import torch
        >>> def batches(model=torch.nn.Linear(2, 2), count=2):
        ...     for _ in range(count):
        ...         y = model(torch.ones(3, 2))
        ...         yield {"l1": y.abs().mean(), "l2": y.square().mean()}, y
        >>> inspect_losses(batches(), weights={"l1": 1, "l2": 3}).targets
        {'l1': 0.25, 'l2': 0.75}
    """
    inspector = LossInspector(
        weights=weights, per_batch_item=per_batch_item, input_only=True
    )
    for losses, output in batches:
        inspector(losses, output)
    return inspector.inspection()


def _parts(values: Mapping[str, float]) -> Dict[str, float]:
    """Return each value over the sum of those that are finite."""
    total = sum(value for value in values.values() if math.isfinite(value))
    return {name: value / total if total else 0.0 for name, value in values.items()}
