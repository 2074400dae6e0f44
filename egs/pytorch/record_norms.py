#!/usr/bin/env python3
"""Train the recipe as its options say and record its losses' gradient norms, each step.

What tools/replay_averages.py replays of the plain loop was recorded so, from the
recordings that `fetch_speech.py --set librivox` fetches:
`python record_norms.py norms.npz --wav_dir DIR --epochs 22`. The training goes by plain
averages, so what is recorded does not hang on what is chosen by it.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from train import Segments, Training, read_options


def main(output, argv):
    """Train on one process; write an .npz with an array [steps] for each loss."""
    config = Path(__file__).with_name("train.yaml")
    options = read_options(config, __doc__, argv)
    options.balancer.update(
        average="ema", ema_decay=0.99, outliers="keep", update_every=1
    )
    torch.set_num_threads(1)
    training = Training(options, torch.device("cpu"))
    order = torch.Generator().manual_seed(options.seed)
    data = Segments(options.wav_dir, options.segment)
    loader = DataLoader(
        data, options.batch_size, shuffle=True, drop_last=True, generator=order
    )
    names = options.balancer["weights"]
    norms = {name: [] for name in names}
    for _ in range(options.epochs):
        for wave in loader:
            _, stats = training.turns(wave)
            for name in names:
                norms[name].append(stats[f"{name}_norm"])
    np.savez_compressed(output, **{n: np.float32(x) for n, x in norms.items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
