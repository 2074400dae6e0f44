"""The options of a balancer as attributes that can be set, and its probe."""

import dataclasses
import threading
from types import MappingProxyType
from typing import Any, Dict, Generic, Mapping, Optional, TypeVar, Union

from balancer._scales.options import Options
from balancer._scales.state import BalancerState
from balancer._scales.weights import Weight
from balancer.quantities.probe import GradientProbe

T = TypeVar("T")


class _Option(Generic[T]):
    """An option of a balancer: read from its Options, and set by replacing them."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, balancer: Any, owner: Any = None) -> T:
        value: T = getattr(balancer._options, self._name)
        return value

    def __set__(self, balancer: "Settings", value: T) -> None:
        balancer._set({self._name: value})


class Settings:
    """What can be set of a balancer between calls; Balancer documents it.

    Whatever is set is checked as when the balancer is made, and what was averaged goes
    on under it.
    """

    _options: Options
    _state: BalancerState
    _probe: Optional[GradientProbe]
    _lock: threading.RLock

    total_norm = _Option[float]()
    ema_decay = _Option[float]()
    per_batch_item = _Option[bool]()
    epsilon = _Option[float]()
    balance_grads = _Option[bool]()
    monitor = _Option[bool]()
    exact_total_norm = _Option[bool]()
    weighting = _Option[Any]()
    average = _Option[str]()
    outliers = _Option[str]()
    input_only = _Option[bool]()
    update_every = _Option[Union[int, str]]()
    process_group = _Option[Any]()

    @property
    def weights(self) -> Optional[Mapping[str, Weight]]:
        """The weights by name, each a number or a Ramp; set them between calls."""
        weights = self._options.weights
        return None if weights is None else MappingProxyType(dict(weights))

    @weights.setter
    def weights(self, weights: Optional[Mapping[str, Any]]) -> None:
        self._set({"weights": weights})

    @property
    def probe(self) -> Optional[GradientProbe]:
        """The probe, or None; set it between calls."""
        return self._probe

    @probe.setter
    def probe(self, probe: Optional[GradientProbe]) -> None:
        if not isinstance(probe, (GradientProbe, type(None))):
            raise TypeError(f"probe must be a GradientProbe or None, but is {probe!r}")
        self._probe = probe
        self._arm_probe()

    def _set(self, changes: Dict[str, Any]) -> None:
        """Replace options; what was averaged goes on under the new ones."""
        with self._lock:
            options = dataclasses.replace(self._options, **changes)
            state = self._state.under(options)
            if "weights" in changes:  # a weighting's coefficients hold the old ones
                state = dataclasses.replace(state, coefficients={})
            self._options, self._state = options, state

    def _arm_probe(self) -> None:
        """Have the probe note the layer's calls before a call that it is due in."""
        if self._probe is not None:
            self._probe.armed = self._state.probe_is_due(self._probe.every)
