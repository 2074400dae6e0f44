"""One generator turn of a real ESPnet codec, in the parts that a way may differ in."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

import torch
import yaml
from espnet2.tasks.gan_codec import codec_choices
from torch import Tensor

from balancer.espnet.losses import losses_of
from balancer.espnet.turn import WatchedTurn

ROOT = Path(__file__).parents[1]


@dataclass
class Outputs:
    """What the forward part leaves: the losses of y, and the one that is not of y."""

    losses: Dict[str, Tensor]
    y: Tensor
    other: Tensor


class Turn:
    """A codec and a batch of random audio.

    Args:
        codec: a name in ESPnet's codec_choices.
        size: mini (the recipe's), base or paper (tools/benchmark_sizes.yaml).
        device: where it runs.
        batch: recordings in the batch.
        length: samples in a recording, at 16 kHz.
    """

    def __init__(self, codec: str, size: str, device: str, batch: int, length: int):
        torch.manual_seed(0)
        random.seed(0)
        self.codec = codec_choices.get_class(codec)(**_codec_conf(codec, size))
        self.codec.to(device).train()
        self.audio = 0.1 * torch.randn(batch, length, device=device)
        self.device = device
        with torch.no_grad():  # codebooks are made from the first batch
            self.codec(audio=self.audio)
        self._state = {k: v.clone() for k, v in self.codec.state_dict().items()}

    def restart(self) -> None:
        """Put everything back to where the first turn began."""
        self.codec.load_state_dict(self._state)
        self.clear()
        torch.manual_seed(1)
        random.seed(1)

    def clear(self) -> None:
        """Forget the gradients, as the trainer does after each turn."""
        self.codec.zero_grad(set_to_none=True)

    def forward(self) -> Outputs:
        """Run the generator, the discriminator and the losses."""
        with WatchedTurn(self.codec, losses_of(self.codec)) as turn:
            loss = self.codec(audio=self.audio)["loss"]
        losses, other = turn.split(loss)
        return Outputs(losses, turn.outputs[0], other.sum())

    def generator(self) -> List[Tensor]:
        """Return the generator's parameters."""
        return [p for p in self.codec.generator.parameters() if p.requires_grad]

    def discriminator(self) -> List[Tensor]:
        """Return the discriminator's parameters."""
        return [p for p in self.codec.discriminator.parameters() if p.requires_grad]

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def _codec_conf(codec: str, size: str) -> Dict[str, Any]:
    path = ROOT / "egs" / "mini" / "codec1" / "conf" / f"train_{codec}.yaml"
    conf: Dict[str, Any] = yaml.safe_load(path.read_text())["codec_conf"]
    conf["use_dual_decoder"] = False  # four losses of one output, in every codec
    if size != "mini":
        sizes = yaml.safe_load((ROOT / "tools" / "benchmark_sizes.yaml").read_text())
        _update(conf, sizes[size][codec])
    return conf


def _update(conf: Dict[str, Any], changes: Dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            _update(conf[key], value)
        else:
            conf[key] = value
