"""ESPnet's GAN-codec task with `--balancer` and `--balancer_conf`."""

import argparse
from pathlib import Path
from typing import List

import torch
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.tasks.gan_codec import GANCodecTask
from espnet2.train.class_choices import ClassChoices

from balancer._norms.ranks import is_first_rank
from balancer.espnet.codec import BalancedGANCodecModel, balanced_names
from balancer.espnet.probe import codec_probe
from balancer.loss_balancer import Balancer
from balancer.reports.custom_scalars import write_layout

balancer_choices = ClassChoices(
    "balancer", classes=dict(grad_norm=Balancer), default=None, optional=True
)


class BalancedGANCodecTask(GANCodecTask):  # type: ignore[misc]
    """ESPnet's GAN-codec task; with `balancer: none` it is that task to the bit.

    The trainer is ESPnet's GANTrainer. The averages travel in checkpoint.pth with the
    generator's optimizer.
    """

    class_choices_list = [*GANCodecTask.class_choices_list, balancer_choices]

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
    def build_model(cls, args: argparse.Namespace) -> ESPnetGANCodecModel:
        """Return ESPnet's model, balanced if `--balancer` says so.

        Raises:
            ValueError: `--balancer_conf` has an unknown key or a bad value, or does
                not fit the codec.
        """
        model = super().build_model(args)
        balancer_class = balancer_choices.get_class(args.balancer)
        if balancer_class is None:
            return model
        section = dict(args.balancer_conf or {})
        probe = section.pop("probe", None)
        balancer = balancer_class.from_config(section)
        if probe is not None:
            balancer.probe = codec_probe(model.codec, probe)
        return BalancedGANCodecModel(model.codec, balancer)

    @classmethod
    def build_optimizers(
        cls, args: argparse.Namespace, model: ESPnetGANCodecModel
    ) -> List[torch.optim.Optimizer]:
        """Return ESPnet's optimizers; the averages are saved with the generator's.

        It is the last that ESPnet asks of a task with the model in hand, so what
        TensorBoard is to show of this model is written here too.
        """
        optimizers: List[torch.optim.Optimizer] = super().build_optimizers(args, model)
        if isinstance(model, BalancedGANCodecModel):
            model.balancer.checkpoint_with(optimizers[0])
            if uses_tensorboard(args):
                write_layout(
                    Path(args.output_dir) / "tensorboard" / "train",
                    balanced_names(model.codec),
                    model.balancer,
                )
        return optimizers


def uses_tensorboard(args: argparse.Namespace) -> bool:
    """Return whether this process is going to train and to write TensorBoard events."""
    trains = not args.collect_stats and not args.dry_run
    return bool(args.use_tensorboard and trains and is_first_rank())
