"""The gradients of the losses with respect to the inputs, by torch's autograd."""

import contextlib
from typing import Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

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
    "backward through the graph a second time": (
        "a part of its graph was freed by an earlier backward or by another balancer's "
        "call: balance all losses that share a graph in one call, before any backward, "
        "or keep the graph there (retain_graph=True; of a balancer input_only=False)"
    ),
    "modified by an inplace operation": (
        "a tensor in their graph was changed in place before a gradient was taken, as "
        "an optimizer's step changes the parameters. A call that holds its averages "
        "takes the gradients in the trainer's backward: run that before the "
        "discriminator's step, or set update_every=1"
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
        found = torch.autograd.grad(
            loss,
            inputs,
            None if factor == 1.0 else torch.full_like(loss, factor),
            retain_graph=keep_graph,
            allow_unused=True,
        )
    # An embedding may give a sparse gradient of a dense input.
    return tuple(
        grad.to_dense() if grad is not None and grad.layout != torch.strided else grad
        for grad in found
    )


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Say of an error in a walk whose it is, and the way out where one is known."""
    try:
        yield
    except torch.OutOfMemoryError:  # trainers look for this one
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        ways = [way_out for mark, way_out in _WAYS_OUT.items() if mark in said]
        raise RuntimeError(f"{what}: {(ways or [said])[0]}") from error


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
