"""Draw what the balancer did in one training, or in several to compare.

    python -m balancer.bin.plot_stats exp/DIR
    python -m balancer.bin.plot_stats exp/A exp/B --output a_and_b.png --csv

Reads the TensorBoard events that ESPnet left, a point for each log interval, or, where
there are none, checkpoint.pth, a point for each epoch.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from balancer.reports.runs import Run, read_run, rows

HEADER = ("run", "step", "stat", "loss", "value")


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "exp", type=Path, nargs="+", metavar="DIR", help="--output_dir of a training"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="F.png",
        help="the picture, png, pdf or svg (default: balance.png in DIR; of several "
        "DIRs, in this folder)",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="also write what was drawn beside the picture, a line a value: "
        + ", ".join(HEADER),
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run the command; see `python -m balancer.bin.plot_stats --help`."""
    args = get_parser().parse_args(cmd)
    output = args.output or (args.exp[0] if len(args.exp) == 1 else Path()) / (
        "balance.png"
    )
    try:
        from balancer.reports.plots import draw

        runs = with_own_names([read_run(folder) for folder in args.exp], args.exp)
        output.parent.mkdir(parents=True, exist_ok=True)
        draw(runs).savefig(output, dpi=130)
    except ValueError as error:
        sys.exit(f"plot_stats: {error}")
    except ImportError as error:
        sys.exit(
            f"plot_stats: {error}: install the extra, `pip install "
            "'espnet-balancer[plot]'`"
        )
    print(f"The picture is {output}")
    if args.csv:
        table = output.with_suffix(".csv")
        write_csv(runs, table)
        print(f"The values are in {table}")


def with_own_names(runs: List[Run], folders: Sequence[Path]) -> List[Run]:
    """Call runs whose folders have the same name by their whole paths."""
    names = [run.name for run in runs]
    for run, folder in zip(runs, folders):
        if names.count(run.name) > 1:
            run.name = str(folder)
    return runs


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """Write a line for each value, the header first."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for run in runs:
            writer.writerows(rows(run))


if __name__ == "__main__":
    main()
