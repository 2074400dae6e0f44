"""What a balanced generator turn costs, beside an unbalanced one and other balancers.

    python tools/benchmark.py --model soundstream --size base
    python tools/benchmark.py --scaling

Real ESPnet models on random audio. In each round every way runs one turn, in an order
drawn anew; a ratio is taken within its round, so a machine that slows down slows all
ways alike. The table has medians and, in brackets, quartiles.
"""

import argparse
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
import torch._dynamo  # noqa: F401  (every optimizer brings it into memory)
from benchmark_turn import MODELS, Turn
from benchmark_ways import (
    AUDIOCRAFT,
    ESPNET,
    HELD,
    MEASURED,
    NO_BALANCING,
    TORCHJD,
    Way,
    make_ways,
)
from replay import part_that_measures
from torch import Tensor
from tqdm import tqdm

from balancer.bin.command import at_least, check_output, check_picture, run_command

UPDATE_EVERY = (1, 4, 8, 16)
RECIPES = (200, 1000)  # turns of a training with the recipes' averages
PARTS = ("forward", "balancing", "backward")
Times = Dict[str, Dict[str, List[float]]]


def main() -> None:
    """Run what the command line asks for."""
    run_command(get_parser(), benchmark)


def benchmark(args: argparse.Namespace) -> None:
    """Measure, print, and write what was asked for."""
    warnings.filterwarnings("ignore")  # ESPnet's, about its own code
    check(args)
    if args.scaling:
        import benchmark_scaling

        benchmark_scaling.main(args)
        return
    turn = Turn(args.model, args.size, args.device, args.batch, args.length)
    ways = make_ways(turn)
    if args.peak_of:
        print(peak_memory(turn, ways[args.peak_of]))
        return
    check_gradients(turn, ways)
    rows = table(measure(turn, ways, args.rounds))
    if args.memory:
        names = tqdm(ways, desc="peak memory", leave=False)
        peaks = {name: peak_in_own_process(args, name) for name in names}
        for row in rows:
            row["peak_mib"] = peaks[row["runs"]]
    print_table(args, rows)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"settings": settings(args), "rows": rows}, file, indent=1)
    if args.plot:
        plot(args, rows)


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default=MODELS[0])
    add("--size", choices=["mini", "base", "paper"], default="base")
    add("--device", default="cpu", help="as PyTorch names it (cpu)")
    add("--batch", type=at_least(1), default=4, help="recordings in it (4)")
    add("--length", type=at_least(1), default=8000, help="samples, at 16 kHz (8000)")
    # Quartiles need two.
    add("--rounds", type=at_least(2), default=20, help="to take medians over (20)")
    add("--memory", action="store_true", help="peaks too, each in its own process")
    add("--json", type=Path, help="write the figures to this file")
    add("--plot", type=Path, help="draw a bar chart into this png, pdf or svg file")
    add("--scaling", action="store_true", help="how the cost grows")
    add("--peak_of", help=argparse.SUPPRESS)
    return parser


def check(args: argparse.Namespace) -> None:
    """Raise before the measuring if its end could not be reached.

    Raises:
        ImportError: there is no Matplotlib to draw with.
        OSError: a file cannot be written.
        ValueError: a file or the device cannot be used.
    """
    if args.json:
        check_output(args.json)
    if args.plot:
        if not importlib.util.find_spec("matplotlib"):
            raise ImportError(
                "--plot needs Matplotlib: install the extra, `pip install "
                "'espnet-balancer[benchmark]'`"
            )
        check_picture(args.plot)
        if args.scaling:
            raise ValueError("--plot draws no chart of --scaling: leave one out")
    try:
        torch.zeros(1, device=args.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device {args.device} cannot be used here: {reason}"
        ) from error


def settings(args: argparse.Namespace) -> Dict[str, Any]:
    """Return what the figures hang on."""
    keys = ("model", "size", "device", "batch", "length", "rounds")
    used = {key: getattr(args, key) for key in keys}
    return {**used, "threads": torch.get_num_threads(), "torch": torch.__version__}


def run(turn: Turn, way: Way) -> Dict[str, float]:
    """Run one turn and return the seconds that each part took."""
    marks = [_now(turn)]
    out = turn.forward()
    marks.append(_now(turn))
    tensors, grads = way(out)
    out.losses.clear()  # a trainer's locals are gone by the time it runs backward
    marks.append(_now(turn))
    torch.autograd.backward(tensors, grads)
    marks.append(_now(turn))
    turn.clear()
    return {part: b - a for part, a, b in zip(PARTS, marks, marks[1:])}


def _now(turn: Turn) -> float:
    turn.synchronize()
    return time.perf_counter()


def measure(turn: Turn, ways: Dict[str, Way], rounds: int) -> Times:
    """Run all ways in each round; return name → part → seconds of each round."""
    times: Times = {name: {part: [] for part in PARTS} for name in ways}
    for name in ways:
        run(turn, ways[name])
    order = list(ways)
    for _ in tqdm(range(rounds), desc="rounds", leave=False):
        random.shuffle(order)
        for name in order:
            for part, seconds in run(turn, ways[name]).items():
                times[name][part].append(seconds)
    return times


