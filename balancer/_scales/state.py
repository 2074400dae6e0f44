"""What a balancer remembers from call to call."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from balancer._norms.ema import SMALLEST, NormAverages
from balancer._scales.options import Options


@dataclass(frozen=True)
class BalancerState:
    """The averages and what else the next call needs; replaced whole, never edited.

    Attributes:
        averages: the averages of the norms.
        combined: that of the norm of the balanced gradient, before it is made exact.
        calls: the number of calls that trained.
        norms: name → n_i as last measured.
        measured_at: name → the number of calls before the one that measured it last.
        monitored: the cosines and the norm of the balanced gradient, as last measured.
        coefficients: what a weighting made of the last measurement.
        probed: `{name}_{quantity}` → the probe's values, as last measured.
        probed_at: the number of calls before the one that probed last; None before.
        per_batch_item: what the norms were taken of.
        weighting: the text of the one that made the coefficients.
    """

    averages: NormAverages
    combined: NormAverages
    calls: int = 0
    norms: Dict[str, float] = field(default_factory=dict)
    measured_at: Dict[str, int] = field(default_factory=dict)
    monitored: Dict[str, float] = field(default_factory=dict)
    coefficients: Dict[str, float] = field(default_factory=dict)
    probed: Dict[str, float] = field(default_factory=dict)
    probed_at: Optional[int] = None
    per_batch_item: bool = True
    weighting: str = ""

    @classmethod
    def new(cls, options: Options) -> "BalancerState":
        """Return the state of a balancer that was never called."""
        empty = options.averages()
        return cls(
            empty,
            empty,
            per_batch_item=options.per_batch_item,
            weighting=options.weighting_text,
        )

    def under(self, options: Options) -> "BalancerState":
        """Return this state as it goes on under other options, or under the same.

        Averages of another kind or decay go on from what these know. What does not
        apply any more is forgotten: what was monitored or weighted if nothing is, and
        all norms if they were taken of something else.
        """
        if self.per_batch_item != options.per_batch_item:
            kept = BalancerState.new(options)
            return dataclasses.replace(
                kept, calls=self.calls, probed=self.probed, probed_at=self.probed_at
            )
        empty = options.averages()
        same_weighting = self.weighting == options.weighting_text
        return dataclasses.replace(
            self,
            averages=empty.loaded(self.averages.state_dict()),
            combined=(
                empty.loaded(self.combined.state_dict())
                if options.exact_total_norm
                else empty
            ),
            monitored=self.monitored if options.monitor else {},
            coefficients=self.coefficients if same_weighting else {},
            weighting=options.weighting_text,
        )

    def after_call(self) -> "BalancerState":
        """Return the state after a call that measured nothing."""
        return dataclasses.replace(self, calls=self.calls + 1)

    def after_measurement(
        self,
        averages: NormAverages,
        combined: NormAverages,
        norms: Mapping[str, float],
        monitored: Mapping[str, float],
        coefficients: Mapping[str, float],
    ) -> "BalancerState":
        """Return the state after a call that measured `norms`."""
        return dataclasses.replace(
            self,
            averages=averages,
            combined=combined,
            calls=self.calls + 1,
            norms={**self.norms, **norms},
            measured_at={**self.measured_at, **dict.fromkeys(norms, self.calls)},
            monitored=dict(monitored),
            coefficients=dict(coefficients),
        )

    def probe_is_due(self, every: int) -> bool:
        """Tell whether the last result is `every` calls old, or there is none."""
        return self.probed_at is None or self.calls - self.probed_at >= every

    def with_probed(self, values: Mapping[str, float]) -> "BalancerState":
        """Return the state in the call that probed `values`."""
        return dataclasses.replace(
            self, probed={**self.probed, **values}, probed_at=self.calls
        )

    def last_measured(self) -> List[str]:
        """Return the names of the losses in the last measurement."""
        last = max(self.measured_at.values(), default=0)
        return [name for name, call in self.measured_at.items() if call == last]

    def just_measured(self) -> List[str]:
        """Return the names of the losses that the last call measured."""
        last = self.calls - 1
        return [name for name, call in self.measured_at.items() if call == last]

    def latest(self, weights: Optional[Mapping[str, float]]) -> List[str]:
        """Return which of `weights` were in the last measurement.

        A checkpoint may have other losses than `weights`. They are left out, and if
        what is left weighs nothing, so is that.
        """
        names = self.last_measured()
        if weights is None:
            return names
        names = [name for name in names if name in weights]
        return names if any(weights[name] for name in names) else []

    def to_dict(self) -> Dict[str, Any]:
        """Return plain dicts, lists and numbers."""
        return {
            "averages": self.averages.state_dict(),
            "combined": self.combined.state_dict(),
            "calls": self.calls,
            "norms": dict(self.norms),
            "measured_at": dict(self.measured_at),
            "monitored": dict(self.monitored),
            "coefficients": dict(self.coefficients),
            "probed": dict(self.probed),
            "probed_at": self.probed_at,
            "per_batch_item": self.per_batch_item,
            "weighting": self.weighting,
            # For who loads it: torch.distributed.checkpoint, into a balancer that does
            # not know the losses yet, reads all parts but what has their names.
            "losses": len(self.measured_at),
        }

    def from_dict(self, saved: Mapping[str, Any]) -> "BalancerState":
        """Return the state that `to_dict` had turned into `saved`.

        Raises:
            ValueError: a part is missing, holds something else than numbers, or
                contradicts another.
        """
        if not isinstance(saved, Mapping):
            raise ValueError(
                "the balancer's saved state must be the dict that state_dict() "
                f"returned, but is {saved!r}"
            )
        # A state of before these two were saved goes on under the options that are.
        later = [key for key in ("per_batch_item", "weighting") if key not in saved]
        saved = {**saved, **{key: getattr(self, key) for key in later}}
        missing = [p for p in self.to_dict() if p not in saved and p != "losses"]
        if missing:
            raise ValueError(
                f"the balancer's saved state lacks {missing}; it has {list(saved)}: "
                "the checkpoint is damaged or of another program"
            )
        at = saved["probed_at"]
        state = BalancerState(
            self.averages.loaded(_numbers(saved, "averages", _average)),
            self.combined.loaded(_numbers(saved, "combined", _average)),
            _number(_count, saved["calls"], "calls"),
            _numbers(saved, "norms", float),
            _numbers(saved, "measured_at", _count),
            _numbers(saved, "monitored", float),
            _numbers(saved, "coefficients", float),
            _numbers(saved, "probed", float),
            None if at is None else _number(_count, at, "probed_at"),
            bool(saved["per_batch_item"]),
            str(saved["weighting"]),
        )
        for name, call in state.measured_at.items():
            if call >= state.calls or name not in state.norms:
                raise ValueError(
                    f"the balancer's saved state has loss {name!r} measured at call "
                    f"{call} of {state.calls}, and norms of {list(state.norms)}: the "
                    "checkpoint is damaged"
                )
        if state.probed_at is not None and state.probed_at >= state.calls:
            raise ValueError(
                f"the balancer's saved state has 'probed_at' {state.probed_at} of "
                f"{state.calls} calls: the checkpoint is damaged"
            )
        # A state of before the losses were counted has some if it has calls.
        least = max(len(state.measured_at), int(state.calls > 0))
        state._check_whole(_number(_count, saved.get("losses", least), "losses"))
        return state

    def _check_whole(self, losses: int) -> None:
        """Raise ValueError if parts of what was measured of `losses` are not there."""
        if losses != len(self.measured_at):
            raise ValueError(
                f"the balancer's saved state is of {self.calls} calls and {losses} "
                f"measured losses, but has those of {list(self.measured_at)}: load all "
                "of it, in torch.distributed.checkpoint by optimizer.state_dict() and "
                "checkpoint_with(optimizer), or as one json.dumps(state_dict())"
            )
        for name, norm in self.norms.items():
            if SMALLEST <= norm < math.inf and self.averages.get(name) is None:
                raise ValueError(
                    f"the balancer's saved state has the norm {norm} of loss {name!r}, "
                    "but no average of it: the checkpoint is damaged"
                )


def _numbers(
    saved: Mapping[str, Any], part: str, read: Callable[[Any], Any]
) -> Dict[str, Any]:
    if not isinstance(saved[part], Mapping):
        raise ValueError(
            f"{part!r} in the balancer's saved state must map names to numbers, but is "
            f"{saved[part]!r}"
        )
    return {
        str(name): _number(read, value, f"{part}.{name}")
        for name, value in saved[part].items()
    }


def _number(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return read(value)
    # RuntimeError is what torch raises for a tensor without a value.
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(
            f"{where!r} in the balancer's saved state is {value!r}, which is no "
            f"{'count' if read is _count else 'number'}"
        ) from None


def _count(value: Any) -> int:
    count = int(value)
    if count < 0 or count != value:
        raise ValueError
    return count


def _average(value: Any) -> List[float]:
    total, fix, *more = value
    return [float(total), float(fix), *map(float, more)]
