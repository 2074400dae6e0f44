"""The study's charts, one for each question."""

from pathlib import Path
from typing import Any, Mapping, Sequence

import matplotlib
import numpy as np
import study_plan as plan

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, NullLocator  # noqa: E402

METHODS = {plan.SUM: "C7", plan.ESPNET: "C1", plan.OURS: "C0"}
LABELS = {
    3: "update_every",
    4: "average: adaptive, or ema_decay alone",
    6: "the dual decoder's loss",
    7: "total_norm",
}
MEL = "mel distance, held out"
TITLES = {
    "mel": MEL,
    "stft": "MR-STFT distance, held out",
    "codes": "codes in use of the first codebook's 128",
}


def bars(values: Any, condition: str, *keys: str, like: str = "") -> Any:
    """Return the mean over seeds and its distance to the least and the greatest."""
    found = np.array(values.of(condition, *keys, like=like), dtype=float)
    if not len(found):
        return np.nan, [[np.nan], [np.nan]]
    mean = found.mean()
    return mean, [[mean - found.min()], [found.max() - mean]]


def line(
    ax: Any, values: Any, xs: Sequence[float], conditions: Sequence[str], **style: Any
) -> None:
    """Draw the mel distance over x: a thin line a seed, and the mean of several."""
    by_seed = [values.by_seed(name, "distances", "mel") for name in conditions]
    for seed in sorted(set().union(*by_seed)):
        # A seed that was not scaled has a point, but no line.
        ys = [found.get(seed, np.nan) for found in by_seed]
        ax.plot(xs, ys, "o-", color=style["color"], ms=3, lw=0.8, alpha=0.7)
    several = [(x, found) for x, found in zip(xs, by_seed) if len(found) > 1]
    means = [float(np.mean(list(found.values()))) for _, found in several]
    ax.plot([x for x, _ in several], means, "_", ms=16, mew=2.5, **style)


def scales(values: Any) -> Any:
    """Question 1: the mel distance over the factor of each loss."""
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.4), sharey=True)
    low, high = plan.FACTORS
    for ax, loss in zip(axes, plan.LOSSES):
        for i, (method, color) in enumerate(METHODS.items()):
            if (method, loss) not in plan.SCALED:
                continue
            names = [plan.scaled(method, loss, low), method]
            names.append(plan.scaled(method, loss, high))
            beside = 10 ** (0.25 * (i - 1))
            xs = [low * beside, beside, high * beside]
            line(ax, values, xs, names, color=color, label=f"{method}, mean of seeds")
        ax.set(xscale="log", title=f"{loss} multiplied by")
        ax.xaxis.set_major_locator(FixedLocator([low, 1, high]))
        ax.xaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel(MEL)
    figure.legend(
        *axes[-1].get_legend_handles_labels(), fontsize=8, loc="lower center", ncols=3
    )
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def shares(values: Any) -> Any:
    """Question 2: shares at the output and in the decoder, beside the targets."""
    figure, ax = plt.subplots(figsize=(8, 3.4))
    weights: Mapping[str, float] = plan.ENCODEC_WEIGHTS
    whole = sum(weights.values())
    groups = {
        "target, EnCodec's weights": [weight / whole for weight in weights.values()],
        "at the output, second half of the training": [
            bars(values, plan.ENCODEC, "shares_in_training", name)[0]
            for name in weights
        ],
        "in the decoder's parameters, at the end": [
            bars(values, plan.ENCODEC, "shares", "decoder", name)[0] for name in weights
        ],
        "there in the hand-tuned sum": [
            bars(values, plan.SUM, "shares", "decoder", name)[0] for name in weights
        ],
    }
    for i, ((label, heights), color) in enumerate(
        zip(groups.items(), ("lightgray", "C0", "C2", "C7"))
    ):
        places = np.arange(len(weights)) + 0.2 * (i - 1.5)
        ax.bar(places, heights, 0.2, label=label, color=color)
    ax.set_xticks(range(len(weights)), list(weights))
    ax.set_ylabel("share of the gradient")
    ax.margins(y=0.3)  # room for the legend
    ax.legend(fontsize=8, ncols=2, loc="upper left")
    figure.tight_layout()
    return figure


def first_steps(values: Any) -> Any:
    """Question 5: norms of gradient and step at the beginning."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    titles = ("norm of the generator's gradient", "size of the generator's step")
    for ax, key, title in zip(axes, ("grad_norm", "step_size"), titles):
        for method, color in METHODS.items():
            for i, series in enumerate(values.of(method, "first_steps", key)):
                label = None if i else method
                steps = range(1, len(series) + 1)
                ax.plot(steps, series, color=color, lw=0.9, label=label)
        if values.of(plan.OURS):
            ax.set_yscale("log")
        ax.set(xlabel="step", title=title)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def sweep(values: Any, names: Mapping[str, str], label: str, other: str) -> Any:
    """Questions 3, 4, 6 and 7: the mel distance and another one by option."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for ax, key in zip(axes, ("mel", other)):
        for place, condition in enumerate(names.values()):
            seeds = values.of(condition, "distances", key)
            ax.plot([place] * len(seeds), seeds, "o", color="C0", alpha=0.5)
            if seeds:
                ax.plot([place], [np.mean(seeds)], "_", color="black", ms=14)
        ax.set_xticks(range(len(names)), list(names), fontsize=8)
        ax.set(xlabel=label, title=TITLES[key])
    figure.tight_layout()
    return figure


def draw(values: Any, folder: Path) -> None:
    """Write study_N.png of each question N."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        1: scales(values),
        2: shares(values),
        5: first_steps(values),
    }
    for number, names in plan.sweeps().items():
        other = "codes" if number == 7 else "stft"
        figures[number] = sweep(values, names, LABELS[number], other)
    for number, figure in figures.items():
        figure.savefig(folder / f"study_{number}.png", dpi=110)
        plt.close(figure)
