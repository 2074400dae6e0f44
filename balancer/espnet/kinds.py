"""Which of ESPnet's GAN tasks a recipe is for."""

import argparse
import importlib
from typing import Any, Dict, Mapping, Type

from espnet2.train.class_choices import ClassChoices

from balancer.espnet.task import BalancedGANTask

# The option that names the model → the task. Those of speech and singing are imported
# when they are asked for, since they need packages that no codec does.
TASKS = {
    "codec": ("balancer.espnet.task", "BalancedGANCodecTask"),
    "tts": ("balancer.espnet.tts", "BalancedGANTTSTask"),
    "svs": ("balancer.espnet.svs", "BalancedGANSVSTask"),
}


def kind_in(settings: Mapping[str, Any]) -> str:
    """Return "codec", "tts" or "svs" from the keys of a recipe.

    Example:
        >>> kind_in({"tts": "vits", "tts_conf": {}, "balancer": "grad_norm"})
        'tts'

    Raises:
        ValueError: the recipe is for none of ESPnet's GAN tasks, or for several.
    """
    found = [kind for kind in TASKS if {kind, f"{kind}_conf"} & {*settings}]
    if len(found) != 1:
        raise ValueError(
            "the configuration must have one of the keys "
            f"{', '.join(TASKS)}, which say what is trained, but has "
            + (" and ".join(found) or "none")
        )
    return found[0]


def kind_of(args: argparse.Namespace) -> str:
    """Return "codec", "tts" or "svs" from a task's arguments."""
    return next(kind for kind in TASKS if hasattr(args, kind))


def task_of(kind: str) -> Type[BalancedGANTask]:
    """Return the task.

    Raises:
        ImportError: ESPnet's task needs a package that is not installed.
    """
    module, name = TASKS[kind]
    task: Type[BalancedGANTask] = getattr(importlib.import_module(module), name)
    return task


def conf_of(args: argparse.Namespace) -> Dict[str, Any]:
    """Return the model's own section, codec_conf, tts_conf or svs_conf."""
    conf: Dict[str, Any] = getattr(args, f"{kind_of(args)}_conf")
    return conf


def choices_of(kind: str) -> ClassChoices:
    """Return the models that there are of a kind."""
    return next(x for x in task_of(kind).class_choices_list if x.name == kind)
