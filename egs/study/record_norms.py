#!/usr/bin/env python3
"""Train a codec of the mini recipe and record its losses' gradient norms, each step.

What tools/replay_averages.py replays was recorded so, from the recordings that
`fetch_speech.py --set librivox` fetches: 20 epochs, of FunCodec 10; of EnCodec 30, with
the smaller discriminator of conf/study.yaml. Those trainings went by adaptive averages
with η = 3, γ = 0.1 and the limit 0.7. Now it trains by plain averages, so what is
recorded does not hang on what is chosen by it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml
from study_plan import merged
from study_train import train

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "shared"))

from prepare_data import prepare  # noqa: E402

RECIPE = HERE.parent / "mini" / "codec1"
CHUNK = 3200  # samples
CHANGES = {
    "chunk_length": CHUNK,
    "chunk_shift_ratio": 0.5,
    "num_workers": 0,
    "num_cache_chunks": 256,
    "use_matplotlib": False,
    "use_tensorboard": False,
    "balancer_conf": {
        "average": "ema",
        "ema_decay": 0.99,
        "outliers": "keep",
        "update_every": 1,
        "probe": None,
    },
    "optim_conf": {"lr": 1e-3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("codec", choices=["soundstream", "encodec", "dac", "funcodec"])
    parser.add_argument("wav_dir", type=Path)
    parser.add_argument("output", type=Path, help="an .npz, an array [steps] each loss")
    parser.add_argument("--max_epoch", type=int, default=20, help="of 50 steps each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = yaml.safe_load((RECIPE / f"conf/train_{args.codec}.yaml").read_text())
    config = merged(config, {**CHANGES, "max_epoch": args.max_epoch})
    if args.codec == "encodec":
        study = yaml.safe_load((HERE / "conf/study.yaml").read_text())["codec_conf"]
        config["codec_conf"]["discriminator_params"] = study["discriminator_params"]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare(args.wav_dir, data, config["codec_conf"]["sampling_rate"], CHUNK)
        steps = train(config, data, Path(folder) / "exp").steps
    names = config["balancer_conf"]["weights"]
    norms = {name: [step[f"{name}_norm"] for step in steps] for name in names}
    np.savez_compressed(
        args.output, **{n: np.array(x, dtype=np.float32) for n, x in norms.items()}
    )


if __name__ == "__main__":
    main()
