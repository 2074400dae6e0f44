#!/usr/bin/env python3
"""Replay recorded gradient norms through averages, and say how well each one follows.

egs/study/record_norms.py and egs/pytorch/record_norms.py recorded the norms. Every call
counts with its true norms, also a call that does not measure them; replay.py and
replay_spikes.py say what the columns are. Beside the balancer's averages stand those
that were tried and lost.
"""

import argparse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping

import numpy as np
from averages_tried import Growing, Median, ResponseRate, Trend, Twice
from replay import (
    BLOCK,
    Norms,
    Replay,
    Setting,
    calls_of,
    fit,
    mean_fit,
    recordings,
    shares,
    still,
    targets,
)
from replay_spikes import spikes, worst

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages
from balancer._norms.interval import Interval

LONG = 4000  # calls


def ema(decay: float, update_every: Any = 1, skip: bool = False) -> Setting:
    """Return the setting of `average: ema`."""
    interval = Interval.read(update_every)
    return Setting(NormAverages(decay, interval.at_most, skip), interval)


def adaptive(update_every: Any = 1, skip: bool = False) -> Setting:
    """Return the setting of `average: adaptive`."""
    interval = Interval.read(update_every)
    return Setting(AdaptiveAverages(0.999, interval.at_most, skip), interval)


def every_call() -> Dict[str, Setting]:
    """Return averages of norms that each call measures."""
    decays = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999)
    tried: Dict[str, NormAverages] = {
        "growing horizon, eta 3": Growing(3),
        "growing horizon, eta 7": Growing(7),
        "log trend, damped": Trend(0.1, 0.02, 0.95),
        "log double smoothing, 0.9": Twice(0.9),
        "response rate": ResponseRate(0.1, 1),
        "response rate, cubed": ResponseRate(0.05, 3),
        "median of 9": Median(9),
        "median of 51": Median(51),
    }
    return {
        **{f"ema_decay {decay:g}": ema(decay) for decay in decays},
        "adaptive": adaptive(),
        **{name: Setting(each, Interval(1)) for name, each in tried.items()},
    }


def settings() -> Dict[str, Setting]:
    """Return what a user may set of average, outliers and update_every."""
    found = {}
    for every, skip in ((1, False), (8, False), (1, True), (8, True), ("auto", True)):
        end = f"{', outliers skip' if skip else ''}, update_every {every}"
        found[f"ema_decay 0.999{end}"] = ema(0.999, every, skip)
        found[f"ema_decay 0.9{end}"] = ema(0.9, every, skip)
        found[f"adaptive{end}"] = adaptive(every, skip)
    return found


def table(rows: Mapping[str, Setting], recorded: Iterable[Norms]) -> None:
    """Print how well settings follow the recordings."""
    print("| average | calls | miss | lag | worst | noise | first 100 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, setting in rows.items():
        each = mean_fit([fit(norms, setting) for norms in recorded])
        print(
            f"| {name} | {each.calls:.2f} | {each.miss:.3f} | {each.lag:.3f} | "
            f"{each.worst:.1f} | {each.noise:.4f} | {each.first:.3f} |",
            flush=True,
        )


def spike_table(rows: Mapping[str, Setting], recorded: Iterable[Norms]) -> None:
    """Print what spikes and changes do, and a long training that stands still."""
    print("| average | own call | moved | kept | followed | long: calls | noise |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, setting in rows.items():
        hit = worst([spikes(norms, setting) for norms in recorded])
        long = mean_fit([fit(still(norms, LONG), setting) for norms in recorded])
        print(
            f"| {name} | {hit.own:.1f} | {hit.moved:.3g} | {hit.kept:.2g} | "
            f"{hit.followed:.0f} | {long.calls:.3f} | {long.noise:.4f} |",
            flush=True,
        )


def averages_at(norms: Norms, setting: Setting) -> Norms:
    """Return loss → what the scale of each call goes by."""
    replay = Replay(setting)
    rows: List[Any] = [list(replay.call(call).values()) for call in calls_of(norms)]
    return dict(zip(norms, np.array(rows).T))


def draw(recorded: Mapping[str, Norms], path: Path) -> None:
    """Draw the spectral loss's share in each recording, for three settings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(recorded), figsize=(3.2 * len(recorded), 3), squeeze=False
    )
    rows = {
        "ema_decay 0.999": (ema(0.999), "C3"),
        "ema_decay 0.99": (ema(0.99), "C1"),
        "adaptive, outliers skip, auto": (adaptive("auto", True), "C0"),
    }
    ax: Any
    for ax, (codec, norms) in zip(axes[0], recorded.items()):
        loss = "mel" if "mel" in norms else "stft"
        for label, (setting, color) in rows.items():
            share = shares(norms, averages_at(norms, setting))[loss]
            smooth = np.convolve(share, np.ones(BLOCK) / BLOCK, mode="valid")
            steps = np.arange(len(smooth)) + BLOCK
            ax.plot(steps, smooth, color=color, label=label, lw=1)
        target = float(targets(list(norms))[list(norms).index(loss), 0])
        ax.axhline(target, color="black", ls="--", lw=1, label="target")
        ax.set(title=codec, xlabel=f"step (means of {BLOCK})")
        ax.set_ylim(0, min(1.0, 3 * target))
        ax.set_ylabel(f"share of {loss}")
    figure.tight_layout()
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncol=4, loc="upper center")
    figure.subplots_adjust(top=0.8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--plot", type=Path, help="draw the spectral loss's shares here"
    )
    args = parser.parse_args()
    recorded = recordings()
    table(every_call(), recorded.values())
    print()
    table(settings(), recorded.values())
    print()
    spike_table(settings(), recorded.values())
    if args.plot:
        draw(recorded, args.plot)


if __name__ == "__main__":
    main()
