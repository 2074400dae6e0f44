"""How the cost of balancing grows: with the losses, the batch, the length, the ranks.

Small convolutional networks on random audio. Each loss has a critic of its own, so K
losses are K graphs, and a measuring call walks each once. A call that holds the
averages leaves the walk to the backward. The balancer's own work is all that a call
does beside walks.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from tqdm import tqdm

from balancer import Balancer
from balancer._norms import measurement

LOSSES, BATCH, LENGTH = 4, 4, 8000
HELD = 10**6  # an update_every at which all calls but the first hold the averages
SIZES: List[Tuple[str, Dict[str, int]]] = [
    *[("losses", {"losses": k}) for k in (2, 4, 8, 16, 32)],
    *[("batch", {"batch": b}) for b in (1, 4, 16)],
    *[("length", {"length": n}) for n in (2000, 8000, 32000)],
    *[("ranks", {"ranks": r}) for r in (1, 2, 4)],
    *[("ranks, held", {"ranks": r, "update_every": HELD}) for r in (1, 2, 4)],
]


class Clock:
    """Seconds spent in the walks and in the balancer's own work beside them."""

    def __init__(self) -> None:
        self.walks = 0
        self.seconds = {"walks": 0.0, "waiting": 0.0}

    def watch(self, key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed under `key`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.walks += key == "walks"
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[key] += time.perf_counter() - start

        return timed


def critic() -> nn.Module:
    """Return a small convolutional discriminator."""
    return nn.Sequential(
        nn.Conv1d(1, 64, 15, stride=2, padding=7),
        nn.LeakyReLU(0.1),
        nn.Conv1d(64, 128, 41, stride=4, padding=20, groups=4),
        nn.LeakyReLU(0.1),
        nn.Conv1d(128, 256, 5, padding=2),
        nn.LeakyReLU(0.1),
        nn.Conv1d(256, 1, 3, padding=1),
    )


def generator() -> nn.Module:
    """Return a small convolutional autoencoder."""
    return nn.Sequential(
        nn.Conv1d(1, 256, 15, stride=4, padding=7),
        nn.ELU(),
        *[nn.Sequential(nn.Conv1d(256, 256, 7, padding=3), nn.ELU()) for _ in range(4)],
        nn.ConvTranspose1d(256, 1, 16, stride=4, padding=6),
    )


def one_size(size: Dict[str, int], rounds: int) -> Dict[str, float]:
    """Return medians over the rounds for one size, on this rank."""
    torch.manual_seed(0)
    net = generator()
    critics = nn.ModuleList(critic() for _ in range(size.get("losses", LOSSES)))
    audio = torch.randn(size.get("batch", BATCH), 1, size.get("length", LENGTH))
    weights = {f"l{i}": 1.0 for i in range(len(critics))}
    balance = Balancer(weights=weights, update_every=size.get("update_every", 1))
    turns, own, walks = [], [], []
    for _ in range(rounds + 2):
        net.zero_grad()
        start = time.perf_counter()
        y = net(audio)
        losses = {f"l{i}": c(y).square().mean() for i, c in enumerate(critics)}
        with watched() as clock:
            before = time.perf_counter()
            new_losses, _ = balance(losses, y)
            call = time.perf_counter() - before
        sum(new_losses.values()).backward()
        # Ranks that wait for one another do not work.
        turns.append(time.perf_counter() - start - clock.seconds["waiting"])
        own.append(call - sum(clock.seconds.values()))
        walks.append(clock.walks)
    return {
        "turn_ms": 1e3 * statistics.median(turns[2:]),
        "own_ms": 1e3 * statistics.median(own[2:]),
        "walks": statistics.median(walks[2:]),
    }


class watched:
    """Time what a balancer calls, while the block runs."""

    def __enter__(self) -> Clock:
        clock = Clock()
        self._before = {
            n: getattr(measurement, n) for n in ("loss_gradients", "_norms")
        }
        walk, norms = self._before["loss_gradients"], self._before["_norms"]
        wait = clock.watch("waiting", _wait)
        measurement.loss_gradients = clock.watch("walks", walk)
        measurement._norms = lambda *args: (wait(), norms(*args))[1]
        return clock

    def __exit__(self, *_: Any) -> None:
        for name, function in self._before.items():
            setattr(measurement, name, function)


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def _rank(rank: int, size: Dict[str, int], rounds: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}.store", rank=rank, world_size=size["ranks"]
    )
    result = one_size(size, rounds)
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.destroy_process_group()


def measure_size(size: Dict[str, int], rounds: int) -> Dict[str, float]:
    """Return medians for one size, in processes of its own if it has ranks."""
    if "ranks" not in size:
        return one_size(size, rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        mp.spawn(_rank, (size, rounds, path), nprocs=size["ranks"])
        with open(path, encoding="utf-8") as file:
            result: Dict[str, float] = json.load(file)
    return result


def main(args: argparse.Namespace) -> None:
    """Print the table, and the rows as JSON if asked."""
    rows = []
    for kind, size in tqdm(SIZES, desc="sizes", leave=False, file=sys.stderr):
        figures = measure_size(size, args.rounds)
        grows, _, _ = kind.partition(",")
        rows.append({"grows": kind, "size": size[grows], **figures})
    print(
        "| grows | size | walks in the call | turn | own work | of the turn |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for row in rows:
        print(
            f"| {row['grows']} | {row['size']} | {row['walks']:.0f} | "
            f"{row['turn_ms']:.1f} ms | {row['own_ms']:.2f} ms | "
            f"{row['own_ms'] / row['turn_ms']:.1%} |"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
