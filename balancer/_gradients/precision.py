"""Wider numbers than those that a tensor holds."""

import torch
from torch import Tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; in float32 on Apple's MPS, which has no float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def float32_at_least(tensor: Tensor) -> Tensor:
    """Return a tensor of half-precision numbers in float32, any other as it is."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
