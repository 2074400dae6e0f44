"""When to measure the norms next: every Nth call, or when averages ask for it."""

import math
import re
from dataclasses import dataclass
from typing import Iterable, Mapping, Union

from balancer._norms.ema import NormAverages

# Of the age of an average. Chosen by replaying the norms of real trainings,
# tools/replay_averages.py.
PART = 0.18
AT_MOST = 16  # calls


@dataclass(frozen=True)
class Interval:
    """The number of calls from one measurement to the next.

    It is 1 after a norm that was left out as an outlier, so that a change is told from
    an outlier at once. Else it is N, or with `auto`, of K losses whose averages have
    the ages m_i,

        min(N, max(1, ⌊0.18 · K / Σ_i 1/m_i⌋)),

    a part of the harmonic mean of the ages. An age grows by one with each norm and
    shrinks while norms drift (see AdaptiveAverages). So young and drifting averages are
    measured on every call, and those that stand still ever more rarely: t calls after
    the first, every 0.6·√t calls. The age of an average with ema_decay alone is the
    number of calls that it is a mean over, at most 1 / (1−β).

    All losses are measured together. Of two that share a discriminator, one costs as
    much as both. One that shares nothing could be measured in each call by the walk
    that a held call takes anyway, but that costs a wait for the device and a collective
    of the ranks in each call, for shares that are hardly closer to their targets.

    The ages are part of the balancer's state, which is the same on all ranks. So these
    measure on the same calls, and so does a training that is resumed.

    Args:
        at_most: N.
        auto: whether to measure more often than every N calls.

    Example:
        >>> from balancer._norms.adaptive import AdaptiveAverages
        >>> averages = AdaptiveAverages(decay=0.999, stride=16)
        >>> for _ in range(40):
        ...     averages = averages.updated({"mel": 1.0, "adv": 3.0})
        >>> Interval.read("auto").after(averages, ["mel", "adv"])
        7
        >>> Interval.read("auto 4").after(averages, ["mel", "adv"])
        4
    """

    at_most: int
    auto: bool = False

    @classmethod
    def read(cls, value: Union[int, str]) -> "Interval":
        """Return what `update_every` says: N, "auto" for at most 16, or "auto N".

        Raises:
            ValueError: it is none of these, or N is below 1.
        """
        found = re.fullmatch(r"(auto)?\s*(\d+)?", str(value).strip())
        auto, number = found.groups() if found and str(value).strip() else (None, None)
        at_most = AT_MOST if auto and number is None else int(number or 0)
        if at_most < 1:
            raise ValueError(
                f"update_every must be a number of calls from 1 on, or `auto`, or "
                f"`auto` and the most calls, as in `auto 32`, but is {value!r}"
            )
        return cls(at_most, bool(auto))

    def __str__(self) -> str:
        return f"auto {self.at_most}" if self.auto else str(self.at_most)

    def after(self, averages: NormAverages, names: Iterable[str]) -> int:
        """Return the number of calls from the last measurement to the next.

        Args:
            averages: those after the last measurement.
            names: the losses that were measured; those without an average say nothing.
        """
        known = [name for name in names if averages.get(name) is not None]
        if any(map(averages.is_outlier, known)) or self.auto and not known:
            return 1
        if not self.auto:
            return self.at_most
        # fsum is exact, so the order of the names, which ranks may not share, is free.
        mean = len(known) / math.fsum(1 / averages.age(name) for name in known)
        return min(self.at_most, max(1, math.floor(PART * mean)))

    def stood(
        self, names: Iterable[str], calls: int, measured_at: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return for how many calls norms stand that are measured now.

        Args:
            names: the losses that are measured.
            calls: the number of calls before this one.
            measured_at: name → the number of calls before the one that measured last.
        """
        if not self.auto:
            return dict.fromkeys(names, self.at_most)
        return {name: calls - measured_at.get(name, calls - 1) for name in names}
