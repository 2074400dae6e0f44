"""Gradients that fit into float16 on their way, and come out right.

The gradient of a mean loss is small: that of an L1 loss over 16 × 24000 samples is
2.6e-6, near float16's smallest number, and zero a hundred times below. So a loss is
multiplied by a power of two before its gradient is taken, and the gradient divided by
it in float32. bfloat16 has float32's range and needs none of this.
"""

import math
from typing import Optional

from balancer._gradients.autograd import Gradients
from balancer._gradients.precision import float32_at_least

# The largest power of two that is a float16, as the gradient of a float16 loss must be.
HIGHEST = 15
# Scaled norms are brought to about 2^6: an element of 2^6 is far from both ends.
AIM = 6
# A power that overflows is lowered by this much, so a few tries reach 0.
STEP = 5


def power_for(norm: Optional[float]) -> int:
    """Return the power of two for a loss whose last norm is known, or is not."""
    if not norm or not math.isfinite(norm):
        return HIGHEST
    return max(0, min(HIGHEST, AIM - _exponent(norm)))


def power_of_held(total: float, scale: float) -> int:
    """Return the power of two for a scaled loss that is walked with others.

    All are walked with the one that suits the sum of their gradients, unless a loss's
    own scale, which comes as a gradient into its graph, would overflow.

    Args:
        total: the norm that the joint gradient is expected to have; 0 if unknown.
        scale: what the loss is multiplied by.
    """
    power = AIM - _exponent(total) if 0 < total < math.inf else 0
    if not 0 < scale < math.inf:
        return power
    return min(power, HIGHEST - _exponent(scale))


def _exponent(value: float) -> int:
    """Return the power of two above a positive number, the same on every machine."""
    return math.frexp(value)[1]


def divided(gradients: Gradients, power: int) -> Gradients:
    """Return the gradients over 2^power, in float32 at least."""
    return tuple(
        None if grad is None else float32_at_least(grad) * 2.0**-power
        for grad in gradients
    )
