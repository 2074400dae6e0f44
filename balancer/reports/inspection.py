"""What was measured of several losses' raw gradients, for people to read."""

from dataclasses import dataclass
from typing import Dict, List, Sequence


@dataclass
class Inspection:
    """What was measured, means over the batches.

    Attributes:
        norms: loss → n_i.
        shares: loss → n_i / Σ_j n_j, its share if nothing is balanced.
        targets: loss → w_i / Σ_j w_j, its share if balanced with the recipe's weights,
            or with equal ones if it has none.
        cosines: "a, b" → the cosine between two losses' gradients, each pair once.
        lambdas: the codec's factors of balanced losses that are not 1.
    """

    norms: Dict[str, float]
    shares: Dict[str, float]
    targets: Dict[str, float]
    cosines: Dict[str, float]
    lambdas: Dict[str, float]

    def cosine(self, a: str, b: str) -> float:
        """Return the cosine between two losses' gradients."""
        pair = f"{a}, {b}"
        return self.cosines[pair if pair in self.cosines else f"{b}, {a}"]

    def weights(self) -> Dict[str, float]:
        """Return the weights that keep the shares as they are unbalanced."""
        return {name: float(f"{share:.4g}") for name, share in self.shares.items()}

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
                    "other losses hardly train the decoder"
                )
        for pair, cosine in self.cosines.items():
            if cosine < -0.5:
                found.append(f"{pair} pull against each other: cosine {cosine:.2f}")
        return found


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
