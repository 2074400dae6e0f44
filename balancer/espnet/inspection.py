"""The raw gradients of a recipe's losses, measured before it is trained."""

import argparse
from dataclasses import replace
from typing import Iterator

from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.gan_trainer import GANTrainer
from espnet2.train.reporter import Reporter

from balancer.espnet.codec import BalancedGANCodecModel, balanced_names, lambdas_of
from balancer.espnet.recipe import Batch
from balancer.espnet.task import BalancedGANCodecTask
from balancer.loss_balancer import Balancer
from balancer.reports.inspection import Inspection, LossInspector


def train(
    model: ESPnetGANCodecModel, args: argparse.Namespace, batches: Iterator[Batch]
) -> None:
    """Train both nets as the recipe says, by ESPnet's trainer, until batches end."""
    args.use_tensorboard = False  # nothing is to be written anywhere
    optimizers = BalancedGANCodecTask.build_optimizers(args, model)
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


def measure(model: ESPnetGANCodecModel, batches: Iterator[Batch]) -> Inspection:
    """Return what each generator turn's raw gradients are; nothing is trained.

    Args:
        model: the recipe's, on the device to measure on.
        batches: at least one.
    """
    codec, losses = model.codec, balanced_names(model.codec)
    # A cache is for the two turns of one batch, and here is one turn a batch.
    codec.cache_generator_outputs, codec._cache = False, None
    of_recipe = getattr(model, "balancer", Balancer())
    inspector = LossInspector(
        weights=of_recipe.weights,
        per_batch_item=of_recipe.per_batch_item,
        input_only=True,
    )
    measured = BalancedGANCodecModel(codec, inspector.balancer).train()
    one = next(codec.parameters())
    for batch in batches:
        measured(audio=batch["audio"].to(one))
        inspector.take(losses, inspector.balancer.metrics)
    return replace(inspector.inspection(), lambdas=lambdas_of(codec))
