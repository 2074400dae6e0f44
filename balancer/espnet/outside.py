"""What the losses outside the balance pull with, in an ESPnet training."""

import logging
from typing import Any, Dict, Mapping, Optional

from torch import Tensor, nn

from balancer.loss_balancer import Balancer
from balancer.quantities.outside import OutsideRatio, norms_where_all_reach

# Nobody chooses to take the balanced losses' say by this factor, and to leave the
# others with this many times theirs.
WEAKENED, RULED = 100.0, 10.0


class OutsideWatch:
    """Warns in the first turn if the balanced losses are left without a say.

    A `total_norm` that is too small leaves a codec one code in use, and no loss tells.

    Args:
        net: a codec, TTS or singing module of ESPnet.
        every: the number of turns from one measurement of an OutsideRatio to the next,
            None for no such stat.
    """

    def __init__(self, net: nn.Module, every: Optional[int] = None):
        self._generator = net.get_submodule("generator")
        self._ratio = every and OutsideRatio(self._generator, every)
        self._is_first = True

    def __call__(
        self,
        outside: Tensor,
        balanced: Mapping[str, Tensor],
        stats: Mapping[str, float],
        balancer: Balancer,
    ) -> Dict[str, float]:
        """Return the stats to report, if any.

        Args:
            outside: the sum of the losses that are added to the balanced ones.
            balanced, stats: what the balancer returned.
            balancer: that balancer.
        """
        if self._is_first and balancer.balance_grads:
            self._warn(outside, balanced, stats, balancer.total_norm)
        self._is_first = False
        total: Any = sum(balanced.values())
        return self._ratio(outside, total) if self._ratio else {}

    def _warn(
        self,
        outside: Tensor,
        balanced: Mapping[str, Tensor],
        stats: Mapping[str, float],
        total_norm: float,
    ) -> None:
        plain = [
            loss / stats[f"{name}_scale"]
            for name, loss in balanced.items()
            if stats[f"{name}_scale"]
        ]
        sums: Any = [outside, sum(balanced.values()), sum(plain)]
        norms = norms_where_all_reach(sums, self._generator) if plain else None
        if not norms or not norms[1]:
            return
        ruled, weakened = norms[0] / norms[1], norms[2] / norms[1]
        if ruled > RULED and weakened > WEAKENED:
            logging.warning(
                "balancer_conf.total_norm is %g: in the parameters that both train, "
                "the balanced losses pull with 1/%.3g of what they would unbalanced, "
                "and the losses outside the balance pull %.3g times as hard as they. "
                "`python -m balancer.bin.inspect` prints a total_norm to start from",
                *(total_norm, weakened, ruled),
            )
