"""The mini recipe's configurations, cut down for tests, and what they leave."""

from pathlib import Path

import torch
import yaml

MINI = Path(__file__).parents[2] / "egs" / "mini"
CODECS = ["soundstream", "encodec", "dac", "funcodec"]
SHORT = {
    "max_epoch": 1,
    "num_workers": 0,
    "log_interval": 1,
    "use_matplotlib": False,
    "use_tensorboard": False,
}


TOKENS = ["<blank>", "<unk>", "<space>", *"abcdefghijklmnopqrstuvwxyz", "<sos/eos>"]


def recipe(codec):
    """The mini recipe's configuration of a codec, cut down to two steps an epoch."""
    config = yaml.safe_load((MINI / "codec1/conf" / f"train_{codec}.yaml").read_text())
    config.update(SHORT, batch_size=2, chunk_length=4800, chunk_shift_ratio=1.0)
    return config


def tts_recipe():
    """The mini recipe's configuration of a VITS, cut down to one step an epoch."""
    config = yaml.safe_load((MINI / "tts1/conf/train_vits.yaml").read_text())
    config.update(SHORT, batch_size=2, valid_batch_size=2, token_list=TOKENS)
    config["tts_conf"]["generator_params"]["segment_size"] = 8
    return config


def checkpoint(folder):
    return torch.load(folder / "checkpoint.pth", weights_only=False)


def same(a, b):
    """Whether two nested containers hold the same, tensors to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
