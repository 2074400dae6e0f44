"""The widest numbers that a device has."""

import torch
from torch import Tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float64; in float32 on Apple's MPS, which has no float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
