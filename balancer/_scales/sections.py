"""Sections of a recipe's YAML as arguments, and numbers from wherever they come."""

import difflib
import inspect
from typing import Any, Callable, Dict, Mapping, Sequence


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
    return {key: _untexted(value) for key, value in section.items()}


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the part of a message that names what an unknown name may mean."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {list(known)}"


def read_number(what: str, value: Any) -> float:
    """Return a real number as a plain float: NumPy's, a tensor without axes, any.

    Raises:
        TypeError: it is no such number; the message begins with `what`.
    """
    text_or_truth = isinstance(value, (str, bytes, bool)) or "bool" in str(
        getattr(value, "dtype", "")
    )
    if not text_or_truth and getattr(value, "shape", ()) == ():
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise TypeError(f"{what} must be a number, but is {value!r}")


def read_count(what: str, value: Any) -> int:
    """Return a whole number as a plain int.

    Raises:
        TypeError: it is none; the message begins with `what`.
    """
    number = read_number(what, value)
    if not number.is_integer():
        raise TypeError(f"{what} must be a whole number, but is {value!r}")
    return int(number)


def _untexted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _untexted(item) for key, item in value.items()}
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
