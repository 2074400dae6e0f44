"""Whether a norm far from its average is an outlier or the first of a change."""

import math
from typing import List, NamedTuple, Sequence, Tuple

# A norm within the first factor of its average is never an outlier, one beyond the
# second always is: 10 times the average is. No factor that a user would multiply a loss
# by, so no verdict hangs on a last bit.
NEAR = math.log(3.2)
FAR = math.log(8.3)
# In between, so many mean deviations of log norm decide.
DEVIATIONS = 4.0
GAMMA = 0.05
# So many outliers in a row on one side of the average are a change.
CHANGE = 3
# A loss has at most so many times its due in the call that measures an outlier.
MOST = 3.0


class Outliers(NamedTuple):
    """What is known of a loss's outliers: how far its norms stray, and the last few.

    With the average a of a loss and a norm n of it,

        d ← d + γ·(min(|log n/a|, l) − d)    where l = 4·d, γ = 0.05,

    and a norm with |log n/a| > l is an outlier; l is at least log 3.2 and at most
    log 8.3, where it begins. An outlier is left out of the average. Three in a row, all
    above or all below it, are no outliers but a change, and the average begins anew
    with their median.

    Sources: ZClip (Kumar et al., 2025, https://arxiv.org/abs/2504.02507) tells a spike
    of a gradient's norm by averages of earlier norms. Its code takes the clipped norm
    into them, and leaves it out if asked (skip_update_on_spike). Robust exponential
    smoothing (Gelper, Fried and Croux, 2010, "Robust Forecasting with Exponential and
    Holt-Winters Smoothing") cuts an error before its deviation is averaged. The mean
    absolute deviation as the measure is of the tracking signal (Trigg, 1964).

    Attributes:
        deviation: d.
        run: how many outliers in a row there have been, negative below the average.
        first: the first of them; 0 without.
        second: the second; 0 without.
    """

    deviation: float = FAR / DEVIATIONS
    run: float = 0.0
    first: float = 0.0
    second: float = 0.0

    def after(self, norm: float, average: float) -> Tuple["Outliers", Sequence[float]]:
        """Return what is known after a norm, and the norms to take in.

        Returns:
            The second part is empty for an outlier, the norm itself for any other, and
            the outliers for the last one of a change.
        """
        # The smallest float in place of a quotient that is too small for one.
        error = math.log(norm / average or 5e-324)
        limit = min(max(NEAR, DEVIATIONS * self.deviation), FAR)
        cut = min(abs(error), limit)
        deviation = self.deviation + GAMMA * (cut - self.deviation)
        if abs(error) <= limit:
            return Outliers(deviation), [norm]
        side = math.copysign(1.0, error)
        before = [self.first, self.second][: int(abs(self.run))]
        run = [*before, norm] if self.run * side > 0 else [norm]
        if len(run) == CHANGE:
            return Outliers(deviation), run
        first, second = (*run, 0.0)[:2]
        return Outliers(deviation, side * len(run), first, second), []

    @classmethod
    def read(cls, numbers: Sequence[float]) -> "Outliers":
        """Return what was saved as four numbers.

        Raises:
            ValueError: they contradict one another.
        """
        read = cls(*numbers)
        held: List[float] = [x for x in read[2:] if 0 < x < math.inf]
        if not 0 <= read.deviation < math.inf or abs(read.run) != len(held):
            raise ValueError
        return read
