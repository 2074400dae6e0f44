#!/usr/bin/env python3
"""Print what the balancer did in the last epoch of a training, a line a loss."""

import argparse
import sys
from pathlib import Path
from typing import List

from balancer._scales.weights import weights_at
from balancer.reports.runs import ReportError, Run, read_run
from balancer.reports.tables import columns

HEADER = ("loss", "weight", "target share", "share", "raw ratio", "norm", "scale")


def rows(run: Run) -> List[List[str]]:
    """The table's lines: the last epoch's means."""
    points = {**run.series, **{("target", n): p for n, p in run.targets().items()}}
    step = max(run.of("share")[next(iter(run.weights))])
    weights = weights_at(run.weights, step - 1)

    def last(stat: str, name: str, form: str) -> str:
        found = points.get((stat, name))
        return format(found[step], form) if found else "-"

    return [
        [
            name,
            f"{weight:g}",
            last("target", name, ".3f"),
            last("share", name, ".3f"),
            last("ratio", name, ".3g"),
            last("norm", name, ".3g"),
            last("scale", name, ".3g"),
        ]
        for name, weight in weights.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exp", type=Path, help="--output_dir of the training")
    try:
        run = read_run(parser.parse_args().exp, per_epoch=True)
    except ReportError as error:
        sys.exit(f"show_balance.py: {error}")
    print(columns([HEADER, *rows(run)]))


if __name__ == "__main__":
    main()
