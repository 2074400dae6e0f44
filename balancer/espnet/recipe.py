"""A recipe's configuration, model and batches, as ESPnet makes them for a training."""

import argparse
import itertools
import logging
import random
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Dict, Iterator, List, NoReturn, Optional

import torch
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.tasks.gan_codec import codec_choices
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from espnet2.train.distributed_utils import DistributedOption
from torch import Tensor
from typeguard import TypeCheckError

from balancer._scales.sections import nearest
from balancer.espnet.task import BalancedGANCodecTask
from balancer.reports.files import plain_data_only, read_weights, read_yaml
from balancer.reports.recordings import DataFolder, find, load, longest_chunk, names

Batch = Dict[str, Tensor]

# What ESPnet adds to a configuration when it saves it. `config` names the file that the
# training was started with, which would be read over the rest.
SAVED_ONLY = ("required", "version", "distributed", "config")


def read_config(path: Path) -> argparse.Namespace:
    """Return the task's arguments, as a recipe or a training's config.yaml sets them.

    Raises:
        ValueError: the file is no YAML, or has a key that the task or the codec does
            not know.
    """
    settings = read_yaml(path)
    parser = BalancedGANCodecTask.get_parser()
    known = [action.dest for action in parser._actions]
    for key in settings:
        if key not in known and key not in SAVED_ONLY:
            raise ValueError(unknown(path, str(key), known))
    parser.set_defaults(
        **{key: value for key, value in settings.items() if key not in SAVED_ONLY}
    )
    parser.error = partial(refuse, path)
    args: argparse.Namespace = parser.parse_args([])
    if not isinstance(args.codec_conf, dict):
        raise ValueError(f"codec_conf of {path} is no section: {args.codec_conf!r}")
    codec = signature(codec_choices.get_class(args.codec).__init__)
    for key in args.codec_conf:
        if key not in codec.parameters:
            names = [name for name in codec.parameters if name != "self"]
            raise ValueError(unknown(path, f"codec_conf.{key}", names))
    return args


def refuse(path: Path, message: str) -> NoReturn:
    """Raise what argparse would print with all of ESPnet's options before it."""
    raise ValueError(f"{path}: {message}")


def unknown(path: Path, key: str, known: List[str]) -> str:
    """Return what there is to say of a key that nothing knows."""
    return f"{path} has the unknown key {key!r}: {nearest(key.split('.')[-1], known)}"


def build_model(
    args: argparse.Namespace, model_file: Optional[Path] = None
) -> ESPnetGANCodecModel:
    """Return the recipe's model, with its init_param loaded, or with a model's file.

    ESPnet's own balancer is left out, since raw gradients are measured. Files are read
    for their tensors alone.

    Raises:
        ValueError: a file cannot be read, holds more than tensors, or does not fit.
    """
    if args.codec_conf.get("use_loss_balancer"):
        logging.warning(
            "codec_conf.use_loss_balancer is left out: the losses are measured without "
            "a balancer"
        )
        args.codec_conf["use_loss_balancer"] = False
    try:
        model = BalancedGANCodecTask.build_model(args)
    except (TypeError, TypeCheckError) as error:
        raise ValueError(f"the configuration has a wrong value: {error}") from error
    model.to(dtype=getattr(torch, args.train_dtype), device=device_of(args))
    if model_file is not None:
        fit(model, read_weights(model_file), f"{model_file} is no {args.codec} model")
        return model
    for path in args.init_param:
        read_weights(Path(path.split(":")[0]))  # says what is wrong with the file
        try:
            with plain_data_only():
                load_pretrained_model(
                    path, model, args.ignore_init_mismatch, device_of(args)
                )
        except (RuntimeError, LookupError, AttributeError) as error:
            raise ValueError(
                f"init_param {path} does not fit the {args.codec} of the "
                f"configuration: {str(error).splitlines()[-1].strip()}"
            ) from error
    return model


def fit(model: ESPnetGANCodecModel, weights: Dict[str, Tensor], what: str) -> None:
    """Load weights.

    Raises:
        ValueError: they do not fit; its message begins with `what`.
    """
    own = model.state_dict()
    apart = [
        *(f"it lacks {name}" for name in own if name not in weights),
        *(f"{name} is not in the model" for name in weights if name not in own),
        *(
            f"{name} has the shape {list(weights[name].shape)}, not {list(to.shape)}"
            for name, to in own.items()
            if name in weights and to.shape != weights[name].shape
        ),
    ]
    if apart:
        more = f", and {len(apart) - 1} more do not fit" if len(apart) > 1 else ""
        raise ValueError(
            f"{what} as the configuration describes it: {apart[0]}{more}. Give the "
            "config.yaml that stands beside the model"
        )
    model.load_state_dict(weights)


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
    # ESPnet leaves out what is not longer than a chunk.
    least = longest_chunk(args.chunk_length) + 1
    found = list(names(find(recordings), recordings).items())
    random.Random(args.seed).shuffle(found)
    with DataFolder(folder, rate) as data:
        for name, path in found:
            wave = load(path, rate, min_samples=least)
            if wave is not None:
                data.add(name, wave)
            if len(data.paths) == most:
                break
        if not data.paths:
            raise ValueError(
                f"{recordings} has no usable recording: one of {least / rate:.2f} s at "
                f"least is needed (chunk_length {args.chunk_length}). The lines above "
                "say what is wrong with each"
            )
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
    for path, _, kind in args.train_data_path_and_name_and_type:
        refuse_commands(Path(path), kind)
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


def refuse_commands(scp: Path, kind: str) -> None:
    """Raise if a list of data names programs to run, which Kaldi's form can.

    Raises:
        ValueError: it does, or there is no such list.
    """
    if not scp.is_file():
        raise ValueError(
            f"the configuration's training data {scp} are not there (from this "
            "folder): give a folder of recordings with --wav_dir"
        )
    if kind != "kaldi_ark":
        return
    for line in scp.read_text(encoding="utf-8", errors="replace").splitlines():
        if "|" in line:
            raise ValueError(
                f"{scp} is refused: it names a program to run, {line!r}. Give a folder "
                "of recordings with --wav_dir"
            )
