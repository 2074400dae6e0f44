"""What was measured of several losses' raw gradients, and how it is said."""

import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import yaml

from balancer.reports.tables import columns


class Meeting(NamedTuple):
    """What losses bring to the parameters that losses outside the balance train too.

    Attributes:
        outside: the norm of the gradient of the losses outside the balance.
        unbalanced: that of the sum of the losses to balance.
        total_norm: with it, and the weights given, the balanced sum has that norm too.
    """

    outside: float
    unbalanced: float
    total_norm: float

    @classmethod
    def of(cls, batches: Sequence[Sequence[float]]) -> "Optional[Meeting]":
        """Return geometric means over batches, or None if there is nothing to take.

        Args:
            batches: of each the norms of the outside's, the unbalanced and the balanced
                gradient with a total_norm of 1.
        """
        good = [x for x in batches if all(0 < norm < math.inf for norm in x)]
        if not good:
            return None
        outside, unbalanced, balanced = (
            math.exp(fmean(map(math.log, norms))) for norms in zip(*good)
        )
        return cls(outside, unbalanced, unbalanced / balanced)

    def __str__(self) -> str:
        return (
            "In the parameters that both train, the losses outside the balance pull "
            f"with {self.outside:.3g}, and the sum of these unbalanced with "
            f"{self.unbalanced:.3g}."
        )


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
        meeting: what they bring to the parameters of losses outside the balance; None
            if there are none.
    """

    norms: Dict[str, float]
    shares: Dict[str, float]
    targets: Dict[str, float]
    cosines: Dict[str, float]
    batches: int = 1
    weighted: bool = False
    lambdas: Dict[str, float] = field(default_factory=dict)
    meeting: Optional[Meeting] = None

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

    def total_norm(self) -> float:
        """Return the total_norm that, with `weights()`, keeps the gradient's size."""
        return float(f"{sum(filter(math.isfinite, self.norms.values())):.4g}")

    def section(self) -> Dict[str, Any]:
        """Return what keeps the gradient, as `Balancer.from_config` reads it."""
        return {"weights": self.weights(), "total_norm": self.total_norm()}

    def findings(self) -> Iterator[str]:
        """Yield the table of shares, that of cosines, the warnings and the meeting."""
        how = "as weighted" if self.weighted else "all alike"
        yield columns(share_table(self, how))
        if len(self.norms) > 1:
            yield columns(cosine_table(self))
        for warning in self.warnings():
            yield f"WARNING: {warning}."
        if self.meeting:
            yield (
                f"{self.meeting} Balanced {how}, `total_norm: "
                f"{self.meeting.total_norm:.3g}` keeps that."
            )

    def __str__(self) -> str:
        paragraphs = [
            "Gradients at the output; means over "
            + ("1 batch." if self.batches == 1 else f"{self.batches} batches."),
            *self.findings(),
            "To balance and keep the gradient as it is, give the balancer these:",
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
