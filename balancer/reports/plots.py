"""One sheet that shows what the balancer did over one or several trainings."""

import math
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from balancer.reports.runs import Run
from balancer.reports.stats import (
    COSINE,
    OUTSIDE,
    QUANTITIES,
    STATS,
    TOTAL,
    Points,
    Stat,
)

# Okabe and Ito's colours, which the colour-blind can tell apart, but the yellow, which
# is too pale for a line. Where they come round again, markers tell the lines apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("", "o", "^", "s", "D", "v", "P", "X", "*")
RUN_STYLES: Tuple[Any, ...] = ("-", ":", "-.", (0, (1, 3)), (0, (6, 1, 1, 1, 1, 1)))
TARGET: Any = (0, (4, 3))

WIDTH, HEIGHT, LINE = 4.8, 2.6, 0.21  # inches: a panel, a line of the legend
MOST_POINTS = 150  # of a line; of more, groups are averaged
MOST_PAIRS = 10  # of losses whose cosine is drawn

Look = Dict[str, Any]  # keyword arguments of Axes.plot

PANELS = (*STATS, COSINE, TOTAL, OUTSIDE, *QUANTITIES)


def draw(runs: Sequence[Run]) -> Figure:
    """Return the sheet: a panel for each stat, a colour a loss, a line style a run.

    Args:
        runs: at most five, so that their line styles can be told apart.

    Raises:
        ValueError: more runs than line styles.
    """
    if len(runs) > len(RUN_STYLES):
        raise ValueError(
            f"{len(runs)} trainings are too many for one sheet: at most "
            f"{len(RUN_STYLES)} line styles can be told apart"
        )
    losses = list(dict.fromkeys(name for run in runs for name in run.losses))
    looks = {name: _look(i) for i, name in enumerate(losses)}
    all_pairs = list(dict.fromkeys(pair for run in runs for pair in run.of("cosine")))
    strongest = _strongest(all_pairs, runs)
    pairs = {pair: _pair_look(pair, looks) for pair in strongest}
    entries = [_heading("loss"), *_entries(looks)]
    if any(run.targets() for run in runs):
        entries.append(Line2D([], [], label="target", color="0.4", linestyle=TARGET))
    if pairs:
        some = f" ({len(pairs)} of {len(all_pairs)})" * (len(pairs) < len(all_pairs))
        entries += [_heading(" "), _heading("pair" + some), *_entries(pairs)]
    figure = Figure(layout="constrained")
    panels = [panel for panel in PANELS if any(run.of(panel.name) for run in runs)]
    for panel, axes in zip(panels, _axes(figure, len(panels), len(entries))):
        combined: Dict[str, Look] = {"": dict(color="0.2")}
        subjects = {COSINE.name: pairs, TOTAL.name: combined, OUTSIDE.name: combined}
        _draw_panel(axes, panel, runs, subjects.get(panel.name, looks))
    legend = _legend(figure, entries, loc="outside right upper")
    for text, entry in zip(legend.get_texts(), entries):
        text.set_fontweight("bold" if entry.get_linestyle() == "None" else "normal")
    _name_runs(figure, [run.name for run in runs])
    return figure


