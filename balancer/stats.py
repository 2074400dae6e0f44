"""The stats that a call returns: what each loss is, and what was made of it."""

from typing import Dict, Mapping, Sequence

from balancer.ema import NormAverages


def loss_stats(
    names: Sequence[str],
    scales: Mapping[str, float],
    norms: Mapping[str, float],
    averages: NormAverages,
) -> Dict[str, float]:
    """Return `{name}_norm`, `_ratio`, `_share` and `_scale` for each name.

    Args:
        names: the losses to report, so that the keys are the same on each step; one
            without a scale is not in the step and gets zeros.
        scales: name → s_i.
        norms: name → n_i as last measured.
        averages: the averages a_i of the norms.
    """
    norms = {name: norms[name] if name in scales else 0.0 for name in names}
    average = {n: (averages.get(n) or 0.0) if n in scales else 0.0 for n in names}
    supplied = {name: scales.get(name, 0.0) * norms[name] for name in names}
    stats = {}
    for name in names:
        stats[f"{name}_norm"] = norms[name]
        stats[f"{name}_ratio"] = _share(average, name)
        stats[f"{name}_share"] = _share(supplied, name)
        stats[f"{name}_scale"] = scales.get(name, 0.0)
    return stats


def _share(amounts: Mapping[str, float], name: str) -> float:
    total = sum(amounts.values())
    return amounts[name] / total if total else 0.0
