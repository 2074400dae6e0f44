"""The stats that a call returns: what each loss is, and what was made of it."""

import functools
import itertools
import math
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from balancer._scales.state import BalancerState

LOSS_STATS = ("norm", "ratio", "share", "scale")
OUTLIER = "outlier"
TOTAL = "total_grad_norm"


def loss_stats(
    names: Sequence[str], scales: Mapping[str, float], state: BalancerState
) -> Dict[str, float]:
    """Return `{name}_norm`, `_ratio`, `_share` and `_scale` for each name.

    Where outliers are skipped also `{name}_outlier`: 1 in a call whose norm was left
    out of the average, or was so large that the loss was held back, else 0.

    Args:
        names: the losses to report, so that the keys are the same on each step; one
            without a scale is not in the step and gets zeros.
        scales: name → s_i.
        state: the one after the call.
    """
    norms = {n: state.norms.get(n, 0.0) if n in scales else 0.0 for n in names}
    average = {name: state.averages.get(name) or 0.0 for name in scales}
    supplied = {name: scales.get(name, 0.0) * norms[name] for name in names}
    stats = {}
    measured = [name for name in state.just_measured() if name in scales]
    outliers = state.averages.held_back({name: state.norms[name] for name in measured})
    outliers |= {name for name in measured if state.averages.is_outlier(name)}
    for name in names:
        values = (
            norms[name],
            _share(average, name),
            _share(supplied, name),
            scales.get(name, 0.0),
        )
        stats.update({f"{name}_{stat}": v for stat, v in zip(LOSS_STATS, values)})
        if state.averages.skips_outliers:
            stats[f"{name}_{OUTLIER}"] = float(name in outliers)
    return stats


def pair_stats(
    names: Sequence[str], scales: Mapping[str, float], state: BalancerState
) -> Dict[str, float]:
    """Return the cosines of all pairs and `total_grad_norm`, as last measured.

    nan where it is not known: of two losses that are in this call but were not in the
    last measurement together, and of a combination that was not measured. The cosine
    of a loss that is not in the call is 0, as that of a zero gradient.
    """
    last = set(state.last_measured())
    stats = {}
    for pair in _pairs(names):
        known = last.issuperset(pair)
        value = state.monitored.get(_cosine(pair), math.nan) if known else math.nan
        stats[_cosine(pair)] = value if set(pair) <= scales.keys() else 0.0
    total = state.monitored.get(TOTAL, math.nan)
    stats[TOTAL] = total if last == scales.keys() else math.nan
    return stats


@functools.lru_cache  # it is asked in each call, and mostly the same
def check_keys(
    names: Tuple[str, ...], monitor: bool, quantities: Tuple[str, ...]
) -> None:
    """Refuse losses whose stats would have one key.

    Args:
        names: the losses to report.
        monitor: whether `pair_stats` are reported.
        quantities: what else is reported of each loss.

    Raises:
        ValueError: two stats would have the same key.
    """
    keys: List[Tuple[str, str]] = [
        (f"{name}_{stat}", f"the {stat} of {name!r}")
        for name in names
        for stat in (*LOSS_STATS, *quantities)
    ]
    if monitor:
        keys += [(_cosine(pair), f"the cosine of {pair}") for pair in _pairs(names)]
        keys.append((TOTAL, "the norm of the combined gradient"))
    meanings: Dict[str, str] = {}
    for key, meaning in keys:
        if key in meanings:
            raise ValueError(
                f"{meanings[key]} and {meaning} would both be reported as {key!r}: "
                "give one of these losses another name"
            )
        meanings[key] = meaning


def _pairs(names: Sequence[str]) -> Iterable[Tuple[str, str]]:
    return itertools.combinations(sorted(names), 2)


def _cosine(pair: Tuple[Any, Any]) -> str:
    return f"{pair[0]}_{pair[1]}_cosine"


def _share(amounts: Mapping[str, float], name: str) -> float:
    total = sum(amounts.values())
    return amounts.get(name, 0.0) / total if total else 0.0
