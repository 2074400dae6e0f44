"""What a balancer is made with: read, checked, and never changed in part."""

import math
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Union

from balancer._norms.adaptive import AdaptiveAverages
from balancer._norms.ema import NormAverages
from balancer._norms.interval import Interval
from balancer._norms.ranks import check_group
from balancer._scales.sections import nearest, read_count, read_number
from balancer._scales.weighting import Weighting, read_weighting
from balancer._scales.weights import Weight, read_weights, weights_at

# The averages by the name that `average` has.
AVERAGES = {"ema": NormAverages, "adaptive": AdaptiveAverages}
OUTLIERS = ("keep", "skip")


@dataclass(frozen=True)
class Options:
    """The options of a balancer, which documents them.

    They are replaced whole (dataclasses.replace), so none is ever unchecked. Numbers
    are read from whatever holds one (NumPy, a tensor without axes) and kept as plain
    ones, since a checkpoint takes no others.

    Raises:
        ValueError: an option is out of its range or contradicts another.
        TypeError: one is of another type.
    """

    total_norm: float
    ema_decay: float
    per_batch_item: bool
    epsilon: float
    weights: Optional[Mapping[str, Weight]]
    balance_grads: bool
    monitor: bool
    exact_total_norm: bool
    weighting: Optional[Weighting]
    average: str
    outliers: str
    input_only: bool
    update_every: Union[int, str]
    process_group: Any

    def __post_init__(self) -> None:
        if isinstance(self.total_norm, Mapping):  # AudioCraft's first argument
            raise TypeError(
                f"total_norm is {dict(self.total_norm)}: give weights by their name, "
                "Balancer(weights={...})"
            )
        read: Dict[str, Any] = {
            name: read_number(name, getattr(self, name))
            for name in ("total_norm", "ema_decay", "epsilon")
        }
        if not isinstance(self.update_every, str):
            read["update_every"] = read_count("update_every", self.update_every)
        read["weighting"] = read_weighting(self.weighting)
        if self.weights is not None:
            read["weights"] = read_weights(self.weights)
        for name, value in read.items():
            object.__setattr__(self, name, value)
        self._check_ranges()
        self._check_flags()
        check_group(self.process_group)

    def _check_ranges(self) -> None:
        if not 0 < self.total_norm < math.inf:
            raise ValueError(
                f"total_norm must be positive and finite, but is {self.total_norm}"
            )
        if not 0 <= self.ema_decay <= 1:
            raise ValueError(f"ema_decay must be in [0, 1], but is {self.ema_decay}")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(
                f"epsilon must be at least 0 and finite, but is {self.epsilon}"
            )
        Interval.read(self.update_every)

    def _check_flags(self) -> None:
        flags = ("per_batch_item", "balance_grads", "monitor", "exact_total_norm")
        for name in (*flags, "input_only"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(
                    f"{name} must be true or false, but is {getattr(self, name)!r}"
                )
        for name, known in (("average", list(AVERAGES)), ("outliers", OUTLIERS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} is {value!r}: {nearest(str(value), known)}")
        if self.balance_grads:
            return
        for name in ("exact_total_norm", "weighting"):
            value = getattr(self, name)
            if value:
                raise ValueError(
                    f"{name} is {getattr(value, 'text', value)!r} but balance_grads is "
                    "false, so scales are just the weights: leave one of the two at "
                    "its default"
                )

    @property
    def needs_pairs(self) -> bool:
        """Whether it matters how the gradients lie to one another."""
        return self.monitor or self.exact_total_norm or self.weighting is not None

    @property
    def weighting_text(self) -> str:
        """What tells this weighting from another; nothing for none."""
        return self.weighting.text if self.weighting else ""

    def averages(self) -> NormAverages:
        """Return averages that have seen nothing yet."""
        at_most, skips = self.interval.at_most, self.outliers == "skip"
        return AVERAGES[self.average](self.ema_decay, at_most, skips)

    @property
    def interval(self) -> Interval:
        """When the norms are measured."""
        return Interval.read(self.update_every)

    def weights_at(self, step: int) -> Optional[Dict[str, float]]:
        """Return the weights in the call with this number; None weighs all alike."""
        return None if self.weights is None else weights_at(self.weights, step)
