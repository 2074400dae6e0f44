"""Draw what the balancer did in one training, or in several to compare.

    python -m balancer.bin.plot_stats exp/DIR
    python -m balancer.bin.plot_stats exp/A exp/B --output a_and_b.png --csv

Reads the TensorBoard events of any training loop that logs the balancer's stats, under
tags such as `balancer/mel_share`. Of ESPnet's trainings a point is a log interval, or,
without events, an epoch of checkpoint.pth. Of a folder that several trainings wrote to
the last one is drawn; one that was resumed is drawn whole.
"""

import argparse
import csv
from pathlib import Path
from typing import List, Optional, Sequence

from balancer.bin.command import check_output, check_picture, run_command
from balancer.reports.runs import Run, read_runs, rows

HEADER = ("run", "step", "stat", "loss", "value")


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m balancer.bin.plot_stats",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "exp",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="ESPnet's --output_dir, or where a loop writes TensorBoard's events",
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
    run_command(get_parser(), draw_sheet, cmd)


def draw_sheet(options: argparse.Namespace) -> None:
    """Draw what the command line asks for."""
    try:
        from balancer.reports.plots import draw

        runs = read(options.exp)
    except ImportError as error:
        raise ImportError(
            f"{error}: install the extra, `pip install 'espnet-balancer[plot]'`"
        ) from error
    alone = options.exp[0] if len(options.exp) == 1 else Path()
    output = check_picture(options.output or alone / "balance.png")
    draw(runs).savefig(output, dpi=130)
    print(f"The picture is {output}")
    if options.csv:
        table = check_output(output.with_suffix(".csv"))
        write_csv(runs, table)
        print(f"The values are in {table}")


def read(folders: Sequence[Path]) -> List[Run]:
    """Return the runs; those whose folders have one name go by their whole paths."""
    names = [folder.resolve().name for folder in folders]
    runs = []
    for folder, name in zip(folders, names):
        for run in read_runs(folder):
            if names.count(name) > 1:
                run.name = str(folder) + run.name[len(name) :]
            runs.append(run)
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
