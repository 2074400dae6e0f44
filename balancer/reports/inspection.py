"""What several losses' raw gradients are, before they are balanced.

from balancer.reports.inspection import LossInspector

inspector = LossInspector()
for batch in itertools.islice(loader, 20):
    ...                          # your loop: the output y, and losses of it
    inspector(losses, y)
    ...
print(inspector.inspection())    # norms, shares, cosines, warnings, weights
"""

import itertools
import math
import sys
from dataclasses import dataclass, field
from statistics import fmean
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import yaml
from torch import Tensor

from balancer._scales.weights import weights_at
from balancer.loss_balancer import Balancer
from balancer.reports.stats import losses_of, subjects_of
from balancer.reports.tables import columns


@dataclass
class Inspection:
    """What was measured, means over the batches. `print` shows it as tables.

    Attributes:
        norms: loss → n_i.
        shares: loss → n_i / Σ_j n_j, its share if nothing is balanced.
        targets: loss → w_i / Σ_j w_j, its share if balanced with the weights given, or
            with equal ones.
        cosines: "a, b" → the cosine between two losses' gradients, each pair once.
        batches: how many there were.
        weighted: whether weights were given.
        lambdas: an ESPnet codec's factors of balanced losses that are not 1.
    """

    norms: Dict[str, float]
    shares: Dict[str, float]
    targets: Dict[str, float]
    cosines: Dict[str, float]
    batches: int = 1
    weighted: bool = False
    lambdas: Dict[str, float] = field(default_factory=dict)

    def cosine(self, a: str, b: str) -> float:
        """Return the cosine between two losses' gradients."""
        pair = f"{a}, {b}"
        return self.cosines[pair if pair in self.cosines else f"{b}, {a}"]

    def weights(self) -> Dict[str, float]:
        """Return the weights that keep the shares as they are unbalanced.

        That of a loss whose gradient is not finite is 0.
        """
        return {
            name: float(f"{share:.4g}") if math.isfinite(share) else 0.0
            for name, share in self.shares.items()
        }

    def warnings(self) -> List[str]:
        """Return what a researcher should look at."""
        found = []
        for name, norm in self.norms.items():
            if norm == 0:
                found.append(f"{name} has a zero gradient: it trains nothing")
            elif not norm < float("inf"):
                found.append(f"{name} has a gradient that is not finite")
        for name, share in self.shares.items():
            if share > 0.95:
                found.append(
                    f"{name} supplies {share:.2%} of the gradient unbalanced: the "
                    "other losses hardly train the model"
                )
        for pair, cosine in self.cosines.items():
            if cosine < -0.5:
                found.append(f"{pair} pull against each other: cosine {cosine:.2f}")
        return found

    def section(self) -> Dict[str, Any]:
        """Return what keeps the present shares, as `Balancer.from_config` reads it."""
        return {"weights": self.weights()}

    def findings(self) -> Iterator[str]:
        """Yield the table of shares, that of cosines and the warnings."""
        yield columns(
            share_table(self, "as weighted" if self.weighted else "all alike")
        )
        if len(self.norms) > 1:
            yield columns(cosine_table(self))
        for warning in self.warnings():
            yield f"WARNING: {warning}."

    def __str__(self) -> str:
        paragraphs = [
            "Gradients at the output; means over "
            + ("1 batch." if self.batches == 1 else f"{self.batches} batches."),
            *self.findings(),
            "To balance and keep the unbalanced shares, give the balancer these:",
            yaml.safe_dump(self.section(), indent=4, sort_keys=False).rstrip(),
        ]
        return "\n\n".join(paragraphs)


def share_table(found: Inspection, how: str) -> List[Sequence[str]]:
    """Return the lines of norms and shares."""
    table: List[Sequence[str]] = [
        ("loss", "norm", "share unbalanced", f"share balanced, {how}")
    ]
    for name, norm in found.norms.items():
        target = f"{found.targets[name]:.3f}"
        table.append((name, f"{norm:.3g}", f"{found.shares[name]:.3g}", target))
    return table


def cosine_table(found: Inspection) -> List[Sequence[str]]:
    """Return the lines of the cosines, each pair once."""
    names = list(found.norms)
    table: List[Sequence[str]] = [["cosine", *names[:-1]]]
    for i, a in enumerate(names[1:], 1):
        cells = [f"{found.cosine(a, b):.2f}" for b in names[:i]]
        table.append([a, *cells, *[""] * (len(names) - 1 - i)])
    return table


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
        To balance and keep the unbalanced shares, give the balancer these:
        <BLANKLINE>
        weights:
            mel: 0.9375
            adv: 0.0625
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
        self._names: Dict[str, None] = {}  # in the order of the calls

    def __call__(
        self, losses: Mapping[str, Tensor], input: Union[Tensor, Sequence[Tensor]]
    ) -> None:
        """Measure a batch's gradients.

        Args:
            losses: name → tensor of one element, times its factor in the loop's sum. A
                loss may be missing in some calls.
            input: y, [B, …], or several, which all losses are computed from.

        Raises:
            ValueError: a loss does not depend on `input`, or nothing requires grad.
            TypeError: a loss or an input is not a tensor.
        """
        self.balancer(losses, input)
        self.take(list(losses), self.balancer.metrics)

    def take(self, losses: Sequence[str], stats: Mapping[str, float]) -> None:
        """Take in what `self.balancer` reported of losses that a model gave it.

        Raises:
            ValueError: nothing was measured, since nothing requires grad.
        """
        if not losses_of(stats):
            raise ValueError(
                "no loss requires grad: inspect where gradients are on, outside of "
                "torch.no_grad() and torch.inference_mode()"
            )
        self._stats.append(dict(stats))
        self._names.update(dict.fromkeys(losses))

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
        given = self._weights or dict.fromkeys(names, 1.0)
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(
                f"loss {missing[0]!r} has no weight: weights has {list(given)}"
            )
        weights = weights_at({name: given[name] for name in names}, sys.maxsize)
        return Inspection(
            norms={name: found["norm", name] for name in names},
            shares=_parts({name: found["norm", name] for name in names}),
            targets=_parts(weights),
            cosines={
                pair: value for (stat, pair), value in found.items() if stat == "cosine"
            },
            batches=len(self._stats),
            weighted=self._weights is not None,
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