def check_gradients(turn: Turn, ways: Dict[str, Way]) -> None:
    """Raise if ways that must give the generator the same gradient do not."""
    found: Dict[str, List[Tensor]] = {}
    for name, way in ways.items():
        for _ in range(2 if name == HELD else 1):  # the first call has to measure
            turn.restart()
            tensors, grads = way(turn.forward())
            torch.autograd.backward(tensors, grads)
        found[name] = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in turn.generator()
        ]
    turn.restart()
    expected = found[AUDIOCRAFT]
    size = torch.stack([grad.norm() for grad in expected]).norm()
    for name in set(ways) - {NO_BALANCING}:
        apart = [a - b for a, b in zip(found[name], expected)]
        error = (torch.stack([grad.norm() for grad in apart]).norm() / size).item()
        if error > 1e-4:
            raise ValueError(f"{name} gives another gradient: off by {error:.1e}")
    print(f"{len(ways) - 1} ways of balancing give the generator the same gradient.")


def table(times: Times) -> List[Dict[str, Any]]:
    """Return a row for each way: medians of the parts, and of the ratio to none."""
    plain = _turns(times[NO_BALANCING])
    rows = []
    for name in (NO_BALANCING, ESPNET, AUDIOCRAFT, TORCHJD):
        if name in times:
            rows.append(_row(name, name, [times[name]], [1.0], plain))
    measuring = {f"ours, update_every={every}": 1 / every for every in UPDATE_EVERY}
    for turns in RECIPES:
        name = f"ours, as the recipes, {turns} turns"
        measuring[name] = part_that_measures(turns)
    kinds = [times[MEASURED], times[HELD]]
    for name, part in measuring.items():
        runs = MEASURED if part == 1 else HELD
        rows.append(_row(name, runs, kinds, [part, 1 - part], plain))
    return rows


def _turns(parts: Dict[str, List[float]]) -> List[float]:
    return [sum(seconds) for seconds in zip(*parts.values())]


def _row(
    name: str,
    runs: str,
    kinds: Sequence[Dict[str, List[float]]],
    fractions: Sequence[float],
    plain: Sequence[float],
) -> Dict[str, Any]:
    """Return a row; turns of several kinds count by their fractions, round by round."""

    def mixed(series: Sequence[Sequence[float]]) -> List[float]:
        return [sum(f * x for f, x in zip(fractions, xs)) for xs in zip(*series)]

    turns = mixed([_turns(kind) for kind in kinds])
    ratios = [turn / base for turn, base in zip(turns, plain)]
    row: Dict[str, Any] = {"name": name, "runs": runs}
    for part in PARTS:
        row[f"{part}_ms"] = 1e3 * statistics.median(
            mixed([kind[part] for kind in kinds])
        )
    row["turn_ms"] = 1e3 * statistics.median(turns)
    row["ratio"] = statistics.median(ratios)
    row["ratio_quartiles"] = statistics.quantiles(ratios, n=4)[::2]
    return row


def peak_memory(turn: Turn, way: Way) -> float:
    """Return the peak of this process over a few turns, in MiB."""
    for _ in range(3):
        run(turn, way)
    if turn.device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    # Not getrusage: its maximum counts the process that started this one, too.
    with open("/proc/self/status", encoding="ascii") as file:
        return float(re.findall(r"VmHWM:\s+(\d+)", file.read())[0]) / 2**10


def peak_in_own_process(args: argparse.Namespace, runs: str) -> float:
    """Return the peak of one way alone in a process, in MiB."""
    command = [sys.executable, __file__, "--peak_of", runs]
    for key in ("model", "size", "device", "batch", "length"):
        command += [f"--{key}", str(getattr(args, key))]
    # Tensors in pages of their own, which are given back when they are freed: else the
    # peak is the allocator's as much as the way's.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=env
    )
    return float(output.stdout.split()[-1])


def print_table(args: argparse.Namespace, rows: List[Dict[str, Any]]) -> None:
    """Print the rows as Markdown."""
    print(", ".join(f"{key} {value}" for key, value in settings(args).items()) + "\n")
    print(
        "| way | forward | balancing | backward | turn | ratio | quartiles | peak |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for row in rows:
        parts = " | ".join(f"{row[f'{part}_ms']:.0f} ms" for part in (*PARTS, "turn"))
        low, high = row["ratio_quartiles"]
        peak = f"{row['peak_mib']:.0f} MiB" if "peak_mib" in row else ""
        print(
            f"| {row['name']} | {parts} | {row['ratio']:.2f} | {low:.2f}–{high:.2f} | "
            f"{peak} |"
        )


def plot(args: argparse.Namespace, rows: List[Dict[str, Any]]) -> None:
    """Draw the ratios as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(rows) + 1.2))
    names = [row["name"] for row in rows][::-1]
    ratios = [row["ratio"] for row in rows][::-1]
    colours = ["#0072B2" if name.startswith("ours") else "#999999" for name in names]
    axes.barh(names, ratios, color=colours)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlim(0, 1.02 * max(ratios))
    # In a column of their own, where neither the line nor a bar crosses them.
    for i, ratio in enumerate(ratios):
        place = axes.get_yaxis_transform()
        axes.text(1.01, i, f"{ratio:.2f}", transform=place, va="center")
    axes.set_xlabel("duration of a generator turn, ratio to no balancing")
    axes.set_title(f"{args.model}, {args.size} model, {args.device}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.plot, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
