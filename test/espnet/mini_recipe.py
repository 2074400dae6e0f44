"""The mini recipe's configurations, cut down for tests."""

from pathlib import Path

import yaml

CONF = Path(__file__).parents[2] / "egs" / "mini" / "codec1" / "conf"
CODECS = ["soundstream", "encodec", "dac", "funcodec"]


def recipe(codec):
    """The mini recipe's configuration of a codec, cut down to two steps an epoch."""
    config = yaml.safe_load((CONF / f"train_{codec}.yaml").read_text())
    config.update(
        max_epoch=1,
        batch_size=2,
        num_workers=0,
        log_interval=1,
        chunk_length=4800,
        chunk_shift_ratio=1.0,
        use_matplotlib=False,
        use_tensorboard=False,
    )
    return config
