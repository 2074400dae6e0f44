"""The balancer's stats over a training, as ESPnet or any other loop left them."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from balancer._scales.weights import Weight, weights_at
from balancer.loss_balancer import Balancer
from balancer.reports.events import FILES, has_events, read_events
from balancer.reports.files import ReportError, read_checkpoint, read_yaml
from balancer.reports.stats import TARGET, Points, losses_of, subjects_of

__all__ = ["ReportError", "Run", "read_run", "read_runs", "rows"]


@dataclass
class Run:
    """The stats of one training.

    Attributes:
        name: the folder's name.
        losses: those that have stats; of ESPnet in the order of the configuration.
        series: (stat, subject) → its points. The subject is a loss, for `cosine` a pair
            of losses as "a, b", for `total_grad_norm` nothing.
        weights: loss → weight, where ESPnet's configuration says them.
    """

    name: str
    losses: List[str]
    series: Dict[Tuple[str, str], Points]
    weights: Dict[str, Weight] = field(default_factory=dict)

    def targets(self) -> Dict[str, Points]:
        """Return loss → w_i / Σ_j w_j, where it is known and shares are to reach it."""
        return self.of(TARGET.name)

    def of(self, stat: str) -> Dict[str, Points]:
        """Return subject → points of one stat."""
        return {name: p for (kind, name), p in self.series.items() if kind == stat}


def read_runs(folder: Path) -> List[Run]:
    """Return the stats of a training, of each of its balancers.

    Args:
        folder: ESPnet's --output_dir, or where any loop wrote TensorBoard's events,
            under tags such as `balancer/mel_share`; or a folder above it. Targets are
            those that the loop logged; see balancer.reports.targets.

    Raises:
        ReportError: nothing was reported in this folder, or nothing by a balancer.
        ImportError: there are events and TensorBoard is not installed.
    """
    if not folder.is_dir():
        found = "no folder" if folder.exists() else "missing"
        raise ReportError(f"{folder} is {found}: give the folder of a training")
    if is_espnet(folder):
        return [read_run(folder)]
    balancers = read_events(_folder_of_events(folder))
    if not balancers:
        raise ReportError(
            f"{folder} has TensorBoard events, but no stats of a balancer in them: log "
            "what the balancer returns, as `balancer/mel_share`"
        )
    name = folder.resolve().name
    return [
        _run(f"{name}, {prefix.rstrip('/')}" if len(balancers) > 1 else name, keys)
        for prefix, keys in balancers.items()
    ]


def read_run(folder: Path, per_epoch: bool = False) -> Run:
    """Return the stats of one of ESPnet's trainings.

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
    keys: Dict[str, Points] = {}
    if events.is_dir() and not per_epoch:
        keys = read_events(events).get("", {})
    if not losses_of(keys):
        keys = _epoch_points(folder)
    if not losses_of(keys):
        raise ReportError(
            f"{folder} has no stats of a balancer; its config.yaml says `balancer: "
            f"{config.get('balancer') or 'none'}`"
        )
    run = _run(folder.resolve().name, keys)
    section = config.get("balancer_conf") or {}
    # Without weights in the configuration all losses weigh alike.
    given = section.get("weights") or dict.fromkeys(run.losses, 1.0)
    weights = Balancer.from_config({"weights": given}).weights
    assert weights is not None
    order = [name for name in weights if name in run.losses]
    run = _run(run.name, keys, order)
    run.weights = {name: weights[name] for name in order}
    # A weighting of TorchJD's chooses other coefficients.
    if section.get("balance_grads", True) and not section.get("weighting"):
        run.series.update(_targets(run))
    return run


def rows(run: Run) -> Iterator[Tuple[str, int, str, str, float]]:
    """Yield (run, step, stat, subject, value) of each value, of the targets at last."""
    for (stat, subject), points in sorted(
        run.series.items(), key=lambda item: item[0][0] == TARGET.name
    ):
        for step, value in points.items():
            yield run.name, step, stat, subject, value


def is_espnet(folder: Path) -> bool:
    """Return whether a folder is the --output_dir of one of ESPnet's trainings."""
    if (folder / "tensorboard" / "train").is_dir():
        return True
    return (folder / "config.yaml").is_file() and not any(folder.rglob(FILES))


def _run(name: str, keys: Dict[str, Points], losses: Sequence[str] = ()) -> Run:
    losses = list(losses) or losses_of(keys)
    series = {subject: keys[key] for key, subject in subjects_of(keys, losses)}
    return Run(name, losses, series)


def _targets(run: Run) -> Dict[Tuple[str, str], Points]:
    """Return ("target", loss) → w_i / Σ_j w_j at each step that has a share."""
    found: Dict[Tuple[str, str], Points] = {
        (TARGET.name, name): {} for name in run.weights
    }
    steps = itertools.chain(*run.of("share").values())
    for step in sorted(set(steps)):
        weights = weights_at(run.weights, step - 1)  # calls count from 0
        total = sum(weights.values())
        for name, weight in weights.items():
            found[TARGET.name, name][step] = weight / total if total else 0.0
    return found


def _folder_of_events(folder: Path) -> Path:
    """Return the one folder of events in a folder and in those in it.

    Raises:
        ReportError: there is none, or several.
    """
    if has_events(folder):
        return folder
    found = sorted({path.parent for path in folder.rglob(FILES)})
    if not found:
        raise ReportError(
            f"{folder} has no TensorBoard events: give the folder that a SummaryWriter "
            "or a logger wrote to, or the --output_dir of one of ESPnet's trainings"
        )
    if len(found) > 1:
        names = ", ".join(map(str, found[:3])) + ", …" * (len(found) > 3)
        raise ReportError(
            f"{folder} has {len(found)} folders of events: name those to draw ({names})"
        )
    return found[0]


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
