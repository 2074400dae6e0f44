"""Differences between trainings, with intervals of 95%."""

import math
from typing import List, Mapping, NamedTuple, Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95


class Difference(NamedTuple):
    """A mean difference of pairs; the interval is nan where there is one pair."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def is_seen(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def paired(ones: Mapping[int, float], others: Mapping[int, float]) -> Difference:
    """Return ones − others over the seeds that both have, by Student's t."""
    found = [ones[seed] - others[seed] for seed in ones if seed in others]
    if len(found) < 2:
        return Difference(
            found[0] if found else math.nan, math.nan, math.nan, len(found)
        )
    mean, error = float(np.mean(found)), stats.sem(found)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(found) - 1) * error)
    return Difference(mean, mean - half, mean + half, len(found))


def wilson(wins: int, of: int) -> List[float]:
    """Return the interval of a proportion (Wilson, 1927)."""
    interval = stats.binomtest(wins, of).proportion_ci(LEVEL, method="wilson")
    return [float(interval.low), float(interval.high)]


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's rank correlation."""
    return float(stats.spearmanr(xs, ys).statistic)
