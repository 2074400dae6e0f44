"""Recorded gradient norms and the balancer's averages of them, call by call."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages
from balancer._norms.interval import Interval

DATA = Path(__file__).parents[1] / "test" / "data"
# EnCodec's, and mel's for the dual decoder's loss; of the plain loop, its recipe's.
WEIGHTS = {"reconstruct": 0.1, "adv": 3.0, "feat_match": 3.0, "mel": 1.0}
WEIGHTS["mel_real"] = WEIGHTS["mel"]
SMALL_CODEC = {"l1": 1.0, "stft": 4.0, "adv": 0.5, "feat": 1.0}
BLOCK = 20  # calls
FIRST = 100  # calls
Array = NDArray[np.float64]
Norms = Mapping[str, Array]  # loss → norms [T]


class Setting(NamedTuple):
    """What a user sets: the averages, empty, and when they are measured."""

    averages: NormAverages
    interval: Interval


@dataclass
class Replay:
    """A setting's averages of norms that are measured when the setting says so.

    Args:
        setting: the averages and the interval.
        changed: maps a loss and its norm to the norm that a call measures.
    """

    setting: Setting
    changed: Callable[[str, float], float] = lambda name, norm: norm
    calls: int = 0
    measured_at: Dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.averages = self.setting.averages

    def call(self, norms: Mapping[str, float]) -> Dict[str, float]:
        """Take a call; return the averages that its scales go by."""
        measured = {}
        if self._is_due(norms):
            measured = {name: self.changed(name, norm) for name, norm in norms.items()}
            stood = self.setting.interval.stood(norms, self.calls, self.measured_at)
            self.averages = self.averages.updated(measured, stood)
            self.measured_at = dict.fromkeys(norms, self.calls)
        self.calls += 1
        used = self.averages.for_call(measured)
        return {name: used[name] for name in norms}

    @property
    def just_measured(self) -> bool:
        """Whether the last call measured."""
        return self.calls - 1 in self.measured_at.values()

    def _is_due(self, norms: Mapping[str, float]) -> bool:
        if not self.measured_at:
            return True
        since = self.calls - max(self.measured_at.values())
        return since >= self.setting.interval.after(self.averages, norms)

    def branch(self, changed: Callable[[str, float], float]) -> "Replay":
        """Return a replay that goes on from here with norms that are changed."""
        new = Replay(self.setting, changed, self.calls, dict(self.measured_at))
        new.averages = self.averages
        return new


def part_that_measures(turns: int) -> float:
    """Return the part of a training that measures, with the averages of the recipes.

    It is the mean over the recordings, of the first turns of those that are long enough.
    """
    found = []
    for norms in recordings().values():
        calls = calls_of(norms)[:turns]
        if len(calls) == turns:
            interval = Interval.read("auto")
            averages = AdaptiveAverages(0.999, interval.at_most, skip_outliers=True)
            replay = Replay(Setting(averages, interval))
            measured = 0
            for call in calls:
                replay.call(call)
                measured += replay.just_measured
            found.append(measured)
    return float(np.mean(found)) / turns


def calls_of(norms: Norms) -> List[Dict[str, float]]:
    """Return the norms of each call by name."""
    columns = {name: column.tolist() for name, column in norms.items()}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def targets(names: Sequence[str]) -> Array:
    """Return the losses' shares as the weights want them, [K, 1]."""
    weights = SMALL_CODEC if "stft" in names else WEIGHTS
    found = np.array([weights[name] for name in names])[:, None]
    return np.asarray(found / found.sum())


def shares(norms: Norms, averages: Norms) -> Dict[str, Array]:
    """Return loss → its share of the balanced gradient in each call."""
    names = list(norms)
    supplied = {
        name: target * norms[name] / averages[name]
        for name, target in zip(names, targets(names))
    }
    whole = sum(supplied.values())
    return {name: part / whole for name, part in supplied.items()}


class Fit(NamedTuple):
    """How well a setting follows norms.

    Attributes:
        calls: the part of the calls that measured.
        miss: the mean over calls of half Σ_i |share_i − target_i|.
        lag: the same of shares that are means over 20 calls.
        worst: the greatest ratio between such a share and its target, after the first
            20 calls.
        noise: the mean change of log scale from call to call.
        first: half Σ_i |share_i − target_i| of shares that are means over the first
            100 calls.
    """

    calls: float
    miss: float
    lag: float
    worst: float
    noise: float
    first: float


def fit(norms: Norms, setting: Setting) -> Fit:
    """Return how well a setting follows norms; every call counts, held ones too."""
    replay = Replay(setting)
    rows, measured = [], []
    for call in calls_of(norms):
        rows.append(list(replay.call(call).values()))
        measured.append(replay.just_measured)
    averages = dict(zip(norms, np.array(rows).T))
    found = np.array(list(shares(norms, averages).values()))
    target = targets(list(norms))
    blocks = found[:, : found.shape[1] // BLOCK * BLOCK]
    blocks = blocks.reshape(len(found), -1, BLOCK).mean(axis=2)
    first = found[:, :FIRST].mean(axis=1, keepdims=True)
    return Fit(
        float(np.mean(measured)),
        _distance(found, target),
        _distance(blocks, target),
        float(np.exp(np.abs(np.log(blocks[:, 1:] / target)).max())),
        float(np.abs(np.diff(np.log(np.array(rows)), axis=0)).mean()),
        _distance(first, target),
    )


def _distance(found: Array, target: Array) -> float:
    return float(np.abs(found - target).sum(axis=0).mean() / 2)


def mean_fit(found: Sequence[Fit]) -> Fit:
    """Return means over recordings, and the worst of all."""
    means = Fit(*(float(np.mean(column)) for column in zip(*found)))
    return means._replace(worst=max(one.worst for one in found))


def recordings() -> Dict[str, Norms]:
    """Return codec → the norms of its recorded training."""
    found: Dict[str, Norms] = {}
    for path in sorted(DATA.glob("norms_*.npz")):
        with np.load(path) as saved:
            norms = {name: saved[name].astype(float) for name in saved}
        found[path.stem.removeprefix("norms_")] = norms
    return found


def still(norms: Norms, calls: int) -> Norms:
    """Return the last 200 norms of a recording in random order, again and again.

    That is a long training in which nothing changes any more.
    """
    order = np.random.default_rng(0).integers(1, 201, calls)
    return {name: column[-order] for name, column in norms.items()}
