#!/usr/bin/env python3
"""Replay recorded gradient norms through averages, and say how well each one follows.

For each average: `miss`, the mean over steps of half Σ_i |share_i − target_i|; `lag`,
the same of shares that are means over 20 steps; `worst`, the greatest ratio between
such a share and its target after the first 20 steps; and `noise`, the mean change of
log scale from step to step. Beside the balancer's averages stand those that were tried
and lost. egs/study/record_norms.py recorded the norms.
"""

import argparse
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np
from numpy.typing import NDArray

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages

DATA = Path(__file__).parents[1] / "test" / "data"
# EnCodec's weights, and mel's for the dual decoder's loss.
WEIGHTS = {
    "reconstruct": 0.1,
    "adv": 3.0,
    "feat_match": 3.0,
    "mel": 1.0,
    "mel_real": 1.0,
}
BLOCK = 20  # steps
Array = NDArray[np.float64]
# Norms [T] → averages [T], each with its step's norm.
Average = Callable[[Array], Array]
Norms = Mapping[str, Array]  # loss → norms [T]


class Fit(NamedTuple):
    """How well an average follows; see above."""

    miss: float
    lag: float
    worst: float
    noise: float


def by(averages: NormAverages) -> Average:
    """Return what the balancer's averages make of norms."""

    def average(norms: Array) -> Array:
        now, found = averages, []
        for norm in norms:
            now = now.updated({"": float(norm)})
            found.append(now[""])
        return np.array(found)

    return average


def growing(eta: float) -> Average:
    """Polynomial decay (Shamir and Zhang, 2013): a horizon that grows and stays."""

    def average(norms: Array) -> Array:
        found: List[float] = []
        for t, norm in enumerate(norms, 1):
            before = found[-1] if found else norm
            found.append(before + (eta + 1) / (t + eta) * (norm - before))
        return np.array(found)

    return average


def trend(level: float, slope: float, damping: float) -> Average:
    """Holt's double smoothing with a damped trend (Gardner, 1985), of log norms."""

    def average(norms: Array) -> Array:
        now, rise, found = math.log(norms[0]), 0.0, []
        for log in np.log(norms):
            expected = now + damping * rise
            new = expected + level * (log - expected)
            rise = damping * rise + slope * (new - now - damping * rise)
            now = new
            found.append(now)
        return np.exp(found)

    return average


def twice(decay: float) -> Average:
    """Brown's double exponential smoothing, 2a − a of a, of log norms."""

    def smooth(values: Array) -> Array:
        total = fix = 0.0
        found = []
        for value in values:
            total, fix = decay * total + value, decay * fix + 1
            found.append(total / fix)
        return np.array(found)

    def average(norms: Array) -> Array:
        once = smooth(np.log(norms))
        return np.asarray(np.exp(2 * once - smooth(once)))

    return average


def response_rate(gamma: float, power: float) -> Average:
    """Trigg and Leach (1967): the tracking signal, to a power, is the rate."""

    def average(norms: Array) -> Array:
        now, drift, spread, found = norms[0], 0.0, 0.0, []
        for norm in norms:
            drift += gamma * (norm - now - drift)
            spread += gamma * (abs(norm - now) - spread)
            signal = abs(drift) / spread if spread else 0.0
            now += max(signal**power, 0.001) * (norm - now)
            found.append(now)
        return np.array(found)

    return average


def median(steps: int) -> Average:
    """The median of the last steps."""
    return lambda norms: np.array(
        [np.median(norms[max(0, t - steps + 1) : t + 1]) for t in range(len(norms))]
    )


def all_averages(every: int = 1) -> Dict[str, Average]:
    """Return name → average, of norms that were measured on each `every`-th call."""
    return {
        **{
            f"ema_decay {decay:g}": by(NormAverages(decay, every))
            for decay in (0.0, 0.5, 0.9, 0.95, 0.99, 0.999)
        },
        "adaptive_average": by(AdaptiveAverages(0.999, every)),
        "growing horizon, eta 3": growing(3),
        "growing horizon, eta 7": growing(7),
        "log trend, damped": trend(0.1, 0.02, 0.95),
        "log double smoothing, 0.9": twice(0.9),
        "response rate": response_rate(0.1, 1),
        "response rate, cubed": response_rate(0.05, 3),
        "median of 9": median(9),
        "median of 51": median(51),
    }


