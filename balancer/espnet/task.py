"""ESPnet's GAN tasks with `--balancer` and `--balancer_conf`; here that of codecs."""

import argparse
from abc import abstractmethod
from pathlib import Path
from typing import List, Mapping, Optional

import torch
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.tasks.abs_task import AbsTask
from espnet2.tasks.gan_codec import GANCodecTask
from espnet2.train.abs_gan_espnet_model import AbsGANESPnetModel
from espnet2.train.class_choices import ClassChoices

from balancer._norms.ranks import is_first_rank
from balancer.espnet.codec import BalancedGANCodecModel
from balancer.espnet.losses import read_losses
from balancer.espnet.model import BalancedGANModel, net_of
from balancer.espnet.outside import OutsideWatch
from balancer.espnet.probe import probe_of
from balancer.loss_balancer import Balancer
from balancer.reports.custom_scalars import write_layout

balancer_choices = ClassChoices(
    "balancer", classes=dict(grad_norm=Balancer), default=None, optional=True
)


class BalancedGANTask(AbsTask):  # type: ignore[misc]
    """One of ESPnet's GAN tasks; with `balancer: none` it is that task to the bit.

    It stands before ESPnet's own class among the bases of a task. The trainer is
    ESPnet's GANTrainer. The averages travel in checkpoint.pth with the generator's
    optimizer.
    """

    @classmethod
    def main_worker(cls, args: argparse.Namespace) -> None:
        """Train; what ESPnet starts once in each process.

        Raises:
            ValueError: several GPUs were given to one process.
        """
        if args.balancer is not None and args.ngpu > 1 and not args.distributed:
            raise ValueError(
                f"--ngpu {args.ngpu} in one process is torch.nn.DataParallel, whose "
                "threads would each measure a part of the batch: set "
                "--multiprocessing_distributed true, and each GPU gets a process "
                "(ESPnet's default is false)"
            )
        super().main_worker(args)

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> AbsGANESPnetModel:
        """Return ESPnet's model, balanced if `--balancer` says so.

        Raises:
            ValueError: `--balancer_conf` has an unknown key or a bad value, or does
                not fit the model.
        """
        model = super().build_model(args)
        balancer_class = balancer_choices.get_class(args.balancer)
        if balancer_class is None:
            return model
        section, net = dict(args.balancer_conf or {}), net_of(model)
        probe, losses = section.pop("probe", None), section.pop("losses", None)
        outside_every = section.pop("outside_every", None)
        balancer = balancer_class.from_config(section)
        if losses is not None:
            losses = read_losses(net, losses)
        if probe is not None:
            balancer.probe = probe_of(net, probe)
        balanced = cls.balanced(model, balancer, losses)
        balanced.outside = OutsideWatch(net, outside_every)
        return balanced

    @classmethod
    @abstractmethod
    def balanced(
        cls,
        model: AbsGANESPnetModel,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]],
    ) -> BalancedGANModel:
        """Return a balanced model of this task's from ESPnet's."""

    @classmethod
    def build_optimizers(
        cls, args: argparse.Namespace, model: AbsGANESPnetModel
    ) -> List[torch.optim.Optimizer]:
        """Return ESPnet's optimizers; the averages are saved with the generator's.

        It is the last that ESPnet asks of a task with the model in hand, so what
        TensorBoard is to show of this model is written here too.
        """
        optimizers: List[torch.optim.Optimizer] = super().build_optimizers(args, model)
        if isinstance(model, BalancedGANModel):
            model.balancer.checkpoint_with(optimizers[0])
            if uses_tensorboard(args):
                write_layout(
                    Path(args.output_dir) / "tensorboard" / "train",
                    list(model.losses),
                    model.balancer,
                )
        return optimizers


class BalancedGANCodecTask(BalancedGANTask, GANCodecTask):  # type: ignore[misc]
    """ESPnet's GAN-codec task; with `balancer: none` it is that task to the bit."""

    class_choices_list = [*GANCodecTask.class_choices_list, balancer_choices]

    @classmethod
    def balanced(
        cls,
        model: ESPnetGANCodecModel,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]],
    ) -> BalancedGANCodecModel:
        """Return a balanced model from ESPnet's."""
        return BalancedGANCodecModel(model.codec, balancer, losses)


def uses_tensorboard(args: argparse.Namespace) -> bool:
    """Return whether this process is going to train and to write TensorBoard events."""
    trains = not args.collect_stats and not args.dry_run
    return bool(args.use_tensorboard and trains and is_first_rank())
