"""Weights that change while training goes on, as for an adversarial loss's warm-up."""

import math
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Union

KEYS = ("start", "end", "from_step", "to_step")


@dataclass(frozen=True)
class Ramp:
    """A weight that goes from `start` to `end` in a straight line.

    Attributes:
        start: the weight up to the call number `from_step`.
        end: the weight from the call number `to_step` on.
        from_step: counted in calls that train, from 0.
        to_step: greater than `from_step`.

    Example:
        >>> ramp = Ramp(start=0.0, end=3.0, from_step=1000, to_step=2000)
        >>> ramp.at(0), ramp.at(1500), ramp.at(9999)
        (0.0, 1.5, 3.0)
    """

    start: float
    end: float
    from_step: float
    to_step: float

    def at(self, step: int) -> float:
        """Return the weight in the call with this number."""
        way = (step - self.from_step) / (self.to_step - self.from_step)
        way = min(max(way, 0.0), 1.0)
        return self.start + way * (self.end - self.start)


Weight = Union[float, Ramp]


def read_weights(weights: Mapping[str, Any]) -> Dict[str, Weight]:
    """Return the weights by name, each a number or a ramp.

    Raises:
        ValueError: a weight is negative or not finite, a ramp is incomplete or does not
            go forward, or all weights are zero at all times.
        TypeError: a weight is neither a number nor a mapping.
    """
    read = {name: _read(name, weight) for name, weight in weights.items()}
    tops = [w.start + w.end if isinstance(w, Ramp) else w for w in read.values()]
    if not sum(tops) > 0:
        raise ValueError(
            f"weights sum to zero: give at least one of {list(weights)} a positive one"
        )
    return read


def weights_at(weights: Mapping[str, Weight], step: int) -> Dict[str, float]:
    """Return the weights in the call with this number."""
    return {
        name: weight.at(step) if isinstance(weight, Ramp) else float(weight)
        for name, weight in weights.items()
    }


def _read(name: str, weight: Any) -> Weight:
    if not isinstance(weight, Mapping):
        return _number(f"the weight of loss {name!r}", weight)
    if sorted(weight) != sorted(KEYS):
        raise ValueError(
            f"the weight of loss {name!r} has the keys {sorted(weight)}, but one that "
            f"changes has {list(KEYS)}"
        )
    ramp = Ramp(**{key: _number(f"{key} of {name!r}", weight[key]) for key in KEYS})
    if not ramp.from_step < ramp.to_step:
        raise ValueError(
            f"the weight of loss {name!r} changes from_step {ramp.from_step} to_step "
            f"{ramp.to_step}: the second must be greater"
        )
    return ramp


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number, but is {value!r}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} must be at least 0 and finite, but is {value}")
    return value
