"""Options of a recipe: its YAML file, and the command line over it."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

import yaml

from balancer.bin.command import ending
from balancer.reports.files import read_yaml

Choices = Mapping[str, Sequence[Any]]


def main_of(
    train: Callable[[argparse.Namespace], None],
    script: str,
    description: str,
    argv: Optional[Sequence[str]] = None,
    choices: Choices = {},
) -> None:
    """Read a script's options and train; what is wrong is said in a sentence.

    Args:
        script: the file; the options are in the .yaml beside it.
        argv: the command line without the script's name; None takes the process's.
        choices: the values that an option may have, where they are few.
    """
    path = Path(script)
    argv = sys.argv[1:] if argv is None else argv
    logging.basicConfig(format="%(message)s")
    with ending(path.name, debug="--debug" in argv):
        train(read_options(path.with_suffix(".yaml"), description, argv, choices))


def read_options(
    config: Path, description: str, argv: Sequence[str], choices: Choices = {}
) -> argparse.Namespace:
    """Return the YAML file's values by name, those on the command line before them.

    Each key of the file is an option, and its value is read as YAML. That of a section
    adds to the section: `--balancer '{ema_decay: 0.99}'` leaves the other keys alone.

    Args:
        config: the recipe's own file; `--config` names another one.
        argv: the command line without the script's name.
        choices: the values that an option may have, where they are few.

    Raises:
        ValueError: the file is no configuration.
    """
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--config", type=Path, default=config, help="the YAML file")
    found, rest = first.parse_known_args(argv)
    values = read_yaml(found.config)
    parser = argparse.ArgumentParser(description=description, parents=[first])
    for key, value in values.items():
        parser.add_argument(
            f"--{key}",
            type=_like(value),
            default=value,
            choices=choices.get(key),
            help=f"({value})",
        )
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    return parser.parse_args(rest)


def _like(default: Any) -> Callable[[str], Any]:
    def yaml_value(text: str) -> Any:
        if isinstance(default, str):
            return text  # YAML 1.1 reads no as false
        try:
            given = yaml.safe_load(text)
            if isinstance(default, dict):
                return {**default, **given}
            # YAML 1.1 reads 1e-4, which has no dot, as text.
            return float(given) if isinstance(default, float) else given
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(_not_like(default, text)) from error

    def checked(text: str) -> Any:
        value = yaml_value(text)
        if type(default) is int and type(value) is not int:
            raise argparse.ArgumentTypeError(_not_like(default, text))
        return value

    return checked


def _not_like(default: Any, text: str) -> str:
    kinds = {int: "a whole number", float: "a number", dict: "a section of YAML"}
    kind = kinds.get(type(default), "YAML")
    return f"{text!r} is not {kind}, as {default!r} is"
