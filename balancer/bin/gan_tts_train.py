"""Train a speech synthesizer as espnet2.bin.gan_tts_train does, with `--balancer`."""

import argparse
from typing import Optional, Sequence

from balancer.espnet.tts import BalancedGANTTSTask


def get_parser() -> argparse.ArgumentParser:
    """Return the parser, which ESPnet's documentation tools look for."""
    parser: argparse.ArgumentParser = BalancedGANTTSTask.get_parser()
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run a training; see `python -m balancer.bin.gan_tts_train --help`."""
    BalancedGANTTSTask.main(cmd=cmd)


if __name__ == "__main__":
    main()
