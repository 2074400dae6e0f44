"""One training of the study: a small GAN codec in a plain loop, then its scores."""

import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np
import torch
from study_data import Batches, load
from study_score import score
from study_ways import WEIGHTS_LR, Way, gradients, make_way, norms
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

# What several recipes share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from small_codec import (  # noqa: E402
    Codec,
    Discriminator,
    discriminator_loss,
    generator_losses,
)
from small_codec.losses import N_FFTS, stft_loss  # noqa: E402

LOSSES = ["l1", "stft", "adv", "feat"]
CODEC = {"channels": 8, "strides": [2, 4, 4], "dim": 32, "codebooks": 4}
ENTRIES = 128
LR = 1e-3
BETAS = (0.5, 0.9)
# What a setting may change, and what it is where it does not.
SETTING: Dict[str, Any] = {
    "data": "en",
    "rate": 16000,  # Hz
    "segment": 4000,  # samples
    "batch": 8,
    "adversarial_from": 300,  # step
    "channels": 8,  # of the discriminator
    "discriminator_ffts": [512, 256],
    "loss_ffts": list(N_FFTS),
    "summed": False,  # losses over their elements, where others take means
}
MEASURED = 25  # every so many steps the losses' norms are noted


class Training:
    """Networks, optimizers, schedules and the way to weigh the losses.

    Args:
        config: `way`, `scaled`, `setting`, `steps` and `seed`, as study_plan has them.
        waves: recordings [T] to train on.
    """

    def __init__(self, config: Mapping[str, Any], waves: List[Tensor]):
        self.setting = {**SETTING, **config["setting"]}
        torch.manual_seed(config["seed"])
        self.codec = Codec(**CODEC, entries=ENTRIES)
        self.discriminator = Discriminator(
            self.setting["channels"], self.setting["discriminator_ffts"]
        )
        layer = self.codec.decoder[-1].parametrizations.weight.original1
        self.way: Way = make_way(config["way"], LOSSES, layer)
        groups: List[Dict[str, Any]] = [{"params": list(self.codec.parameters())}]
        if self.way.learned:
            groups.append({"params": self.way.learned, "lr": WEIGHTS_LR})
        self.optimizer_g = torch.optim.Adam(groups, LR, BETAS)
        self.optimizer_d = torch.optim.Adam(self.discriminator.parameters(), LR, BETAS)
        self.schedules = [
            CosineAnnealingLR(optimizer, config["steps"])
            for optimizer in (self.optimizer_g, self.optimizer_d)
        ]
        self.batches = Batches(
            waves, self.setting["segment"], self.setting["batch"], config["seed"]
        )
        self.factors = {**dict.fromkeys(LOSSES, 1.0), **config["scaled"]}

    def losses(self, wave: Tensor, decoded: Tensor, step: int) -> Dict[str, Tensor]:
        """Return the losses that are on in a step, as the recipe scales them."""
        ffts = self.setting["loss_ffts"]
        if step < self.setting["adversarial_from"]:
            found = {
                "l1": F.l1_loss(decoded, wave),
                "stft": stft_loss(decoded, wave, ffts),
            }
        else:
            found = generator_losses(self.discriminator, wave, decoded, ffts)
        if self.setting["summed"]:
            counts = elements(self.discriminator, wave, ffts)
            found = {name: counts[name] * loss for name, loss in found.items()}
        return found

    def turns(self, step: int, measure: bool) -> Dict[str, Dict[str, float]]:
        """Train both networks on a batch; return what the generator's losses did.

        Returns:
            name → {"loss", and if it is to be measured "norm" and "scale"}, of the
            losses as they are without `scaled`.
        """
        wave = next(self.batches)
        # A GAN trainer throws away what the generator's turn would bring there.
        self.discriminator.requires_grad_(False)
        decoded, commit = self.codec(wave)
        losses = self.losses(wave, decoded, step)
        notes = {name: {"loss": float(x.detach())} for name, x in losses.items()}
        if measure:
            for name, norm in norms(gradients(losses, decoded)).items():
                notes[name]["norm"] = norm
        losses = {name: self.factors[name] * loss for name, loss in losses.items()}
        total = self.way(losses, decoded) + commit
        if measure:
            for name in losses:
                scale = self.factors[name] * self.way.scales[name]
                notes[name]["scale"] = scale
        _step(self.optimizer_g, total)
        self.discriminator.requires_grad_(True)
        _step(self.optimizer_d, discriminator_loss(self.discriminator, wave, decoded))
        for schedule in self.schedules:
            schedule.step()
        return notes


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def elements(
    discriminator: nn.Module, wave: Tensor, ffts: Sequence[int]
) -> Dict[str, int]:
    """Return over how many elements each loss takes its mean."""
    judged = discriminator(wave)
    bins = [(n // 2 + 1) * (wave.shape[-1] // (n // 4) + 1) for n in ffts]
    return {
        "l1": wave.numel(),
        "stft": len(wave) * sum(bins),
        "adv": sum(logits.numel() for logits, _ in judged),
        "feat": len(wave) * sum(len(features) for _, features in judged),
    }


def train(
    config: Mapping[str, Any],
    folder: Path,
    model: Path,
    progress: Callable[[], None] = lambda: None,
) -> Dict[str, Any]:
    """Train and score; return the result, plain numbers by name.

    Args:
        config: an entry of the plan.
        folder: of recordings.
        model: where the codec goes, for scores that are thought of later.
        progress: called after each step.
    """
    torch.set_num_threads(1)
    start, steps = time.perf_counter(), config["steps"]
    rate = {**SETTING, **config["setting"]}["rate"]
    recordings = load(folder, rate)
    training = Training(config, recordings.train)
    notes: List[Dict[str, Dict[str, float]]] = []
    for step in range(steps):
        notes.append(training.turns(step, (step + 1) % min(MEASURED, steps // 5) == 0))
        progress()
    training.codec.eval()
    model.parent.mkdir(parents=True, exist_ok=True)
    torch.save(training.codec.state_dict(), model)
    return {
        "way": config["way"],
        "scores": score(training.codec, recordings.test, rate),
        "shares": shares(notes, training.setting["adversarial_from"]),
        "norms": mean_norms(notes, training.setting["adversarial_from"]),
        "losses": [mean_losses(part) for part in np.array_split(np.array(notes), 5)],
        "seconds": round(time.perf_counter() - start, 1),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


def load_codec(model: Path) -> nn.Module:
    """Return a codec that was trained before."""
    codec = Codec(**CODEC, entries=ENTRIES)
    codec.load_state_dict(torch.load(model, weights_only=True))
    return codec.eval()


def shares(notes: Sequence[Any], first: int) -> Dict[str, Dict[str, float]]:
    """Return each loss's share of the gradient at the output, early and late.

    Early is the first tenth of the steps with all losses, late the last.
    """
    notes = notes[first:]
    tenth = max(len(notes) // 10, min(MEASURED, len(notes)))
    found = {}
    for name, part in (("early", notes[:tenth]), ("late", notes[-tenth:])):
        measured = [one for one in part if "norm" in one["l1"]]
        pulls = {
            loss: float(np.mean([x[loss]["norm"] * x[loss]["scale"] for x in measured]))
            for loss in LOSSES
        }
        found[name] = {loss: pull / sum(pulls.values()) for loss, pull in pulls.items()}
    return found


def mean_norms(notes: Sequence[Any], first: int) -> Dict[str, float]:
    """Return the geometric mean of each loss's norm over the steps with all losses."""
    measured = [one for one in notes[first:] if "norm" in one["l1"]]
    return {
        loss: float(np.exp(np.mean([np.log(one[loss]["norm"]) for one in measured])))
        for loss in LOSSES
    }


def mean_losses(notes: Sequence[Any]) -> Dict[str, float]:
    """Return the mean of each loss over the steps that it is on in."""
    found: Dict[str, List[float]] = {}
    for one in notes:
        for name, note in one.items():
            found.setdefault(name, []).append(note["loss"])
    return {name: float(np.mean(values)) for name, values in found.items()}
