"""The raw gradients of a recipe's losses, measured before it is trained."""

import argparse
import sys
from statistics import fmean
from typing import Dict, Iterator, List

from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.gan_trainer import GANTrainer
from espnet2.train.reporter import Reporter

from balancer._scales.weights import weights_at
from balancer.espnet.codec import BalancedGANCodecModel, balanced_names, lambdas_of
from balancer.espnet.recipe import Batch
from balancer.espnet.task import BalancedGANCodecTask
from balancer.loss_balancer import Balancer
from balancer.reports.inspection import Inspection
from balancer.reports.stats import subjects_of


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
    balancer = Balancer(
        ema_decay=1.0,  # the mean over all batches
        per_batch_item=of_recipe.per_batch_item,
        balance_grads=False,
        monitor=True,
    )
    measured = BalancedGANCodecModel(codec, balancer).train()
    device = next(codec.parameters()).device
    stats: List[Dict[str, float]] = []
    for batch in batches:
        measured(audio=batch["audio"].to(device))
        stats.append(balancer.metrics)
    means = {key: fmean(one[key] for one in stats) for key in stats[0]}
    found = {subject: means[key] for key, subject in subjects_of(means, losses)}
    # Of a weight that changes the last counts.
    weights = weights_at(of_recipe.weights or dict.fromkeys(losses, 1.0), sys.maxsize)
    total = sum(weights.values())
    return Inspection(
        norms={name: found["norm", name] for name in losses},
        shares={name: stats[-1][f"{name}_ratio"] for name in losses},
        targets={name: weights[name] / total for name in losses},
        cosines={
            pair: value for (stat, pair), value in found.items() if stat == "cosine"
        },
        lambdas=lambdas_of(codec),
    )
