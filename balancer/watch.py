"""A look at the shares, for the user who does not look."""

import math
import warnings
from typing import Dict, Mapping, Tuple

from balancer.scales import ScaleRule
from balancer.state import BalancerState

# Measurements that a share's mean is taken over, and how far it may be off.
LONG = 100
FAR = 0.5


class ShareWatch:
    """Tells once of a share that has long missed its target by more than half.

    Args:
        adaptive: whether the averages are adaptive already.
    """

    def __init__(self, adaptive: bool):
        self._adaptive = adaptive
        self._told = False
        # Of share / target, and how many it is the mean of.
        self._means: Dict[str, Tuple[float, int]] = {}

    def see(
        self, stats: Mapping[str, float], state: BalancerState, rule: ScaleRule
    ) -> None:
        """Take in a call's stats, if it measured, and warn if it is time to.

        Args:
            stats: those that the call returned.
            state: the one after the call.
            rule: the one that the call went by.
        """
        if not rule.balance_grads or rule.weighting is not None:
            return
        last = state.calls - 1
        names = [name for name, call in state.measured_at.items() if call == last]
        # The losses that have a gradient share all of it, so the targets are theirs. Of
        # one that is not finite, no share is known, not even that of a weight of 0.
        shares = {n: share for n in names if (share := stats[f"{n}_share"])}
        if not all(map(math.isfinite, shares.values())):
            return
        weights = rule.weights_of(shares)
        whole = sum(weights.values())
        for name, weight in weights.items():
            self._see_share(name, shares[name], weight / whole)

    def _see_share(self, name: str, share: float, target: float) -> None:
        mean, count = self._means.get(name, (0.0, 0))
        count = min(count + 1, LONG)
        mean += (share / target - mean) / count
        self._means[name] = mean, count
        if not self._told and count == LONG and abs(mean - 1) > FAR:
            self._told = True
            # Behind __call__ and the two frames of torch that keep compilers out.
            message = self._message(name, mean * target, target)
            warnings.warn(message, stacklevel=6)

    def _message(self, name: str, share: float, target: float) -> str:
        remedy = (
            "Lower update_every, or ema_decay"
            if self._adaptive
            else "Set adaptive_average to true, which follows drifting norms, or lower "
            "ema_decay"
        )
        return (
            f"loss {name!r} has had {share:.3g} of the balanced gradient over the last "
            f"{LONG} measurements, but its weight asks for {target:.3g}: its norm "
            f"changes faster than its average follows. {remedy}. This is said once."
        )
