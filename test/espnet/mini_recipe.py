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
# A waveform decoder of 64 samples a frame.
DECODER = {
    "channels": 16,
    "kernel_size": 7,
    "upsample_scales": [4, 4, 4],
    "upsample_kernel_sizes": [8, 8, 8],
    "resblock_kernel_sizes": [3],
    "resblock_dilations": [[1]],
}


def recipe(codec):
    """The mini recipe's configuration of a codec, cut down to two steps an epoch."""
    config = yaml.safe_load((MINI / "codec1/conf" / f"train_{codec}.yaml").read_text())
    config.update(SHORT, batch_size=2, chunk_length=4800, chunk_shift_ratio=1.0)
    return config


def tts_recipe():
    """The mini recipe's VITS, still smaller, with one step an epoch."""
    config = yaml.safe_load((MINI / "tts1/conf/train_vits.yaml").read_text())
    config.update(SHORT, valid_batch_size=2, num_iters_per_epoch=None)
    conf, stft = config["tts_conf"], {"n_fft": 256, "hop_length": 64}
    conf["generator_params"].update(
        {"hidden_channels": 8, "segment_size": 16, "text_encoder_blocks": 1},
        **{f"decoder_{key}": value for key, value in DECODER.items()},
        posterior_encoder_layers=1,
        flow_flows=1,
    )
    conf["discriminator_params"]["periods"] = [2]
    conf["discriminator_params"]["scale_discriminator_params"].update(
        channels=4, max_groups=4
    )
    conf["mel_loss_params"].update(stft, n_mels=10)
    config["feats_extract_conf"].update(stft)
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
