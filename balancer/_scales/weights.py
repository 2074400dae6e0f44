"""Weights that change while training goes on, as for an adversarial loss's warm-up."""

import math
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Union

from balancer._scales.sections import read_number


@dataclass(frozen=True)
class Ramp:
    """A weight that goes from `start` to `end` in a straight line.

    Attributes:
        start: the weight up to the call number `from_step`, at least 0.
        end: the weight from the call number `to_step` on, at least 0.
        from_step: counted in calls that train, from 0.
        to_step: greater than `from_step`.

    Raises:
        ValueError: a number is out of its range.
        TypeError: one is no number.

    Example:
        >>> ramp = Ramp(start=0.0, end=3.0, from_step=1000, to_step=2000)
        >>> ramp.at(0), ramp.at(1500), ramp.at(9999)
        (0.0, 1.5, 3.0)
    """

    start: float
    end: float
    from_step: float
    to_step: float

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            object.__setattr__(self, name, _at_least_0(f"{name} of a ramp", value))
        if not self.from_step < self.to_step:
            raise ValueError(
                f"a ramp goes from_step {self.from_step} to_step {self.to_step}: the "
                "second must be greater"
            )

    def at(self, step: int) -> float:
        """Return the weight in the call with this number."""
        way = (step - self.from_step) / (self.to_step - self.from_step)
        way = min(max(way, 0.0), 1.0)
        return self.start + way * (self.end - self.start)


Weight = Union[float, Ramp]


def read_weights(weights: Mapping[str, Any]) -> Dict[str, Weight]:
    """Return the weights by name, each a plain float or a ramp.

    Args:
        weights: name → a number, a Ramp, or a mapping with a Ramp's four attributes.

    Raises:
        ValueError: a weight is negative or not finite, a ramp is incomplete or does not
            go forward, or the sum of all weights is zero at all times or overflows.
        TypeError: a weight is neither a number nor a ramp, or a name is no string.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must map names to numbers, but is {weights!r}")
    read = {_name(name): _read(name, weight) for name, weight in weights.items()}
    tops = [w.start + w.end if isinstance(w, Ramp) else w for w in read.values()]
    if not 0 < sum(tops) < math.inf:
        raise ValueError(
            f"weights sum to {sum(tops)}: give at least one of {list(weights)} a "
            "positive one, and none so large that their sum is infinite"
        )
    return read


def weights_at(weights: Mapping[str, Weight], step: int) -> Dict[str, float]:
    """Return the weights in the call with this number."""
    return {
        name: weight.at(step) if isinstance(weight, Ramp) else weight
        for name, weight in weights.items()
    }


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(
            f"weights has the name {name!r}, but a loss's name must be a string: put "
            "it in quotes"
        )
    return name


def _read(name: str, weight: Any) -> Weight:
    if isinstance(weight, Ramp):
        return weight
    if not isinstance(weight, Mapping):
        return _at_least_0(f"the weight of loss {name!r}", weight)
    keys = [field.name for field in fields(Ramp)]
    if set(weight) != set(keys):
        raise ValueError(
            f"the weight of loss {name!r} has the keys {list(weight)}, but one that "
            f"changes has {keys}"
        )
    try:
        return Ramp(**weight)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the weight of loss {name!r}: {error}") from None


def _at_least_0(what: str, value: Any) -> float:
    number = read_number(what, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} must be at least 0 and finite, but is {number}")
    return number
