"""The averages of the gradient norms: the one memory of a balancer."""

import copy
import math
from typing import Dict, List, Mapping, Optional, Sequence

# A smaller norm counts as zero. Its inverse is no factor for float32, whose largest
# number is 3e38, once total_norm and GradScaler's scale have been multiplied in.
SMALLEST = 1e-30


class NormAverages:
    """Bias-corrected exponential moving averages, one for each loss.

    With decay β and the norms n of a loss, in the order in which they were measured,

        total ← β·total + n,    fix ← β·fix + 1,    average = total / fix,

    which is right from the first norm on, the plain mean for β = 1 and the last norm
    for β = 0. Source: the averager of AudioCraft's balancer (Défossez et al., 2022,
    "High Fidelity Neural Audio Compression", section 3.4).

    A norm that stood for N calls counts as N equal norms: β^N in place of β and
    1 + β + … + β^(N-1) in place of 1. A norm that is zero (below 1e-30) or not finite
    says nothing about a loss's scale and is left out, so the average of a loss begins
    at its first non-zero finite norm, and a loss that was off keeps the average that it
    had.

    Args:
        decay: β, in [0, 1].
        stride: N, the number of calls for which a norm stands, at least 1.

    Example:
        >>> averages = NormAverages(decay=0.5)
        >>> averages.updated({"mel": 4.0}).updated({"mel": 1.0})["mel"]
        2.0
    """

    def __init__(self, decay: float, stride: int = 1):
        self._decay = decay**stride
        self._mass = _geometric_sum(decay, stride)
        self._stats: Dict[str, List[float]] = {}

    def get(self, name: str) -> Optional[float]:
        """Return a loss's average, or None while it has none."""
        return self[name] if name in self._stats else None

    def __getitem__(self, name: str) -> float:
        total, fix = self._stats[name][:2]
        return total / fix

    def updated(self, norms: Mapping[str, float]) -> "NormAverages":
        """Return new averages that have taken in `norms`; these stay as they are."""
        new = copy.copy(self)
        new._stats = dict(self._stats)
        for name, norm in norms.items():
            if SMALLEST <= norm < math.inf:
                new._stats[name] = self._taken_in(self._stats.get(name), norm)
        return new

    def _taken_in(self, stats: Optional[Sequence[float]], norm: float) -> List[float]:
        """Return a loss's numbers, total and fix first, with this norm in them."""
        total, fix = stats[:2] if stats else (0.0, 0.0)
        return [
            self._decay * total + self._mass * norm,
            self._decay * fix + self._mass,
        ]

    def state_dict(self) -> Dict[str, List[float]]:
        """Return {name: [total, fix, ...]}, plain floats."""
        return {name: list(stats) for name, stats in self._stats.items()}

    def loaded(self, state: Mapping[str, Sequence[float]]) -> "NormAverages":
        """Return new averages that hold `state`, as `state_dict` returned it.

        That may be the state of averages of the other kind, which these go on from.

        Raises:
            ValueError: total or fix is not positive and finite, or another number is
                out of its range.
        """
        new = self.updated({})
        new._stats = {}
        for name, (total, fix, *more) in state.items():
            if not (0 < total < math.inf and 0 < fix < math.inf):
                raise ValueError(
                    f"the saved average of loss {name!r} is {total} / {fix}, but both "
                    "must be positive and finite: the checkpoint is damaged"
                )
            new._stats[name] = self._read(name, total, fix, more)
        return new

    def _read(
        self, name: str, total: float, fix: float, more: Sequence[float]
    ) -> List[float]:
        """Return a loss's numbers from those of averages of this or another kind."""
        if not more:
            return [total, fix]
        check_adaptive(name, more)
        # An adaptive average is worth as many norms as its age.
        worth = self._mass * _geometric_sum(self._decay, more[0])
        return [total / fix * worth, worth]


def check_adaptive(name: str, more: Sequence[float]) -> None:
    """Raise ValueError if an adaptive average's saved numbers are out of range."""
    if len(more) != 3 or not (1 <= more[0] < math.inf and abs(more[1]) <= more[2] <= 1):
        raise ValueError(
            f"the saved average of loss {name!r} has {list(more)} for age, drift and "
            "spread: the checkpoint is damaged"
        )


def _geometric_sum(decay: float, count: float) -> float:
    """Return 1 + β + … + β^(N-1), exact for β near 1 and quick for any N."""
    if decay in (0.0, 1.0):
        return float(count) if decay else 1.0
    return math.expm1(count * math.log(decay)) / (decay - 1)
