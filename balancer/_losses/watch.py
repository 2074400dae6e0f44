"""A look at the shares, for the user who does not look."""

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from balancer._scales.rule import ScaleRule
from balancer._scales.state import BalancerState

# Measurements that a share's mean is taken over, and how far it may be off.
LONG = 100
FAR = 0.5
# An average that is not so many times epsilon is changed by it.
CLEAR = 10


@dataclass(frozen=True)
class ShareWatch:
    """Tells once of a share that has long missed its target by more than half.

    And once of a gradient so small that epsilon keeps it from its share. It is replaced
    whole, since a call that raises leaves no state changed.
    """

    told: bool = False
    told_of_epsilon: bool = False
    # Of share / target, and how many it is the mean of.
    means: Dict[str, Tuple[float, int]] = field(default_factory=dict)

    def after(
        self, stats: Mapping[str, float], state: BalancerState, rule: ScaleRule
    ) -> Tuple["ShareWatch", Optional[str]]:
        """Return the watch after a call, and what is to be said of it.

        Args:
            stats: those that the call returned.
            state: the one after the call.
            rule: the one that the call went by.
        """
        names = state.just_measured()
        options = rule.options
        if not names or not options.balance_grads or options.weighting is not None:
            return self, None
        small = [n for n in names if self._is_small(n, state, options.epsilon)]
        if small:
            message = self._epsilon_message(small[0], state, options.epsilon)
            new = ShareWatch(self.told, True, self.means)
            return new, None if self.told_of_epsilon else message
        return self._after_shares(names, stats, rule)

    @staticmethod
    def _is_small(name: str, state: BalancerState, epsilon: float) -> bool:
        average = state.averages.get(name)
        return average is not None and average < CLEAR * epsilon

    def _after_shares(
        self, names: List[str], stats: Mapping[str, float], rule: ScaleRule
    ) -> Tuple["ShareWatch", Optional[str]]:
        # The losses that have a gradient share all of it, so the targets are theirs. Of
        # one that is not finite, no share is known, not even that of a weight of 0.
        shares = {n: share for n in names if (share := stats[f"{n}_share"])}
        if not all(map(math.isfinite, shares.values())):
            return self, None
        weights = rule.weights_of(shares)
        whole = sum(weights.values())
        means, message = dict(self.means), None
        for name, weight in weights.items():
            target = weight / whole
            mean, count = means.get(name, (0.0, 0))
            count = min(count + 1, LONG)
            mean += (shares[name] / target - mean) / count
            means[name] = mean, count
            if message is None and count == LONG and abs(mean - 1) > FAR:
                message = self._message(name, mean * target, target, rule)
        if self.told:
            message = None
        return (
            ShareWatch(self.told or bool(message), self.told_of_epsilon, means),
            message,
        )

    @staticmethod
    def _message(name: str, share: float, target: float, rule: ScaleRule) -> str:
        remedy = (
            "Lower update_every, or set it to auto, or lower ema_decay"
            if rule.options.average == "adaptive"
            else "Set average to adaptive, which follows drifting norms, or lower "
            "ema_decay"
        )
        return (
            f"loss {name!r} has had {share:.3g} of the balanced gradient over the last "
            f"{LONG} measurements, but its weight asks for {target:.3g}: its norm "
            f"changes faster than its average follows. {remedy}. This is said once."
        )

    @staticmethod
    def _epsilon_message(name: str, state: BalancerState, epsilon: float) -> str:
        return (
            f"the gradient of loss {name!r} has the norm {state.averages[name]:.3g}, "
            f"and epsilon, {epsilon:.3g}, is added to it, so the loss gets less than "
            "its share and all losses together less than total_norm. Set epsilon lower "
            "(0 is allowed), or compute the loss as a larger number. This is said once."
        )
