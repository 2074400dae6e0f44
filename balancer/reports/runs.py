"""The balancer's stats over a training, as ESPnet left them in its output folder."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple

from balancer._scales.weights import Weight, weights_at
from balancer.loss_balancer import Balancer
from balancer.reports.files import ReportError, read_checkpoint, read_yaml

Points = Dict[int, float]  # training step → value


class Stat(NamedTuple):
    """A stat, reported for each loss as `{loss}_{name}` unless it says otherwise."""

    name: str
    title: str
    log: bool = True  # whether it is drawn on a logarithmic axis


STATS = (
    Stat("share", "Share of the balanced gradient", log=False),
    Stat("ratio", "Share if nothing were balanced (ratio)"),
    Stat("norm", "Gradient norm"),
    Stat("scale", "Scale"),
)
COSINE = Stat("cosine", "Cosine of two gradients", log=False)  # {a}_{b}_cosine
TOTAL = Stat("total_grad_norm", "Norm of the combined gradient", log=False)  # no loss
# What a GradientProbe takes.
QUANTITIES = (
    Stat("norm_test", "Norm test"),
    Stat("inner_product_test", "Inner product test"),
    Stat("orthogonality_test", "Orthogonality test"),
    Stat("mean_gsnr", "Mean gradient signal-to-noise ratio"),
    Stat("critical_batch_size", "Critical batch size"),
    Stat("early_stopping", "Early stopping (above 0: stop)", log=False),
)


@dataclass
class Run:
    """The stats of one training.

    Attributes:
        name: the folder's name.
        weights: loss → weight, in the order of the configuration, for each loss that
            has stats.
        balanced: whether the gradients were balanced (balance_grads).
        series: (stat, subject) → its points. The subject is a loss, for `cosine` a pair
            of losses as "a, b", for `total_grad_norm` nothing.
    """

    name: str
    weights: Dict[str, Weight]
    balanced: bool
    series: Dict[Tuple[str, str], Points]

    def targets(self) -> Dict[str, Points]:
        """Return loss → w_i / Σ_j w_j, nothing if the gradients were not balanced."""
        targets: Dict[str, Points] = {name: {} for name in self.weights}
        steps = {step for points in self.of("share").values() for step in points}
        for step in sorted(steps):
            weights = weights_at(self.weights, step - 1)  # calls count from 0
            total = sum(weights.values())
            for name, weight in weights.items():
                targets[name][step] = weight / total if total else 0.0
        return targets if self.balanced else {}

    def of(self, stat: str) -> Dict[str, Points]:
        """Return subject → points of one stat."""
        return {name: p for (kind, name), p in self.series.items() if kind == stat}


def read_run(folder: Path, per_epoch: bool = False) -> Run:
    """Return the stats of a training.

    Each interval's means are read from the TensorBoard events if there are any, else
    each epoch's from checkpoint.pth.

    Args:
        folder: the --output_dir of the training.
        per_epoch: whether to take the epochs' means in any case.

    Raises:
        ReportError: nothing was reported in this folder, or nothing by a balancer.
        ImportError: there are events and TensorBoard is not installed.
    """
    config = _config(folder)
    events = folder / "tensorboard" / "train"
    keys = _interval_points(events) if events.is_dir() and not per_epoch else {}
    if not losses_of(keys):
        keys = _epoch_points(folder)
    section = config.get("balancer_conf") or {}
    losses = losses_of(keys)
    if not losses:
        raise ReportError(
            f"{folder} has no stats of a balancer; its config.yaml says `balancer: "
            f"{config.get('balancer') or 'none'}`"
        )
    # Without weights in the configuration all losses weigh alike.
    given = section.get("weights") or dict.fromkeys(losses, 1.0)
    weights = Balancer.from_config({"weights": given}).weights
    assert weights is not None
    order = [name for name in weights if name in losses]
    series = {subject: keys[key] for key, subject in subjects_of(keys, order)}
    return Run(
        name=folder.resolve().name,
        weights={name: weights[name] for name in order},
        balanced=section.get("balance_grads", True),
        series=series,
    )


def rows(run: Run) -> Iterator[Tuple[str, int, str, str, float]]:
    """Yield (run, step, stat, subject, value) of each value, of the targets at last."""
    targets = {("target", name): points for name, points in run.targets().items()}
    for (stat, subject), points in {**run.series, **targets}.items():
        for step, value in points.items():
            yield run.name, step, stat, subject, value


def _config(folder: Path) -> Dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise ReportError(
            f"{folder} has no config.yaml: give the --output_dir of a training"
        )
    config = read_yaml(path)
    if not isinstance(config.get("balancer_conf") or {}, dict):
        raise ReportError(f"balancer_conf of {path} is no section")
    return config


def _epoch_points(folder: Path) -> Dict[str, Points]:
    """Return key → the epochs' means, each at its epoch's last step."""
    path = folder / "checkpoint.pth"
    if not path.is_file():
        raise ReportError(
            f"{folder} has neither TensorBoard events of a balancer nor a "
            "checkpoint.pth: there is something to show after the first epoch"
        )
    state = read_checkpoint(path)
    keys: Dict[str, Points] = {}
    try:
        for _, parts in sorted(state["reporter"]["stats"].items()):
            stats = parts.get("train", {})
            for key, value in stats.items():
                if isinstance(value, float):
                    keys.setdefault(key, {})[stats["total_count"]] = value
    except (LookupError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is no checkpoint of ESPnet's") from error
    return keys


def _interval_points(folder: Path) -> Dict[str, Points]:
    """Return key → the intervals' means, each at its interval's last step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    ends: Dict[int, float] = {}
    for event in events.Scalars("iter_epoch") if "iter_epoch" in tags else []:
        ends.setdefault(event.step, event.wall_time)
    return {tag: _without_epochs(events.Scalars(tag), ends) for tag in tags}


def _without_epochs(events: Iterable[Any], ends: Dict[int, float]) -> Points:
    """Return the intervals' means, the epochs' if an epoch is shorter than an interval.

    ESPnet writes both under one tag. When an epoch ends it writes `iter_epoch` and then
    the means over the epoch, at the epoch's last step.
    """
    intervals: Points = {}
    epochs: Points = {}
    # Of a step that a resumed training did again the later value stands.
    for event in events:
        is_epoch = event.wall_time >= ends.get(event.step, float("inf"))
        (epochs if is_epoch else intervals)[event.step] = event.value
    return dict(sorted((intervals or epochs).items()))


def losses_of(keys: Iterable[str]) -> List[str]:
    """Return the losses that the balancer reported, in the order of the reports."""
    suffix = "_share"
    return [key[: -len(suffix)] for key in keys if key.endswith(suffix)]


def subjects_of(
    keys: Iterable[str], losses: List[str]
) -> Iterator[Tuple[str, Tuple[str, str]]]:
    """Yield (key, (stat, subject)) for each key of the balancer that is there."""
    there = set(keys)
    for stat, name in itertools.product((*STATS, *QUANTITIES), losses):
        if f"{name}_{stat.name}" in there:
            yield f"{name}_{stat.name}", (stat.name, name)
    for a, b in itertools.permutations(losses, 2):
        if f"{a}_{b}_{COSINE.name}" in there:
            yield f"{a}_{b}_{COSINE.name}", (COSINE.name, f"{a}, {b}")
    if TOTAL.name in there:
        yield TOTAL.name, (TOTAL.name, "")
