"""What averages make of spikes and of changes that are put into recorded norms."""

import itertools
import math
import statistics
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from replay import BLOCK, Norms, Replay, Setting, calls_of, targets

SPIKES = (10.0, 1e3, 1e6)
CHANGES = (100.0, 0.01)
EVERY = 240  # calls between two places where something is put in
NEAR = 2.0
LONGEST = 40  # measurements
Calls = List[Dict[str, float]]


class Place(NamedTuple):
    """A call and a loss to put something in.

    Attributes:
        replay: all before that call.
        calls: the call and those after it.
        name: the loss.
    """

    replay: Replay
    calls: Calls
    name: str


class Spikes(NamedTuple):
    """What the spikes and changes do that are put in, the worst but for `kept`.

    Attributes:
        own: what a loss has in the call that measures its spike, times its due.
        moved: the factor by which its average moves over one measurement of 10 to 10⁶
            times that average, or two in a row.
        kept: the part of its share that it keeps in the 20 calls after, not the least
            but the mean, since a measurement more or less is worth a tenth either way.
        followed: the measurements until the average is within a factor of 2 of norms
            that are 100 times as large from one call on, or a hundredth; 40 may mean
            never.
    """

    own: float
    moved: float
    kept: float
    followed: float


def places(norms: Norms, setting: Setting) -> Iterator[Place]:
    """Return the places in a recording that something is put in, for each loss."""
    calls = calls_of(norms)
    replay = Replay(setting)
    for t, call in enumerate(calls):
        if t % EVERY == EVERY // 2:
            for name in call:
                yield Place(replay.branch(lambda _, norm: norm), calls[t:], name)
        replay.call(call)


def spikes(norms: Norms, setting: Setting) -> Spikes:
    """Return the worst of all spikes and changes that are put into a recording."""
    found = []
    for place in places(norms, setting):
        hits = [
            spiked(place, factor, times)
            for factor, times in itertools.product(SPIKES, (1, 2))
        ]
        followed = max(changed(place, factor) for factor in CHANGES)
        found += [Spikes(*hit, followed) for hit in hits]
    return worst(found)


def worst(found: Sequence[Spikes]) -> Spikes:
    """Return the worst of each kind, of `kept` the mean."""
    own, moved, kept, followed = zip(*found)
    return Spikes(max(own), max(moved), sum(kept) / len(kept), max(followed))


def spiked(place: Place, factor: float, times: int) -> Tuple[float, float, float]:
    """Return own, moved and kept of a spike; see Spikes."""
    left = times

    def change(name: str, norm: float) -> float:
        nonlocal left
        if name != place.name or not left:
            return norm
        left -= 1
        return factor * before

    plain, replay = place.replay, place.replay.branch(change)
    before = plain.averages[place.name]
    own, calls = 0.0, iter(place.calls)
    while left:
        call, had = next(calls), left
        average = replay.call(call)[place.name]
        if left < had:
            own = max(own, factor * before / average)
    moved = abs(math.log(replay.averages[place.name] / before))
    plain = plain.branch(lambda _, norm: norm)
    rest = list(itertools.islice(calls, BLOCK))
    for call in place.calls[: replay.calls - plain.calls]:
        plain.call(call)
    kept = _share(replay, rest, place.name) / _share(plain, rest, place.name)
    return own, math.exp(moved), kept


def _share(replay: Replay, calls: Calls, name: str) -> float:
    """Return the mean share of a loss in these calls."""
    total = 0.0
    for call in calls:
        averages = replay.call(call)
        due = dict(zip(call, targets(list(call)).flat))
        supplied = {n: due[n] * norm / averages[n] for n, norm in call.items()}
        total += supplied[name] / sum(supplied.values())
    return total / len(calls)


def changed(place: Place, factor: float) -> float:
    """Return the measurements until an average has followed a change."""

    def change(name: str, norm: float) -> float:
        return factor * norm if name == place.name else norm

    replay = place.replay.branch(change)
    level = factor * statistics.median(c[place.name] for c in place.calls[:LONGEST])
    count = 0
    for call in place.calls:
        replay.call(call)
        count += replay.just_measured
        if abs(math.log(replay.averages[place.name] / level)) < math.log(NEAR):
            return count
        if count == LONGEST:
            break
    return LONGEST
