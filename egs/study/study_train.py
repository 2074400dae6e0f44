"""One training of the study: ESPnet's own, watched from the generator's optimizer."""

import argparse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
import yaml
from torch import Tensor

from balancer import Balancer
from balancer.espnet.codec import BalancedGANCodecModel
from balancer.espnet.task import BalancedGANCodecTask, balancer_choices


class DualOutside(Balancer):
    """Ours with the dual decoder's loss outside, where ESPnet's balancer leaves it."""

    def __call__(
        self, losses: Mapping[str, Tensor], input: Union[Tensor, Sequence[Tensor]]
    ) -> Tuple[Dict[str, Tensor], Dict[str, float]]:
        inside = {name: loss for name, loss in losses.items() if name != "mel_real"}
        balanced, stats = super().__call__(inside, input[:1])
        return {**balanced, "mel_real": losses["mel_real"]}, stats


balancer_choices.classes["dual_outside"] = DualOutside


class Watch:
    """What each step of the generator did, seen by its optimizer's hooks.

    Attributes:
        steps: for each step the norms of the gradient and of the step, and what the
            balancer, if there is one, said of it.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        self.steps: List[Dict[str, float]] = []
        self._model = model
        self._parameters = [p for g in optimizer.param_groups for p in g["params"]]
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    @torch.no_grad()
    def _before(self, *_: Any) -> None:
        self._old = [p.clone() for p in self._parameters]
        found = {"grad_norm": norm(p.grad for p in self._parameters)}
        if isinstance(self._model, BalancedGANCodecModel):
            found.update(self._model.balancer.metrics)
        self.steps.append(found)

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        moved = (p - old for p, old in zip(self._parameters, self._old))
        self.steps[-1]["step_size"] = norm(moved)


def norm(tensors: Iterable[Optional[Tensor]]) -> float:
    """Return the norm of the tensors that are there, taken together."""
    norms = torch.nn.utils.get_total_norm([x for x in tensors if x is not None])
    return float(norms)


class WatchedTask(BalancedGANCodecTask):
    """The task with a watch on its generator's optimizer."""

    watch: Watch

    @classmethod
    def build_optimizers(
        cls, args: argparse.Namespace, model: torch.nn.Module
    ) -> List[torch.optim.Optimizer]:
        optimizers: List[torch.optim.Optimizer] = super().build_optimizers(args, model)
        cls.watch = Watch(model, optimizers[0])
        return optimizers


def train(config: Mapping[str, Any], data: Path, folder: Path) -> Watch:
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
    WatchedTask.main(cmd=command)
    return WatchedTask.watch
