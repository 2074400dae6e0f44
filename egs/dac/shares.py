#!/usr/bin/env python3
"""Print the shares in trainings of train.py: means over the quarters of the steps."""

import argparse
from pathlib import Path

import numpy as np

from balancer.reports.runs import Run, read_runs
from balancer.reports.tables import columns


def table(run: Run):
    """Return the lines: each quarter's shares, and the sum of the scaled norms."""
    stats = {kind: run.of(kind) for kind in ("share", "ratio", "norm", "scale")}
    header = ["steps", *run.losses, "sum of norms"]
    header[1:1] = [f"{name} unscaled" for name in run.losses]
    lines = [header]
    steps = list(stats["share"][run.losses[0]])
    for quarter in np.array_split(steps, 4):
        columns_of = [stats[x][n] for x in ("ratio", "share") for n in run.losses]
        means = [np.mean([points[s] for s in quarter]) for points in columns_of]
        total = [
            sum(stats["scale"][n][s] * stats["norm"][n][s] for n in run.losses)
            for s in quarter
        ]
        label = f"{quarter[0] + 1}-{quarter[-1] + 1}"
        lines.append([label, *(f"{x:.3f}" for x in means), f"{np.mean(total):.3g}"])
    return lines


def main():
    """Print a table for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exp", type=Path, nargs="+", help="--out_dir of a training")
    for folder in parser.parse_args().exp:
        for run in read_runs(folder):
            print(f"{run.name}\n{columns(table(run))}\n")


if __name__ == "__main__":
    main()
