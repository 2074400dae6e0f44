"""What is zero to rounding is zero, so that no result hangs on a number's last bit."""

import torch
from torch import Tensor

from balancer._gradients.precision import widened


def unit_of(tensor: Tensor, sums: int = 0) -> float:
    """Return the relative rounding of a tensor's elements, widened and summed up.

    Each element has been rounded once to the tensor's dtype, and each of the sums'
    additions rounds once more to that of `widened(tensor)`. Of a result it is the part
    that the sum of the absolute values can be off by.

    Args:
        tensor: as it was given, of any floating dtype.
        sums: the number of additions that follow.

    Example:
        >>> unit_of(torch.ones(3)) == 2.0**-24
        True
    """
    wide = widened(tensor.new_empty(0)).dtype
    return (torch.finfo(tensor.dtype).eps + sums * torch.finfo(wide).eps) / 2


def without_rounding(values: Tensor, bounds: Tensor) -> Tensor:
    """Return the values, zero if within their bounds, nan if those are infinite.

    Args:
        values: of any shape.
        bounds: what each may be off by, of the same shape.
    """
    return values * ~(values.abs() <= bounds)
