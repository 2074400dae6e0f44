"""Averages of the gradient norms that reach back as far as the norms allow."""

from typing import List, Optional, Sequence

from balancer._norms.ema import NormAverages, check_adaptive, geometric_sum
from balancer._norms.outliers import CHANGE

# Chosen by replaying the norms of real trainings, tools/replay_averages.py.
ETA = 7.0
GAMMA = 0.12
LIMIT = 0.75
POWER = 0.5
# A norm that stands still changes by float32's rounding, which is no drift.
ROUNDING = 1e-6


class AdaptiveAverages(NormAverages):
    """Averages whose horizon grows with the norms seen and shrinks when they drift.

    With the norms n of a loss, their average a and its age m, which is 1 at the first,

        e ← (n − a) / max(n, a)    (0 below 1e-6, which is rounding)
        E ← (1−γ)·E + γ·e,    M ← (1−γ)·M + γ·|e|
        m ← m + 1,  and then, if |E| > 0.75·M,  m ← max(2, (1−γ)·m)
        a ← a + max((η+1)/(m+η), 1−β)·(n − a)

    with η = 7 and γ = 0.12. The polynomial decay of the last line averages over about
    the last eighth of the age (Shamir and Zhang, 2013, "Stochastic Gradient Descent
    for Non-smooth Optimization", https://arxiv.org/abs/1212.1824), at most over the
    horizon of decay β. E / M is the tracking signal (Trigg, 1964, "Monitoring a
    Forecasting System"): a drift takes it to 1, noise above 0.75 about once in 160
    norms. That the average should then follow faster is the idea of Trigg and Leach,
    1967, "Exponential Smoothing with an Adaptive Response Rate".

    A norm that wanders goes √N times as far in N calls as in one. So one that stood for
    N calls has the weight of √N norms: γ is 1 − 0.88^√N in the lines of E and M, and
    η + 1 is 8·√N. β becomes β^N. Its age is still that of one norm.

    Args:
        decay: β, in [0, 1].
        stride: N, the number of calls for which a norm stands, at least 1.
        skip_outliers: whether to leave outliers out.

    Example:
        >>> averages = AdaptiveAverages(decay=0.999)
        >>> for norm in [4.0] * 50 + [1.0] * 10:
        ...     averages = averages.updated({"mel": norm})
        >>> round(averages["mel"], 1)  # a decay of 0.999 alone: 3.5
        1.2
    """

    def age(self, name: str) -> float:
        """Return the age m of a loss's average, in norms."""
        _, _, age, *_ = self._stats[name]
        return age

    def _taken_in(
        self, stats: Optional[Sequence[float]], norm: float, stood: int
    ) -> List[float]:
        if stats is None:
            return [norm, 1.0, 1.0, 0.0, 0.0]
        total, fix, age, drift, spread = stats
        average = total / fix
        weight = stood**POWER
        gamma = 1 - (1 - GAMMA) ** weight
        error = (norm - average) / max(norm, average)
        error = 0.0 if abs(error) < ROUNDING else error
        drift += gamma * (error - drift)
        spread += gamma * (abs(error) - spread)
        age += 1
        if abs(drift) > LIMIT * spread:
            age = max(2.0, (1 - GAMMA) * age)
        reach = (ETA + 1) * weight
        rate = max(reach / (age + reach - 1), 1 - self._beta**stood)
        # (1 − rate)·a + rate·n, whose products cannot overflow as a difference can.
        return [(1 - rate) * average + rate * norm, 1.0, age, drift, spread]

    def _begun(self, norm: float, stood: int) -> List[float]:
        return [norm, 1.0, float(CHANGE), 0.0, 0.0]

    def _read(
        self, name: str, total: float, fix: float, more: Sequence[float]
    ) -> List[float]:
        if not more:  # an exponential average, of so many norms
            norms = fix / geometric_sum(self._beta, self._stride)
            more = [max(1.0, norms), 0.0, 0.0]
        check_adaptive(name, more)
        return [total, fix, *more]
