"""The raw gradients of a recipe's losses, measured before it is trained."""

import argparse
import itertools
import logging
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Dict, Iterator, List

import yaml
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.gan_trainer import GANTrainer
from espnet2.train.reporter import Reporter
from torch import Tensor

from balancer.espnet.codec import BalancedGANCodecModel, balanced_names, lambdas_of
from balancer.espnet.task import BalancedGANCodecTask
from balancer.loss_balancer import Balancer
from balancer.options import nearest
from balancer.reports.inspection import Inspection
from balancer.reports.recordings import DataFolder, find, load, longest_chunk, names
from balancer.reports.runs import subjects_of
from balancer.schedule import weights_at

Batch = Dict[str, Tensor]

# What ESPnet adds to a configuration when it saves it as config.yaml.
SAVED_ONLY = ("required", "version", "distributed")


def read_config(path: Path) -> argparse.Namespace:
    """Return the task's arguments, as a recipe or a training's config.yaml sets them.

    Raises:
        ValueError: the file has a key that the task does not know.
    """
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is no configuration: it has no keys")
    parser = BalancedGANCodecTask.get_parser()
    known = [action.dest for action in parser._actions]
    for key in settings:
        if key not in known and key not in SAVED_ONLY:
            hint = nearest(str(key), known)
            raise ValueError(f"{path} has the unknown key {key!r}: {hint}")
    parser.set_defaults(**settings)
    args: argparse.Namespace = parser.parse_args([])
    return args


def build_model(args: argparse.Namespace) -> ESPnetGANCodecModel:
    """Return the recipe's model, with its init_param loaded.

    ESPnet's own balancer is left out, since raw gradients are measured.
    """
    if args.codec_conf.get("use_loss_balancer"):
        logging.warning(
            "codec_conf.use_loss_balancer is left out: the losses are measured without "
            "a balancer"
        )
        args.codec_conf["use_loss_balancer"] = False
    model = BalancedGANCodecTask.build_model(args)
    model.to(device_of(args))
    for path in args.init_param:
        load_pretrained_model(
            path, model, args.ignore_init_mismatch, map_location=device_of(args)
        )
    return model


def device_of(args: argparse.Namespace) -> str:
    """Return where ESPnet's trainer would train."""
    return "cuda" if args.ngpu > 0 else "cpu"


def use_recordings(
    args: argparse.Namespace, recordings: Path, folder: Path, rate: int, most: int
) -> None:
    """Make a folder of recordings the training data of `args`.

    Args:
        folder: where an ESPnet data folder is made.
        rate: of the codec, in Hz; other recordings are resampled.
        most: so many recordings at most are used, chosen at random.

    Raises:
        ValueError: no recording can be used.
    """
    found = list(names(find(recordings), recordings).items())
    random.Random(args.seed).shuffle(found)
    data = DataFolder(folder, rate)
    for name, path in found:
        # ESPnet leaves out what is not longer than a chunk.
        wave = load(path, rate, min_samples=longest_chunk(args.chunk_length) + 1)
        if wave is not None:
            data.add(name, wave)
        if len(data.paths) == most:
            break
    data.close()
    args.train_data_path_and_name_and_type = [
        (f"{folder}/wav.scp", "audio", "sound"),
    ]
    args.train_shape_file = [f"{folder}/utt2num_samples"]


def batches(args: argparse.Namespace) -> Iterator[Batch]:
    """Yield training batches as ESPnet's trainer gets them, without an end.

    Raises:
        ValueError: the configuration names no data, or the data give no batch.
    """
    if not args.train_data_path_and_name_and_type:
        raise ValueError(
            "the configuration names no training data: give a folder of recordings "
            "with --wav_dir"
        )
    args.num_workers = 0
    factory = BalancedGANCodecTask.build_iter_factory(
        args, DistributedOption(), mode="train"
    )
    for epoch in itertools.count(1):
        count = 0
        for count, (_, batch) in enumerate(factory.build_iter(epoch), 1):
            yield batch
        if not count:
            raise ValueError(
                f"the recordings do not fill one batch of batch_size {args.batch_size} "
                f"(iterator_type {args.iterator_type}, chunk_length "
                f"{args.chunk_length}): more or longer ones are needed"
            )


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
