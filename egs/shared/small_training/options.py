"""Options of a recipe: its YAML file, and the command line over it."""

import argparse
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import yaml


def read_options(
    config: Path, description: str, argv: Optional[Sequence[str]] = None
) -> argparse.Namespace:
    """Return the YAML file's values by name, those on the command line before them.

    Each key of the file is an option, and its value is read as YAML. That of a section
    adds to the section: `--balancer '{ema_decay: 0.99}'` leaves the other keys alone.

    Args:
        config: the recipe's own file; `--config` names another one.
        argv: the command line without the script's name; None takes the process's.
    """
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--config", type=Path, default=config, help="the YAML file")
    found, rest = first.parse_known_args(argv)
    values = yaml.safe_load(found.config.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=description, parents=[first])
    for key, value in values.items():
        parser.add_argument(
            f"--{key}", type=_like(value), default=value, help=f"({value})"
        )
    return parser.parse_args(rest)


def _like(default: Any) -> Callable[[str], Any]:
    def yaml_value(text: str) -> Any:
        if isinstance(default, str):
            return text  # YAML 1.1 reads no as false
        given = yaml.safe_load(text)
        if isinstance(default, dict):
            return {**default, **given}
        # YAML 1.1 reads 1e-4, which has no dot, as text.
        return float(given) if isinstance(default, float) else given

    return yaml_value
