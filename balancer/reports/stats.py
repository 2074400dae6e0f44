"""The balancer's stats by name: what each is called, and how it is drawn."""

import itertools
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

Points = Dict[int, float]  # training step → value


class Stat(NamedTuple):
    """A stat, reported for each loss as `{loss}_{name}` unless it says otherwise."""

    name: str
    title: str
    log: bool = True  # whether it is drawn on a logarithmic axis


STATS = (
    Stat("share", "Share of the balanced gradient", log=False),
    Stat("ratio", "Share if nothing were balanced (ratio)"),
    Stat("norm", "Gradient norm"),
    Stat("scale", "Scale"),
)
COSINE = Stat("cosine", "Cosine of two gradients", log=False)  # {a}_{b}_cosine
TOTAL = Stat("total_grad_norm", "Norm of the combined gradient", log=False)  # no loss
# What an OutsideRatio takes, of no loss.
OUTSIDE = Stat("outside_to_balanced", "Losses outside the balance, over the balanced")
# What a loop may log beside them; see balancer.reports.targets.
TARGET = Stat("target", "Target of the share", log=False)
# What a GradientProbe takes.
QUANTITIES = (
    Stat("norm_test", "Norm test"),
    Stat("inner_product_test", "Inner product test"),
    Stat("orthogonality_test", "Orthogonality test"),
    Stat("mean_gsnr", "Mean gradient signal-to-noise ratio"),
    Stat("critical_batch_size", "Critical batch size"),
    Stat("early_stopping", "Early stopping (above 0: stop)", log=False),
)


def losses_of(keys: Iterable[str]) -> List[str]:
    """Return the losses that a balancer reported, in the order of the reports.

    Example:
        >>> losses_of(["mel_share", "mel_scale", "market_share"])
        ['mel']
    """
    there = dict.fromkeys(keys)
    names = [key[: -len("_share")] for key in there if key.endswith("_share")]
    return [name for name in names if f"{name}_scale" in there]


def subjects_of(
    keys: Iterable[str], losses: Sequence[str]
) -> Iterator[Tuple[str, Tuple[str, str]]]:
    """Yield (key, (stat, subject)) for each key of the balancer that is there.

    The subject is a loss, for `cosine` a pair of losses as "a, b", for
    `total_grad_norm` and `outside_to_balanced` nothing.

    Example:
        >>> dict(subjects_of(["a_norm", "a_b_cosine", "lr"], ["a", "b"]))
        {'a_norm': ('norm', 'a'), 'a_b_cosine': ('cosine', 'a, b')}
    """
    there = set(keys)
    for stat, name in itertools.product((*STATS, *QUANTITIES, TARGET), losses):
        if f"{name}_{stat.name}" in there:
            yield f"{name}_{stat.name}", (stat.name, name)
    for a, b in itertools.permutations(losses, 2):
        if f"{a}_{b}_{COSINE.name}" in there:
            yield f"{a}_{b}_{COSINE.name}", (COSINE.name, f"{a}, {b}")
    for stat in (TOTAL, OUTSIDE):
        if stat.name in there:
            yield stat.name, (stat.name, "")
