#!/usr/bin/env python3
"""Measure what a step costs with the sum and with the balancer, a step of each in turn.

Whatever else the machine does meets all ways alike; the medians are compared.
Options are those of train.py; `--steps` is the number of rounds.
"""

import statistics
import time
from pathlib import Path

import torch
from tqdm import trange
from train import Batches, Segments, Training, main_of

from balancer.reports.tables import columns

WAYS = {
    "the sum": {"balancer": "none"},
    "balancer": {},
    "balancer, update_every 8": {"update_every": 8},
}


def build(options, changes, device):
    """Return a training in one of the ways."""
    options.balancer = changes.get("balancer", "grad_norm")
    every = changes.get("update_every", 1)
    options.balancer_conf = {**options.balancer_conf, "update_every": every}
    return Training(options, device)


def seconds(training, wave):
    """Return how long a step takes."""
    start = time.perf_counter()
    training.turns(wave)
    if wave.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(options):
    """Print the table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Segments(options.wav_dir, options.segment)
    batches = Batches(data, options.batch_size, options.seed)
    ways = {name: build(options, changes, device) for name, changes in WAYS.items()}
    times = {name: [] for name in ways}
    for step in trange(options.steps + 1):
        for name, training in ways.items():
            taken = seconds(training, batches[step].to(device))
            if step:  # the first step also warms up
                times[name].append(taken)
    middle = {name: statistics.median(x) for name, x in times.items()}
    lines = [["way", "ms a step", "beside the sum"]]
    for name, value in middle.items():
        lines.append([name, f"{1e3 * value:.0f}", f"{value / middle['the sum']:.3f}"])
    print(columns(lines))


if __name__ == "__main__":
    main_of(measure, str(Path(__file__).with_name("train.py")), __doc__)
