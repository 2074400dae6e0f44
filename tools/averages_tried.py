"""Averages that were tried in the balancer's place and lost; replay_averages.py."""

import math
from typing import List, Optional, Sequence

import numpy as np

from balancer._norms.ema import NormAverages

Numbers = Optional[Sequence[float]]


class Tried(NormAverages):
    """An average whose first number is its value; how long a norm stood counts not."""

    def __init__(self) -> None:
        super().__init__(decay=1.0)


class Growing(Tried):
    """Polynomial decay (Shamir and Zhang, 2013): a horizon that grows and stays."""

    def __init__(self, eta: float):
        super().__init__()
        self._eta = eta

    def _taken_in(self, stats: Numbers, norm: float, stood: int) -> List[float]:
        before, _, age = stats or (norm, 1.0, 0.0)
        age += 1
        rate = (self._eta + 1) / (age + self._eta)
        return [before + rate * (norm - before), 1.0, age]


class Trend(Tried):
    """Holt's double smoothing with a damped trend (Gardner, 1985), of log norms."""

    def __init__(self, level: float, slope: float, damping: float):
        super().__init__()
        self._level, self._slope, self._damping = level, slope, damping

    def _taken_in(self, stats: Numbers, norm: float, stood: int) -> List[float]:
        before, _, rise = stats or (norm, 1.0, 0.0)
        now = math.log(before)
        expected = now + self._damping * rise
        new = expected + self._level * (math.log(norm) - expected)
        rise = self._damping * rise
        rise += self._slope * (new - now - rise)
        return [math.exp(new), 1.0, rise]


class Twice(Tried):
    """Brown's double exponential smoothing, 2a − a of a, of log norms."""

    def __init__(self, decay: float):
        super().__init__()
        self._by = decay

    def _taken_in(self, stats: Numbers, norm: float, stood: int) -> List[float]:
        _, _, once, twice, fix = stats or (norm, 1.0, 0.0, 0.0, 0.0)
        fix = self._by * fix + 1
        once += (math.log(norm) - once) / fix
        twice += (once - twice) / fix
        return [math.exp(2 * once - twice), 1.0, once, twice, fix]


class ResponseRate(Tried):
    """Trigg and Leach (1967): the tracking signal, to a power, is the rate."""

    def __init__(self, gamma: float, power: float):
        super().__init__()
        self._gamma, self._power = gamma, power

    def _taken_in(self, stats: Numbers, norm: float, stood: int) -> List[float]:
        now, _, drift, spread = stats or (norm, 1.0, 0.0, 0.0)
        drift += self._gamma * (norm - now - drift)
        spread += self._gamma * (abs(norm - now) - spread)
        signal = abs(drift) / spread if spread else 0.0
        rate = max(signal**self._power, 0.001)
        return [now + rate * (norm - now), 1.0, drift, spread]


class Median(Tried):
    """The median of the last norms."""

    def __init__(self, size: int):
        super().__init__()
        self._size = size

    def _taken_in(self, stats: Numbers, norm: float, stood: int) -> List[float]:
        last = [*(stats[2:] if stats else ()), norm][-self._size :]
        return [float(np.median(last)), 1.0, *last]
