#!/usr/bin/env python3
"""Train a codec of the mini recipe and record its losses' gradient norms, each step.

What tools/replay_averages.py replays of ESPnet's codecs was recorded so, from the
recordings that `fetch_speech.py --set librivox` fetches: 20 epochs, of FunCodec 10; of
EnCodec 30. Those trainings went by adaptive averages with η = 3, γ = 0.1 and the limit
0.7. Now it trains by plain averages, so what is recorded does not hang on what is
chosen by it.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
import torch
import yaml

from balancer.espnet.codec import BalancedGANCodecModel
from balancer.espnet.task import BalancedGANCodecTask

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
# EnCodec's had a smaller discriminator than the recipe's.
SMALLER = {
    "msstft_discriminator_params": {
        **{"filters": 4, "n_ffts": [512], "hop_lengths": [128], "win_lengths": [512]}
    }
}


class RecordedTask(BalancedGANCodecTask):
    """The task with what the balancer measured in each of the generator's steps."""

    steps: List[Dict[str, float]] = []

    @classmethod
    def build_optimizers(
        cls, args: argparse.Namespace, model: torch.nn.Module
    ) -> List[torch.optim.Optimizer]:
        optimizers: List[torch.optim.Optimizer] = super().build_optimizers(args, model)
        assert isinstance(model, BalancedGANCodecModel)
        balancer = model.balancer
        optimizers[0].register_step_pre_hook(
            lambda *_: cls.steps.append(balancer.metrics)
        )
        return optimizers


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a configuration with changes in it, section by section."""
    new = dict(config)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(new.get(key), Mapping):
            value = merged(new[key], value)
        new[key] = value
    return new


def train(config: Mapping[str, Any], data: Path, folder: Path) -> None:
    """Train as `python -m balancer.bin.gan_codec_train` does, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(dict(config)))
    command = ["--config", str(path), "--output_dir", str(folder), "--ngpu", "0"]
    for part in ("train", "valid"):
        sound = f"{data / part / 'wav.scp'},audio,sound"
        lengths = str(data / part / "utt2num_samples")
        command += [f"--{part}_data_path_and_name_and_type", sound]
        command += [f"--{part}_shape_file", lengths]
    RecordedTask.main(cmd=command)


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
        config["codec_conf"]["discriminator_params"] = SMALLER
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare(args.wav_dir, data, config["codec_conf"]["sampling_rate"], CHUNK)
        train(config, data, Path(folder) / "exp")
    names = config["balancer_conf"]["weights"]
    norms = {
        name: [step[f"{name}_norm"] for step in RecordedTask.steps] for name in names
    }
    np.savez_compressed(
        args.output, **{n: np.array(x, dtype=np.float32) for n, x in norms.items()}
    )


if __name__ == "__main__":
    main()
