"""Train a GAN codec as espnet2.bin.gan_codec_train does, with `--balancer`."""

import argparse
from typing import Optional, Sequence

from balancer.espnet.task import BalancedGANCodecTask


def get_parser() -> argparse.ArgumentParser:
    """Return the parser, which ESPnet's documentation tools look for."""
    parser: argparse.ArgumentParser = BalancedGANCodecTask.get_parser()
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run a training; see `python -m balancer.bin.gan_codec_train --help`."""
    BalancedGANCodecTask.main(cmd=cmd)


if __name__ == "__main__":
    main()
