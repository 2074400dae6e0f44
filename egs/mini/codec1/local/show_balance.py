#!/usr/bin/env python3
"""Print what the balancer did in the last epoch of a training, a line a loss."""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch
import yaml

HEADER = ("loss", "weight", "target share", "share", "raw ratio", "norm", "scale")


def last_epoch(checkpoint: Path) -> Dict[str, Any]:
    """The reporter's means over the last epoch's training steps."""
    # The reporter holds timedeltas, which weights_only refuses. The file is our own.
    state = torch.load(checkpoint, map_location="cpu", weights_only=False)
    epochs = state["reporter"]["stats"]
    return dict(epochs[max(epochs)]["train"])


def rows(weights: Dict[str, float], stats: Dict[str, Any]) -> List[List[str]]:
    """The table's lines. Losses that a weight is given for, but no report, are left."""
    suffix = "_share"
    reported = [key[: -len(suffix)] for key in stats if key.endswith(suffix)]
    # Without weights in the configuration all losses weigh alike.
    used = {name: float(weights.get(name, 1.0)) for name in reported}
    total = sum(used.values())
    return [
        [
            name,
            f"{weight:g}",
            f"{weight / total:.3f}",
            f"{stats[name + '_share']:.3f}",
            f"{stats[name + '_ratio']:.3g}",
            f"{stats[name + '_norm']:.3g}",
            f"{stats[name + '_scale']:.3g}",
        ]
        for name, weight in used.items()
    ]


def table(lines: List[List[str]]) -> str:
    """The lines under the header, in columns."""
    cells = [list(HEADER), *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exp", type=Path, help="--output_dir of the training")
    exp = parser.parse_args().exp

    config = yaml.safe_load((exp / "config.yaml").read_text())
    if config.get("balancer", "none") == "none":
        sys.exit(f"{exp} was trained without a balancer, there is no table to show.")
    stats = last_epoch(exp / "checkpoint.pth")
    lines = rows(config["balancer_conf"].get("weights") or {}, stats)
    if not lines:
        sys.exit(f"{exp} has no report of the balancer in its last epoch.")
    print(table(lines))


if __name__ == "__main__":
    main()
