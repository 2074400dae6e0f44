"""One generator turn of a real ESPnet model, in the parts that a way may differ in."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
import yaml
from espnet2.tasks.gan_codec import codec_choices
from torch import Tensor, nn

from balancer.espnet.losses import losses_of
from balancer.espnet.turn import WatchedTurn

ROOT = Path(__file__).parents[1]
MODELS = ("soundstream", "encodec", "dac", "funcodec", "vits")
CHARACTERS = 15  # of text in a second of speech, about
Batch = Dict[str, Tensor]


@dataclass
class Outputs:
    """What the forward part leaves: the losses of y, and the one that is not of y."""

    losses: Dict[str, Tensor]
    y: Tensor
    other: Tensor


class Turn:
    """A model and a batch of random audio, for VITS with random text.

    Args:
        model: one of MODELS.
        size: mini (the recipe's), base or paper (tools/benchmark_sizes.yaml).
        device: where it runs.
        batch: recordings in the batch.
        length: samples in a recording, at 16 kHz.

    Raises:
        ValueError: the recordings are shorter than the segments that VITS takes.
    """

    def __init__(self, model: str, size: str, device: str, batch: int, length: int):
        torch.manual_seed(0)
        random.seed(0)
        audio = 0.1 * torch.randn(batch, length)
        self.net: nn.Module
        if model == "vits":
            self.net, self.batch = _vits(size, audio)
        else:
            conf = _conf("codec", model, size)
            conf["use_dual_decoder"] = False  # four losses of one output
            self.net = codec_choices.get_class(model)(**conf)
            self.batch = {"audio": audio}
        self.net.to(device).train()
        self.batch = {name: x.to(device) for name, x in self.batch.items()}
        self.device = device
        with torch.no_grad():  # codebooks are made from the first batch
            self.net(**self.batch)
        self._state = {k: v.clone() for k, v in self.net.state_dict().items()}

    def restart(self) -> None:
        """Put everything back to where the first turn began."""
        self.net.load_state_dict(self._state)
        self.clear()
        torch.manual_seed(1)
        random.seed(1)

    def clear(self) -> None:
        """Forget the gradients, as the trainer does after each turn."""
        self.net.zero_grad(set_to_none=True)

    def forward(self) -> Outputs:
        """Run the generator, the discriminator and the losses."""
        with WatchedTurn(self.net, losses_of(self.net)) as turn:
            loss = self.net(**self.batch)["loss"]
        losses, other = turn.split(loss)
        return Outputs(losses, turn.outputs[0], other.sum())

    def generator(self) -> List[Tensor]:
        """Return the generator's parameters."""
        return [p for p in self.net.generator.parameters() if p.requires_grad]

    def discriminator(self) -> List[Tensor]:
        """Return the discriminator's parameters."""
        return [p for p in self.net.discriminator.parameters() if p.requires_grad]

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def _vits(size: str, audio: Tensor) -> Tuple[nn.Module, Batch]:
    from espnet2.gan_tts.vits import VITS  # needs packages that no codec does

    conf = _conf("tts", "vits", size)
    conf["cache_generator_outputs"] = False  # for the other turn of a batch
    mel = conf["mel_loss_params"]
    hop, bins = mel["hop_length"], mel["n_fft"] // 2 + 1
    (batch, samples), fs = audio.shape, conf["sampling_rate"]
    frames, tokens = samples // hop, CHARACTERS * samples // fs
    shortest = conf["generator_params"]["segment_size"] * hop
    if samples < shortest:
        raise ValueError(
            f"--length {samples} is less than a segment of VITS: take {shortest} or "
            "more"
        )
    text = torch.randint(1, 30, (batch, tokens))
    of_batch = {
        **{"text": text, "feats": torch.rand(batch, frames, bins), "speech": audio},
        "text_lengths": torch.full((batch,), tokens),
        "feats_lengths": torch.full((batch,), frames),
        "speech_lengths": torch.full((batch,), samples),
    }
    return VITS(30, bins, **conf), of_batch


def _conf(kind: str, model: str, size: str) -> Dict[str, Any]:
    path = ROOT / "egs" / "mini" / f"{kind}1" / "conf" / f"train_{model}.yaml"
    conf: Dict[str, Any] = yaml.safe_load(path.read_text())[f"{kind}_conf"]
    if size != "mini":
        sizes = yaml.safe_load((ROOT / "tools" / "benchmark_sizes.yaml").read_text())
        _update(conf, sizes[size][model])
    return conf


def _update(conf: Dict[str, Any], changes: Dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            _update(conf[key], value)
        else:
            conf[key] = value