def shares(norms: Norms, averages: Norms) -> Dict[str, Array]:
    """Return loss → its share of the balanced gradient at each step."""
    supplied = {name: WEIGHTS[name] * norms[name] / averages[name] for name in norms}
    whole = sum(supplied.values())
    return {name: part / whole for name, part in supplied.items()}


def fit(norms: Norms, average: Average) -> Fit:
    """Return how well an average follows norms."""
    targets = np.array([WEIGHTS[name] for name in norms])[:, None]
    targets = targets / targets.sum()
    averages = {name: average(n) for name, n in norms.items()}
    found = np.array(list(shares(norms, averages).values()))
    blocks = found[:, : found.shape[1] // BLOCK * BLOCK]
    blocks = blocks.reshape(len(found), -1, BLOCK).mean(axis=2)
    ratios = np.abs(np.log(blocks[:, 1:] / targets))
    scales = np.log(list(averages.values()))
    return Fit(
        float(np.abs(found - targets).sum(axis=0).mean() / 2),
        float(np.abs(blocks - targets).sum(axis=0).mean() / 2),
        float(np.exp(ratios.max())),
        float(np.abs(np.diff(scales)).mean()),
    )


def recordings() -> Dict[str, Norms]:
    """Return codec → the norms of its recorded training."""
    found: Dict[str, Norms] = {}
    for path in sorted(DATA.glob("norms_*.npz")):
        with np.load(path) as saved:
            # FunCodec is recorded without a dual decoder's loss.
            norms = {n: saved[n].astype(float) for n in WEIGHTS if n in saved}
        found[path.stem.removeprefix("norms_")] = norms
    return found


def mean_fit(found: Sequence[Fit]) -> Fit:
    """Return means over recordings, and the worst of all."""
    miss, lag, _, noise = (float(np.mean(column)) for column in zip(*found))
    return Fit(miss, lag, max(one.worst for one in found), noise)


def draw(recorded: Mapping[str, Norms], path: Path) -> None:
    """Draw the mel loss's share in each recording, for three averages."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(recorded), figsize=(3.2 * len(recorded), 3), sharey=True, squeeze=False
    )
    names = ("ema_decay 0.999", "ema_decay 0.99", "adaptive_average")
    ax: Any
    for ax, (codec, norms) in zip(axes[0], recorded.items()):
        for name, color in zip(names, ("C3", "C1", "C0")):
            average = all_averages()[name]
            share = shares(norms, {n: average(x) for n, x in norms.items()})["mel"]
            smooth = np.convolve(share, np.ones(BLOCK) / BLOCK, mode="valid")
            steps = np.arange(len(smooth)) + BLOCK
            ax.plot(steps, smooth, color=color, label=name, lw=1)
        target = WEIGHTS["mel"] / sum(WEIGHTS[name] for name in norms)
        ax.axhline(target, color="black", ls="--", lw=1, label="target")
        ax.set(title=codec, xlabel=f"step (means of {BLOCK})", ylim=(0, 0.4))
    axes[0][0].set_ylabel("share of the mel loss")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", type=Path, help="draw the mel loss's shares here")
    args = parser.parse_args()
    recorded = recordings()
    print("| average | miss | lag | worst | noise | miss, every 8th | noise |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    sparse = [{n: x[::8] for n, x in norms.items()} for norms in recorded.values()]
    every_8 = all_averages(8)
    for name, average in all_averages().items():
        each = mean_fit([fit(norms, average) for norms in recorded.values()])
        every_8th = mean_fit([fit(norms, every_8[name]) for norms in sparse])
        print(
            f"| {name} | {each.miss:.3f} | {each.lag:.3f} | {each.worst:.1f} | "
            f"{each.noise:.4f} | {every_8th.miss:.3f} | {every_8th.noise:.4f} |"
        )
    if args.plot:
        draw(recorded, args.plot)


if __name__ == "__main__":
    main()
