"""Norms and inner products of gradients, for each batch item."""

from typing import List, Sequence

import torch
from torch import Tensor

from balancer._gradients.autograd import Gradients
from balancer._gradients.precision import widened


def item_norms(gradients: Gradients, per_batch_item: bool) -> Tensor:
    """Return the L2 norms of one loss's gradients, over all inputs together.

    Returns:
        [B] with per_batch_item, else [1]; float64 on the gradients' device.
    """
    norms: List[Tensor] = [
        torch.linalg.vector_norm(_rows(grad, per_batch_item), dim=1)
        for grad in gradients
        if grad is not None
    ]
    if len(norms) == 1:
        return norms[0]
    joint: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return joint


def gram(all_gradients: Sequence[Gradients], per_batch_item: bool) -> Tensor:
    """Return the inner products of the K losses' gradients for each batch item.

    Returns:
        [B, K, K] with per_batch_item, else [1, K, K]; float64 on the gradients' device.
    """
    blocks: List[Tensor] = []
    for column in zip(*all_gradients):
        shape = next((grad for grad in column if grad is not None), None)
        if shape is None:  # an input that no loss depends on
            continue
        stack = torch.stack(
            [
                _rows(torch.zeros_like(shape) if grad is None else grad, per_batch_item)
                for grad in column
            ],
            dim=1,
        )
        blocks.append(stack @ stack.transpose(1, 2))
    return torch.stack(blocks).sum(0)


def _rows(grad: Tensor, per_batch_item: bool) -> Tensor:
    """Return a gradient as real float64 rows, one for each batch item or one in all.

    float64 since the squares of gradients of 1e-23 or 1e19 leave float32's range.
    """
    if grad.is_complex():
        grad = torch.view_as_real(grad.resolve_conj())
    if not grad.numel():  # a rank's empty batch has no items, whatever they are
        return widened(grad.new_zeros(0, 1))
    return widened(grad.reshape(len(grad) if per_batch_item else 1, -1))