def _axes(figure: Figure, panels: int, entries: int) -> List[Axes]:
    """Return so many axes, two a row, in a figure high enough for the legend too."""
    count = -(-panels // 2)
    height = max(count * HEIGHT, entries * LINE) + 3 * LINE
    figure.set_size_inches(2 * WIDTH + 2, height)
    grid = figure.add_gridspec(count, 2)
    axes = [figure.add_subplot(grid[i // 2, i % 2]) for i in range(panels)]
    for one in axes:
        one.sharex(axes[0])
        one.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        one.xaxis.set_major_formatter(EngFormatter(sep=""))
    for one in axes[-2:]:
        one.set_xlabel("training step")
    return axes


def _draw_panel(
    axes: Axes, panel: Stat, runs: Sequence[Run], looks: Mapping[str, Look]
) -> None:
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(color="0.9", linewidth=0.6)
    if panel.log:
        axes.set_yscale("log")
    highest, drawn = 0.0, 0
    for style, run in zip(RUN_STYLES, runs):
        points = run.of(panel.name)
        for i, (name, look) in enumerate(looks.items()):
            steps, values = _readable(points.get(name, {}), panel.log)
            highest, drawn = max([highest, *values]), drawn + len(values)
            axes.plot(steps, values, linestyle=style, **_marked(look, len(steps), i))
    if panel.name == "share":
        for run in runs:
            highest = max(highest, _draw_targets(axes, run, looks))
        axes.set_ylim(0, 1.08 * highest or 1.0)
    if panel.name in ("cosine", "early_stopping"):
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=1)
    if panel.name == "cosine":
        axes.set_ylim(-1.05, 1.05)
    if not drawn:
        axes.text(0.5, 0.5, "no value above 0", ha="center", transform=axes.transAxes)


def _draw_targets(axes: Axes, run: Run, looks: Mapping[str, Look]) -> float:
    """Draw dashed lines and return the highest value.

    Losses of the same weight take turns along one line.
    """
    highest = 0.0
    for name, points in run.targets().items():
        same = [n for n, others in run.targets().items() if others == points]
        many = len(same) > 4
        turn, period = (0, 7) if many else (7 * same.index(name), 7 * len(same))
        look: Look = dict(
            color="0.4" if many else looks[name]["color"],
            linestyle=(period - turn, (4, period - 4)),
            linewidth=1.1,
        )
        values = list(points.values())
        highest = max([highest, *values])
        if min(values) == max(values):
            axes.axhline(values[0], **look)
        else:
            axes.plot(list(points), values, **look)
    return highest


def _look(i: int) -> Look:
    """Return the colour and the marker of the i-th loss."""
    marker = MARKERS[i // len(COLORS) % len(MARKERS)]
    return dict(color=COLORS[i % len(COLORS)], marker=marker)


def _pair_look(pair: str, looks: Mapping[str, Look]) -> Look:
    """Return a line in the first loss's colour with markers in the second's."""
    a, b = (looks[name] for name in pair.split(", "))
    return dict(
        color=a["color"],
        marker=b["marker"] or "o",
        markerfacecolor=b["color"],
        markeredgecolor=b["color"],
    )


def _marked(look: Look, points: int, i: int) -> Look:
    """Return how a line of so many points is drawn, with about six markers on it."""
    every = max(points // 6, 1)
    marker = look.get("marker", "")
    # A line of one point has no length.
    return dict(
        look,
        linewidth=1.3,
        marker="o" if points == 1 and not marker else marker,
        markersize=5,
        markevery=(i % every, every),
    )


def _readable(points: Points, log: bool) -> Tuple[List[float], List[float]]:
    """Return what can be drawn: finite, above 0 if log, of long lines group means."""
    shown = [
        (step, value)
        for step, value in points.items()
        if math.isfinite(value) and (value > 0 or not log)
    ]
    size = -(-len(shown) // MOST_POINTS) or 1
    groups = [shown[i : i + size] for i in range(0, len(shown), size)]
    steps, values = (
        [sum(point[axis] for point in group) / len(group) for group in groups]
        for axis in (0, 1)
    )
    return steps, values


def _strongest(pairs: Sequence[str], runs: Sequence[Run]) -> List[str]:
    """Return those pairs of losses whose mean cosine is the furthest from 0."""

    def strength(pair: str) -> float:
        means = []
        for run in runs:
            points = run.of("cosine").get(pair, {})
            finite = [value for value in points.values() if math.isfinite(value)]
            means.append(abs(sum(finite)) / max(len(finite), 1))
        return max(means)

    strongest = sorted(pairs, key=strength, reverse=True)[:MOST_PAIRS]
    return [pair for pair in pairs if pair in strongest]


def _heading(text: str) -> Line2D:
    return Line2D([], [], label=text, linestyle="none")


def _entries(looks: Mapping[str, Look]) -> List[Line2D]:
    return [
        Line2D([], [], label=name, **_marked(look, 0, 0))
        for name, look in looks.items()
    ]


def _name_runs(figure: Figure, names: Sequence[str]) -> None:
    """Name one run in the title, several below the panels with their line styles."""
    if len(names) == 1:
        figure.suptitle(names[0], parse_math=False)
        return
    longest = max(len(name) for name in names)
    entries = [
        Line2D([], [], label=name, color="0.2", linestyle=line)
        for name, line in zip(names, RUN_STYLES)
    ]
    columns = max(1, min(len(names), 120 // (longest + 8)))
    _legend(figure, entries, loc="outside lower center", ncols=columns, handlelength=4)


def _legend(figure: Figure, entries: List[Line2D], **look: Any) -> Legend:
    """Return a legend with the entries' labels as they are.

    Matplotlib leaves out what begins with _ and reads formulas between $ and $.
    """
    labels = ["x"] * len(entries)
    legend = figure.legend(entries, labels, frameon=False, **look)
    for text, entry in zip(legend.get_texts(), entries):
        text.set_parse_math(False)
        text.set_text(entry.get_label())
    return legend
