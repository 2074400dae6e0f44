"""The raw gradients of a recipe's losses, measured before it is trained."""

import argparse
from dataclasses import replace
from typing import Iterator

from espnet2.torch_utils.device_funcs import to_device
from espnet2.train.abs_gan_espnet_model import AbsGANESPnetModel
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.gan_trainer import GANTrainer
from espnet2.train.reporter import Reporter

from balancer.espnet.kinds import kind_of, task_of
from balancer.espnet.losses import lambdas_of, losses_of
from balancer.espnet.model import net_of
from balancer.espnet.recipe import Batch
from balancer.loss_balancer import Balancer
from balancer.reports.inspection import Inspection
from balancer.reports.inspector import LossInspector


def train(
    model: AbsGANESPnetModel, args: argparse.Namespace, batches: Iterator[Batch]
) -> None:
    """Train both nets as the recipe says, by ESPnet's trainer, until batches end."""
    args.use_tensorboard = False  # nothing is to be written anywhere
    optimizers = task_of(kind_of(args)).build_optimizers(args, model)
    with Reporter(epoch=1).observe("train") as reporter:
        GANTrainer.train_one_epoch(
            model=model,
            iterator=(((), batch) for batch in batches),
            optimizers=optimizers,
            schedulers=[None] * len(optimizers),
            scaler=None,
            reporter=reporter,
            summary_writer=None,
            options=GANTrainer.build_options(args),
            distributed_option=DistributedOption(),
        )


def measure(
    model: AbsGANESPnetModel, args: argparse.Namespace, batches: Iterator[Batch]
) -> Inspection:
    """Return what each generator turn's raw gradients are; nothing is trained.

    Args:
        model: the recipe's, on the device to measure on.
        args: the recipe's.
        batches: at least one.
    """
    net = net_of(model)
    losses = getattr(model, "losses", None) or losses_of(net)
    # A cache is for the two turns of one batch, and here is one turn a batch.
    vars(net).update(cache_generator_outputs=False, _cache=None)
    of_recipe = getattr(model, "balancer", Balancer())
    inspector = LossInspector(
        weights=of_recipe.weights,
        per_batch_item=of_recipe.per_batch_item,
        input_only=True,
    )
    task = task_of(kind_of(args))
    measured = task.balanced(model, inspector.balancer, losses).train()
    device = next(net.parameters()).device
    generator = net.get_submodule("generator")
    for batch in batches:
        _, turn, found, rest = measured.watched_turn(**to_device(batch, device))
        found = {name: found[name] for name in losses if name in found}
        inspector(found, turn.outputs, outside=rest, module=generator)
    return replace(inspector.inspection(), lambdas=lambdas_of(net, losses))
