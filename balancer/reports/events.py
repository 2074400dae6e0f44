"""TensorBoard's events: what a training wrote, told apart from what it replaced.

A folder keeps the events of all trainings that ever wrote into it. A training that was
resumed goes on where its last checkpoint stood and repeats what came after; one that
was started anew replaces all. Each training opens a file of its own, so the steps in
the files tell which it was.
"""

from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple

from balancer.reports.stats import Points, losses_of

EPOCH = "iter_epoch"  # ESPnet writes it when an epoch ends, before the epoch's means
FILES = "*tfevents*"


class Event(NamedTuple):
    """A value that was written."""

    step: int
    tag: str
    value: float


def read_events(folder: Path) -> Dict[str, Dict[str, Points]]:
    """Return what each balancer reported in the last training in a folder.

    Args:
        folder: where a SummaryWriter or a logger of TensorBoard's wrote.

    Returns:
        The tags' prefix, such as "balancer/" or "", which stands for a balancer → stat,
        such as "mel_share" → its points. Other tags of that prefix are there too.

    Raises:
        ImportError: TensorBoard is not installed.
    """
    files = _files(folder)
    found = {}
    for prefix, name_of in _prefixes(files).items():
        own = [
            [
                Event(event.step, name_of[event.tag], event.value)
                for event in file
                if event.tag in name_of
            ]
            for file in files
        ]
        parts = [part for file in own for part in _parts(file)]
        found[prefix] = _points(_last_training(parts))
    return found


def has_events(folder: Path) -> bool:
    """Return whether TensorBoard's events are in a folder itself."""
    return any(folder.glob(FILES))


def _files(folder: Path) -> List[List[Event]]:
    """Return each file's events, in the order in which the files were begun."""
    files = [list(_read(path)) for path in sorted(folder.glob(FILES))]
    begun = sorted((file for file in files if file), key=lambda file: file[0][0])
    return [[event for _, event in file if event.tag] for file in begun]


def _read(path: Path) -> Iterator[Tuple[float, Event]]:
    """Yield (wall time, event), what is first without a tag."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import (
        LegacyEventFileLoader,
    )

    try:
        for event in LegacyEventFileLoader(str(path)).Load():
            if not event.summary.value:
                yield event.wall_time, Event(event.step, "", 0.0)
            for value in event.summary.value:
                for number in _scalar(value):
                    yield event.wall_time, Event(event.step, value.tag, number)
    except DecodeError:
        return  # no event, as what a full disk left; what came before it counts


def _scalar(value: Any) -> List[float]:
    """Return the number that a summary's value is, or nothing."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return [value.simple_value]
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return []
    return [*value.tensor.float_val, *value.tensor.double_val][:1]


def _parts(file: List[Event]) -> Iterator[List[Event]]:
    """Yield a file in parts, each of steps that do not fall back.

    Two trainings in one process may share a writer.
    """
    part: List[Event] = []
    last = -1
    for event in file:
        if event.tag.endswith("_share"):
            if event.step < last:
                yield part
                part = []
            last = event.step
        part.append(event)
    yield part


def _prefixes(files: Iterable[List[Event]]) -> Dict[str, Dict[str, str]]:
    """Return prefix → tag → its rest, for the prefixes that a balancer's stats have."""
    tags = list(dict.fromkeys(event.tag for file in files for event in file))
    # Lightning appends this to what it logs by the epoch as well.
    by_step = {tag: tag[: -len("_step")] for tag in tags if tag.endswith("_step")}
    if not any(name.endswith("_share") for name in by_step.values()):
        by_step = {}
    found: Dict[str, Dict[str, str]] = {}
    for tag in tags:
        name = by_step.get(tag, tag)
        prefix = name[: name.rfind("/") + 1]
        found.setdefault(prefix, {})[tag] = name[len(prefix) :]
    return {
        prefix: name_of
        for prefix, name_of in found.items()
        if losses_of(name_of.values())
    }


def _last_training(parts: Iterable[List[Event]]) -> List[Event]:
    """Return the events without those that a later training replaced."""
    kept: List[Event] = []
    for events in parts:
        steps = sorted({step for step, tag, _ in events if tag.endswith("_share")})
        if not steps:
            continue
        # Its first point stands for the steps since it was started. That is 0 or less
        # where training begins, and the checkpoint's step where it goes on.
        start = steps[0] - (steps[1] - steps[0] if len(steps) > 1 else 1)
        kept = [event for event in kept if event.step <= start] + events
    return kept


def _points(events: Iterable[Event]) -> Dict[str, Points]:
    """Return tag → points, of the intervals, or of the epochs if there is nothing else.

    ESPnet writes both under one tag: after an epoch's last interval, at the same step,
    the means over the epoch. An epoch may be shorter than an interval.
    """
    intervals: Dict[str, Points] = {}
    epochs: Dict[str, Points] = {}
    ended = -1
    for step, tag, value in events:
        if tag == EPOCH:
            ended = step
        means = epochs if step == ended else intervals
        means.setdefault(tag, {})[step] = value
    return {**epochs, **intervals}
