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
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from espnet2.train.abs_gan_espnet_model import AbsGANESPnetModel
from espnet2.train.distributed_utils import DistributedOption
from torch import Tensor
from typeguard import TypeCheckError

from balancer._scales.sections import nearest
from balancer.espnet.kinds import choices_of, conf_of, kind_in, kind_of, task_of
from balancer.reports.files import plain_data_only, read_weights, read_yaml
from balancer.reports.recordings import DataFolder, find, load, longest_chunk, names

Batch = Dict[str, Tensor]

# What ESPnet adds to a configuration when it saves it. `config` names the file that the
# training was started with, which would be read over the rest.
SAVED_ONLY = ("required", "version", "distributed", "config")


def read_config(path: Path) -> argparse.Namespace:
    """Return the task's arguments, as a recipe or a training's config.yaml sets them.

    Raises:
        ValueError: the file is no YAML, is for no GAN task, or has a key that the task
            or the model does not know.
    """
    settings = read_yaml(path)
    kind = kind_in(settings)
    parser = task_of(kind).get_parser()
    known = [action.dest for action in parser._actions]
    for key in settings:
        if key not in known and key not in SAVED_ONLY:
            raise ValueError(unknown(path, str(key), known))
    parser.set_defaults(
        **{key: value for key, value in settings.items() if key not in SAVED_ONLY}
    )
    parser.error = partial(refuse, path)
    args: argparse.Namespace = parser.parse_args([])
    conf, section = conf_of(args), f"{kind}_conf"
    if not isinstance(conf, dict):
        raise ValueError(f"{section} of {path} is no section: {conf!r}")
    model = signature(choices_of(kind).get_class(getattr(args, kind)).__init__)
    for key in conf:
        if key not in model.parameters:
            names = [name for name in model.parameters if name != "self"]
            raise ValueError(unknown(path, f"{section}.{key}", names))
    return args


def refuse(path: Path, message: str) -> NoReturn:
    """Raise what argparse would print with all of ESPnet's options before it."""
    raise ValueError(f"{path}: {message}")


def unknown(path: Path, key: str, known: List[str]) -> str:
    """Return what there is to say of a key that nothing knows."""
    return f"{path} has the unknown key {key!r}: {nearest(key.split('.')[-1], known)}"


def build_model(
    args: argparse.Namespace, model_file: Optional[Path] = None
) -> AbsGANESPnetModel:
    """Return the recipe's model, with its init_param loaded, or with a model's file.

    ESPnet's own balancer is left out, since raw gradients are measured. Files are read
    for their tensors alone.

    Raises:
        ValueError: a file cannot be read, holds more than tensors, or does not fit.
    """
    kind, conf = kind_of(args), conf_of(args)
    if conf.get("use_loss_balancer"):
        logging.warning(
            "codec_conf.use_loss_balancer is left out: the losses are measured without "
            "a balancer"
        )
        conf["use_loss_balancer"] = False
    try:
        model = task_of(kind).build_model(args)
    except (TypeError, TypeCheckError) as error:
        raise ValueError(f"the configuration has a wrong value: {error}") from error
    model.to(dtype=getattr(torch, args.train_dtype), device=device_of(args))
    if model_file is not None:
        name = getattr(args, kind)
        fit(model, read_weights(model_file), f"{model_file} is no {name} model")
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
                f"init_param {path} does not fit the {getattr(args, kind)} of the "
                f"configuration: {str(error).splitlines()[-1].strip()}"
            ) from error
    return model


def fit(model: AbsGANESPnetModel, weights: Dict[str, Tensor], what: str) -> None:
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
    args: argparse.Namespace,
    recordings: Path,
    folder: Path,
    model: AbsGANESPnetModel,
    most: int,
) -> None:
    """Make a folder of recordings the training data of `args`.

    Args:
        folder: where an ESPnet data folder is made.
        model: recordings of another rate than its are resampled.
        most: so many recordings at most are used, chosen at random.

    Raises:
        ValueError: no recording can be used, or recordings are not enough.
    """
    kind = kind_of(args)
    if kind != "codec":
        raise ValueError(
            f"recordings alone do not train a model of {kind}: leave --wav_dir out, "
            "and give the config.yaml of a training, which names its data"
        )
    rate = model.meta_info()["fs"]
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
            "the configuration names no training data: " + other_data(args)
        )
    for path, _, kind in args.train_data_path_and_name_and_type:
        refuse_commands(Path(path), kind, other_data(args))
    args.num_workers = 0
    if args.collect_stats:  # its shape files list the utterances, not their lengths
        args.batch_type = "unsorted"
    factory = task_of(kind_of(args)).build_iter_factory(
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


def other_data(args: argparse.Namespace) -> str:
    """Return what to do where the configuration's own data are of no use."""
    if kind_of(args) == "codec":
        return "give a folder of recordings with --wav_dir"
    return (
        "give the config.yaml of a training, or of the stage of ESPnet's recipe that "
        "collects statistics, from the folder that it ran in"
    )


def refuse_commands(scp: Path, kind: str, way_out: str) -> None:
    """Raise if a list of data names programs to run, which Kaldi's form can.

    Raises:
        ValueError: it does, or there is no such list.
    """
    if not scp.is_file():
        raise ValueError(
            f"the configuration's training data {scp} are not there (from this "
            f"folder): {way_out}"
        )
    if kind != "kaldi_ark":
        return
    for line in scp.read_text(encoding="utf-8", errors="replace").splitlines():
        if "|" in line:
            raise ValueError(
                f"{scp} is refused: it names a program to run, {line!r}. Otherwise: "
                f"{way_out}"
            )
