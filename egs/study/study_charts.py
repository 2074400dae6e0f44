"""The charts of RESULTS.md, a function for each question; None where nothing is."""

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Sequence

import matplotlib
import numpy as np
import study_conditions as conditions
import study_plan as plan
from study_score import SCORES
from study_statistics import paired
from study_tables import SETTINGS, shares_of
from study_values import DRAWN, Values

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

COLORS = dict(zip(DRAWN, ("C7", "C2", "C4", "C1", "C3", "C0")))
WAY_COLORS = ("C0", "C7", "C2", "C5", "C9", "C1", "C3")


def panels(values: Values, height: float = 3.4) -> Any:
    """Return a figure with a panel for each score: figure, [(axes, score)]."""
    scores = values.qualities()
    figure, axes = plt.subplots(1, len(scores), figsize=(3.2 * len(scores), height))
    return figure, list(zip(np.atleast_1d(axes), scores))


def heading(score: str) -> str:
    """Return a score's heading, with the direction that is better."""
    text, _, more = SCORES[score]
    return f"{text} ({'higher' if more else 'lower'} is better)"


def add_legend(figure: Any, ax: Any, columns: int, room: float) -> None:
    """Put an axes' legend below all of them, into a part of the figure's height."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=columns, fontsize=8)
    figure.tight_layout(rect=(0, room, 1, 1))


def untuned(values: Values) -> Any:
    """Question 1: quantiles over draws; a line for what draws do not change."""
    figure, axes = panels(values)
    for ax, score in axes:
        for title, color in COLORS.items():
            found = np.array(sorted(values.untuned(title, score)))
            if len(found) == 0:
                continue
            style = {"color": color, "lw": 2.2 if title == "ours" else 1.2}
            if values.is_drawn(title):
                worst_first = found if SCORES[score][2] else found[::-1]
                quantiles = (np.arange(len(found)) + 0.5) / len(found)
                ax.plot(quantiles, worst_first, "o-", ms=3, label=title, **style)
            else:
                ax.axhline(float(np.median(found)), label=title, **style)
                ax.axhspan(found[0], found[-1], color=color, alpha=0.15, lw=0)
        ax.set(title=heading(score), xlim=(0, 1))
        ax.set_xlabel("draws of the losses' scales, worst to best", fontsize=8)
        ax.title.set_fontsize(9)
    add_legend(figure, axes[0][0], len(DRAWN), 0.08)
    return figure


def carried_over(values: Values) -> Any:
    """Question 2: ours minus the matched sum, a row a setting."""
    pairs = {
        title: [conditions.in_setting(way, setting) for way in conditions.CARRIED]
        for title, setting in SETTINGS.items()
    }
    return differences(values, pairs, "ours minus the sum")


def differences(values: Values, pairs: Mapping[str, Sequence[str]], title: str) -> Any:
    """Return mean differences with their intervals: row → the two conditions."""
    figure, axes = panels(values, height=4.2)
    for i, (ax, score) in enumerate(axes):
        for row, (one, other) in enumerate(pairs.values()):
            found = paired(values.scores(one, score), values.scores(other, score))
            if not found.pairs:
                continue
            ax.plot([found.mean], [-row], "o", color="C0")
            if found.pairs > 1:
                ax.plot([found.low, found.high], [-row, -row], color="C0", lw=1.5)
        ax.axvline(0, color="gray", lw=0.8)
        labels = list(pairs) if i == 0 else [""] * len(pairs)
        ax.set_yticks([-row for row in range(len(pairs))], labels, fontsize=8)
        ax.set_ylim(0.5 - len(pairs), 0.5)
        side = "right" if SCORES[score][2] else "left"
        ax.set_xlabel(f"{title}; better to the {side}", fontsize=8)
        ax.set_title(SCORES[score][0], fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(4))  # more labels run into each other
        ax.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    return figure


def weights(values: Values) -> Any:
    """Question 3: scores over each loss's share, of the search."""
    numbers = plan.ranking(values.results)
    if not numbers:
        return None
    scores = values.qualities()
    size = (2.6 * len(conditions.LOSSES), 2.1 * len(scores))
    figure, axes = plt.subplots(
        *(len(scores), len(conditions.LOSSES)),
        figsize=size,
        sharey="row",
        squeeze=False,
    )
    for row, score in zip(axes, scores):
        for ax, name in zip(row, conditions.LOSSES):
            xs = [shares_of(conditions.searched()[n])[name] for n in numbers]
            found = [
                values.results[conditions.search_key(n)]["scores"] for n in numbers
            ]
            ax.plot(xs, [one[score] for one in found], "o", color="C0", ms=4)
            ax.set_xscale("log")
        row[0].set_ylabel(SCORES[score][0])
    for ax, name in zip(axes[-1], conditions.LOSSES):
        ax.set_xlabel(f"share of {name}")
    figure.tight_layout()
    return figure


def longer(values: Values) -> Any:
    """Question 4: scores over the length of the training."""
    figure, axes = panels(values)
    for ax, score in axes:
        for name, color in zip(conditions.LONG_WAYS, WAY_COLORS):
            points = {
                steps: values.scores(full, score).get(0)
                for steps, full in (
                    (conditions.STEPS, name),
                    (conditions.LONG, conditions.at_length(name)),
                )
            }
            there = {steps: x for steps, x in points.items() if x is not None}
            ax.plot(list(there), list(there.values()), "o-", color=color, label=name)
        ax.set(xlabel="steps", xscale="log")
        ax.set_xticks(
            [conditions.STEPS, conditions.LONG],
            [str(conditions.STEPS), str(conditions.LONG)],
        )
        ax.minorticks_off()
        ax.set_title(heading(score), fontsize=9)
    add_legend(figure, axes[0][0], 3, 0.14)
    return figure


def options(values: Values) -> Any:
    """Question 5: each option minus the base."""
    names = [*conditions.OPTIONS, conditions.NO_WARM_UP]
    pairs = {name: (name, "ours") for name in names}
    return differences(values, pairs, "minus the base")


def save(figure: Any, path: Path) -> None:
    """Write a figure and close it."""
    figure.savefig(path, dpi=110)
    plt.close(figure)


CHARTS: Dict[int, Callable[[Values], Any]] = {
    1: untuned,
    2: carried_over,
    3: weights,
    4: longer,
    5: options,
}
