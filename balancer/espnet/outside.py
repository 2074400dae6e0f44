"""What the losses outside the balance pull with, in an ESPnet training."""

import logging
import math
import sys
from typing import Any, Dict, Mapping

from torch import Tensor, nn

from balancer.loss_balancer import Balancer
from balancer.quantities.outside import KEY, OutsideRatio, norms_where_all_reach

# Nobody chooses to take the balanced losses' say by this factor, and to leave the
# others with this many times theirs.
WEAKENED, RULED = 100.0, 10.0


class OutsideWatch:
    """Warns in the first turn if the balanced losses are left without a say.

    A `total_norm` that is too small leaves a codec one code in use, and no loss tells.

    Args:
        net: a codec, TTS or singing module of ESPnet.
        every: `balancer_conf.outside_every`, the number of turns from one report of an
            OutsideRatio to the next; None for no report.

    Raises:
        ValueError: every is not a whole number of at least 1.
    """

    def __init__(self, net: nn.Module, every: Any = None):
        if every is not None and (type(every) is not int or every < 1):
            raise ValueError(
                "balancer_conf.outside_every must be a whole number of at least 1, the "
                f"turns from one measurement to the next, but is {every!r}"
            )
        self._reports = every is not None
        self._ratio = OutsideRatio(net.get_submodule("generator"), every or sys.maxsize)
        self._is_first = True

    def __call__(
        self, outside: Tensor, balanced: Mapping[str, Tensor], balancer: Balancer
    ) -> Dict[str, float]:
        """Return the stats to report, if any.

        Args:
            outside: the sum of the losses that are added to the balanced ones.
            balanced: what the balancer returned.
            balancer: that balancer.
        """
        warns, self._is_first = self._is_first and balancer.balance_grads, False
        if not (warns or self._reports):
            return {}
        total: Any = sum(balanced.values())
        found = self._ratio(outside, total)
        if warns and RULED < found[KEY] < math.inf:
            self._warn(outside, balanced, balancer)
        return found if self._reports else {}

    def _warn(
        self, outside: Tensor, balanced: Mapping[str, Tensor], balancer: Balancer
    ) -> None:
        """Warn, unless the outside rules beside the unbalanced losses too."""
        scales = {name: balancer.metrics[f"{name}_scale"] for name in balanced}
        plain = [loss / scales[name] for name, loss in balanced.items() if scales[name]]
        sums: Any = {
            **{"outside": outside, "balanced": sum(balanced.values())},
            "plain": sum(plain),
        }
        norms = norms_where_all_reach(sums, self._ratio.module)
        weakened = norms["plain"] / norms["balanced"]
        if WEAKENED < weakened < math.inf:
            logging.warning(
                "balancer_conf.total_norm is %g: in the parameters that both train, "
                "the balanced losses pull with 1/%.3g of what they would unbalanced, "
                "and the losses outside the balance pull %.3g times as hard as they. "
                "`python -m balancer.bin.inspect` prints a total_norm to start from",
                *(balancer.total_norm, weakened, norms["outside"] / norms["balanced"]),
            )
