#!/usr/bin/env python3
"""Show what the raw gradients of DAC's losses are, times DAC's factors.

Options are those of train.py. It trains with the sum for `--steps` from the checkpoint
in out_dir, or from the beginning if there is none, and saves nothing.
"""

from pathlib import Path

import torch
from tqdm import trange
from train import BALANCED, Batches, Segments, Training, main_of

from balancer.reports import LossInspector


class Inspected(Training):
    """Shows each sum to an inspector."""

    def total(self, losses, audio):
        """Inspect the losses, and add them up."""
        scaled = {name: self.lambdas[name] * loss for name, loss in losses.items()}
        balanced = {name: scaled.pop(name) for name in BALANCED}
        self.inspector(balanced, audio, sum(scaled.values()), self.generator)
        return super().total(losses, audio)


def inspect(options):
    """Print the tables."""
    options.balancer = "none"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Segments(options.wav_dir, options.segment)
    batches = Batches(data, options.batch_size, options.seed)
    training = Inspected(options, device)
    training.inspector = LossInspector(weights=options.balancer_conf["weights"])
    done = training.resume(Path(options.out_dir) / "checkpoint.pt", device)
    for step in trange(options.steps, disable=None):
        training.turns(batches[done + step].to(device))
    print(training.inspector.inspection())


if __name__ == "__main__":
    main_of(inspect, str(Path(__file__).with_name("train.py")), __doc__)
