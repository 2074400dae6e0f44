"""The averages of the gradient norms: the one memory of a balancer."""

import copy
import math
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from balancer._norms.outliers import CHANGE, MOST, Outliers

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
    had. With `skip_outliers` a norm far from the average is left out too, unless it
    turns out to be the first of a change: see Outliers.

    Args:
        decay: β, in [0, 1].
        stride: N, the number of calls for which a norm stands, at least 1.
        skip_outliers: whether to leave outliers out.

    Example:
        >>> averages = NormAverages(decay=0.5)
        >>> averages.updated({"mel": 4.0}).updated({"mel": 1.0})["mel"]
        2.0
    """

    def __init__(self, decay: float, stride: int = 1, skip_outliers: bool = False):
        self._beta = decay
        self._stride = stride
        self._skips = skip_outliers
        self._stats: Dict[str, List[float]] = {}
        self._outliers: Dict[str, Outliers] = {}

    @property
    def skips_outliers(self) -> bool:
        """Whether outliers are left out."""
        return self._skips

    def get(self, name: str) -> Optional[float]:
        """Return a loss's average, or None while it has none."""
        return self[name] if name in self._stats else None

    def __getitem__(self, name: str) -> float:
        total, fix = self._stats[name][:2]
        return total / fix

    def for_call(self, norms: Mapping[str, float]) -> "NormAverages":
        """Return what the scales go by in the call that measured these norms.

        These are the averages themselves, or, of a norm of more than three times its
        average, a third of the norm: if outliers are skipped, no loss has more than
        three times its due in any measured call.
        """
        new = copy.copy(self)
        new._stats = dict(self._stats)
        for name in self.held_back(norms):
            if norms[name] > MOST * self[name]:
                new._stats[name] = [norms[name] / MOST, 1.0, *self._stats[name][2:]]
        return new

    def held_back(self, norms: Mapping[str, float]) -> Set[str]:
        """Return the losses whose norms, just taken in, were too large for their scale.

        None are unless outliers are skipped.
        """
        return {
            name
            for name, norm in norms.items()
            if self._skips
            and name in self._stats
            and MOST * self[name] < norm < math.inf
        }

    def is_outlier(self, name: str) -> bool:
        """Tell whether the last norm of a loss was left out as an outlier."""
        return name in self._outliers and self._outliers[name].run != 0

    def age(self, name: str) -> float:
        """Return the number of calls that a loss's average is a mean over, or so."""
        return self._stats[name][1]

    def updated(
        self, norms: Mapping[str, float], stood: Optional[Mapping[str, int]] = None
    ) -> "NormAverages":
        """Return new averages that have taken in `norms`; these stay as they are.

        Args:
            norms: name → norm.
            stood: name → the number of calls that the norm stands for, if not N; no
                more than N count.
        """
        new = copy.copy(self)
        new._stats, new._outliers = dict(self._stats), dict(self._outliers)
        for name, norm in norms.items():
            if SMALLEST <= norm < math.inf:
                calls = self._stride if stood is None else stood[name]
                new._take_in(name, norm, max(1, min(calls, self._stride)))
        return new

    def _take_in(self, name: str, norm: float, stood: int) -> None:
        stats = self._stats.get(name)
        taken: Sequence[float] = [norm]
        if self._skips and stats is not None:
            known = self._outliers.get(name, Outliers())
            self._outliers[name], taken = known.after(norm, self[name])
        if len(taken) == 1:
            self._stats[name] = self._taken_in(stats, norm, stood)
        elif taken:
            self._stats[name] = self._begun(sorted(taken)[CHANGE // 2], stood)

    def _taken_in(
        self, stats: Optional[Sequence[float]], norm: float, stood: int
    ) -> List[float]:
        """Return a loss's numbers, total and fix first, with this norm in them."""
        total, fix = stats[:2] if stats else (0.0, 0.0)
        decay, mass = self._beta**stood, geometric_sum(self._beta, stood)
        return [decay * total + mass * norm, decay * fix + mass]

    def _begun(self, norm: float, stood: int) -> List[float]:
        """Return the numbers of an average that begins with this norm, CHANGE times."""
        mass = geometric_sum(self._beta, CHANGE * stood)
        return [mass * norm, mass]

    def state_dict(self) -> Dict[str, List[float]]:
        """Return {name: [total, fix, ...]}, plain floats."""
        return {
            name: [*stats, *self._outliers.get(name, ())]
            for name, stats in self._stats.items()
        }

    def loaded(self, state: Mapping[str, Sequence[float]]) -> "NormAverages":
        """Return new averages that hold `state`, as `state_dict` returned it.

        That may be the state of averages of the other kind, or of such that did not
        skip outliers; these go on from it.

        Raises:
            ValueError: total or fix is not positive and finite, or another number is
                out of its range.
        """
        new = self.updated({})
        new._stats, new._outliers = {}, {}
        for name, (total, fix, *more) in state.items():
            if not (0 < total < math.inf and 0 < fix < math.inf):
                raise ValueError(
                    f"the saved average of loss {name!r} is {total} / {fix}, but both "
                    "must be positive and finite: the checkpoint is damaged"
                )
            more, outliers = _split(name, more)
            new._stats[name] = self._read(name, total, fix, more)
            if self._skips and outliers:
                new._outliers[name] = outliers
        return new

    def _read(
        self, name: str, total: float, fix: float, more: Sequence[float]
    ) -> List[float]:
        """Return a loss's numbers from those of averages of this or another kind."""
        if not more:
            return [total, fix]
        check_adaptive(name, more)
        # An adaptive average is worth as many norms as its age.
        worth = geometric_sum(self._beta, self._stride * more[0])
        return [total / fix * worth, worth]


def _split(name: str, more: Sequence[float]) -> Tuple[List[float], Optional[Outliers]]:
    """Return what an average keeps beside total and fix, and its outliers, if any."""
    size = len(Outliers._fields)
    if len(more) < size:
        return list(more), None
    try:
        return list(more[:-size]), Outliers.read(more[-size:])
    except ValueError:
        raise ValueError(
            f"the saved average of loss {name!r} has {list(more[-size:])} for the "
            "deviation of its norms and its last outliers: the checkpoint is damaged"
        ) from None


def check_adaptive(name: str, more: Sequence[float]) -> None:
    """Raise ValueError if an adaptive average's saved numbers are out of range."""
    if len(more) != 3 or not (1 <= more[0] < math.inf and abs(more[1]) <= more[2] <= 1):
        raise ValueError(
            f"the saved average of loss {name!r} has {list(more)} for age, drift and "
            "spread: the checkpoint is damaged"
        )


def geometric_sum(decay: float, count: float) -> float:
    """Return 1 + β + … + β^(N-1), exact for β near 1 and quick for any N."""
    if decay in (0.0, 1.0):
        return float(count) if decay else 1.0
    return math.expm1(count * math.log(decay)) / (decay - 1)
