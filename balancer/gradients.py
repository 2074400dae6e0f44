"""The gradients of the losses with respect to the input, and their norms."""

import contextlib
from typing import Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from balancer.precision import widened

# One gradient for each input; None where the loss does not depend on that input.
Gradients = Tuple[Optional[Tensor], ...]


# What torch says where a part of the graph cannot be walked as a measurement does.
_WAYS_OUT = {
    "donated buffers": (
        "a compiled module in its graph frees its buffers in its first backward, but "
        "a measurement takes a backward for each loss: set "
        "torch._functorch.config.donated_buffer = False before the module is compiled"
    ),
    "use_reentrant=False": (
        "a checkpointed module in its graph cannot give a gradient for `input` alone: "
        "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
    ),
}


def loss_gradients(
    name: str,
    loss: Tensor,
    inputs: Sequence[Tensor],
    keep_graph: bool,
    factor: float = 1.0,
) -> Gradients:
    """Return factor · ∂loss/∂input for each input, by one backward from the loss.

    Args:
        name: what an error calls the loss.
        loss: a tensor of one element.
        inputs: tensors that require grad. Nothing behind them is walked.
        keep_graph: whether the graph is still needed.
        factor: multiplied into the loss before its gradient is taken.

    Raises:
        RuntimeError: torch cannot walk the loss's graph this way.
    """
    with no_hooks(inputs), explained(f"loss {name!r} cannot be measured"):
        return torch.autograd.grad(
            loss,
            inputs,
            None if factor == 1.0 else torch.full_like(loss, factor),
            retain_graph=keep_graph,
            allow_unused=True,
        )


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Add the way out to those of torch's errors that have one."""
    try:
        yield
    except RuntimeError as error:
        for mark, way_out in _WAYS_OUT.items():
            if mark in str(error):
                raise RuntimeError(f"{what}: {way_out}") from error
        raise


@contextlib.contextmanager
def no_hooks(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Keep hooks and retain_grad() of the inputs for the trainer's own backward.

    torch runs them on whatever gradient is taken for a tensor, and here one is taken
    for each loss, before the one that the trainer means.
    """
    kept = []
    for tensor in inputs:
        hooks = {} if tensor._backward_hooks is None else tensor._backward_hooks
        kept.append((hooks, dict(hooks), tensor.grad if tensor.retains_grad else None))
        hooks.clear()
    try:
        yield
    finally:
        for tensor, (hooks, before, grad) in zip(inputs, kept):
            hooks.update(before)
            if tensor.retains_grad:
                tensor.grad = grad


def _rows(grad: Tensor, per_batch_item: bool) -> Tensor:
    """Return a gradient as real float64 rows, one for each batch item or one in all.

    float64 since the squares of gradients of 1e-23 or 1e19 leave float32's range.
    """
    if grad.is_complex():
        grad = torch.view_as_real(grad.resolve_conj())
    if not grad.numel():  # a rank's empty batch has no items, whatever they are
        return widened(grad.new_zeros(0, 1))
    return widened(grad.reshape(len(grad) if per_batch_item else 1, -1))


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
