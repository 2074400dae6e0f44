"""What a balancer may be made with, from Python or from a recipe's YAML section."""

import difflib
import inspect
import math
from typing import Any, Callable, Dict, Mapping, Optional, Sequence


def check_options(
    total_norm: float,
    ema_decay: float,
    epsilon: float,
    update_every: int,
) -> None:
    """Raise ValueError, naming the argument and its value, if one is out of range."""
    if not 0 < total_norm < math.inf:
        raise ValueError(f"total_norm must be positive and finite, but is {total_norm}")
    if not 0 <= ema_decay <= 1:
        raise ValueError(f"ema_decay must be in [0, 1], but is {ema_decay}")
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be at least 0 and finite, but is {epsilon}")
    if update_every < 1:
        raise ValueError(f"update_every must be at least 1, but is {update_every}")


def check_balanced(
    balance_grads: bool, exact_total_norm: bool, weighting: Optional[str]
) -> None:
    """Raise ValueError if an option that rules the scales has no scale to rule."""
    if balance_grads:
        return
    given = {"exact_total_norm": exact_total_norm, "weighting": weighting}
    for name, value in given.items():
        if value:
            raise ValueError(
                f"{name} is {value!r} but balance_grads is false, so scales are just "
                "the weights: leave one of the two at its default"
            )


def read_section(
    factory: Callable[..., Any], section: Mapping[str, Any], owner: str = "balancer"
) -> Dict[str, Any]:
    """Return a YAML section as keyword arguments of `factory`.

    A number that YAML 1.1 reads as text (`1e-12` has no dot) becomes the number it is.

    Args:
        factory: a class or function.
        section: what YAML read.
        owner: whose section an error says that it is.

    Raises:
        ValueError: a key is none of the factory's arguments.
    """
    known = list(inspect.signature(factory).parameters)
    for key in section:
        if key not in known:
            raise ValueError(
                f"unknown key {key!r} in the {owner}'s section: "
                f"{nearest(str(key), known)}"
            )
    return {key: _read_number(value) for key, value in section.items()}


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the part of a message that names what an unknown name may mean."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {list(known)}"


def _read_number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _read_number(item) for key, item in value.items()}
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
