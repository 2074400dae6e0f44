"""Refusals of a bad call, each with the name of what is wrong and the way out."""

import sys
from types import FrameType
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor


def check_losses(
    losses: Mapping[str, Any], weights: Optional[Mapping[str, Any]]
) -> None:
    """Raise ValueError or TypeError if the losses cannot be balanced with `weights`."""
    if not isinstance(losses, Mapping):
        raise TypeError(f"losses must be a dict of tensors, but is {type(losses)}")
    if not losses:
        raise ValueError("losses is empty: pass at least one loss")
    for name, loss in losses.items():
        if not isinstance(name, str):
            raise TypeError(f"a loss's name must be a string, but is {name!r}")
        if weights is not None and name not in weights:
            raise ValueError(
                f"loss {name!r} has no weight: weights names {list(weights)}; add "
                f"{name!r} to it, or leave the loss out of the call"
            )
        if isinstance(loss, Tensor):
            _check_loss(name, loss)
        elif type(loss) not in (int, float) or loss != 0:
            raise TypeError(f"loss {name!r} must be a tensor, but is {loss!r}")
        elif weights is None:
            raise TypeError(
                f"loss {name!r} is the number {loss!r}: leave it out of the call while "
                "it is off, or name all losses in `weights`, where a zero is off"
            )


def _check_loss(name: str, loss: Tensor) -> None:
    if loss.numel() != 1:
        raise ValueError(
            f"loss {name!r} must have one element, but has shape {tuple(loss.shape)}: "
            "take its mean or sum first"
        )
    if loss.is_complex():
        raise ValueError(
            f"loss {name!r} must be real, but is {loss.dtype}: take its abs() or its "
            "real part"
        )
    _check_kind(f"loss {name!r}", loss)


def trained(losses: Mapping[str, Any]) -> bool:
    """Tell whether a call is one in training: grad mode is on and a loss has a grad."""
    return torch.is_grad_enabled() and any(
        isinstance(loss, Tensor) and loss.requires_grad for loss in losses.values()
    )


def losses_on(
    losses: Mapping[str, Any], weights: Optional[Mapping[str, float]]
) -> Dict[str, Tensor]:
    """Return the losses that are not off.

    A loss that `weights` names and that is a constant zero, a number or a tensor, is
    off. To see that, a constant tensor is moved to the host.

    Raises:
        ValueError: a loss is a constant that is not zero, or has no weight that says
            that it may be off.
    """
    on: Dict[str, Tensor] = {}
    for name, loss in losses.items():
        if isinstance(loss, Tensor) and loss.requires_grad:
            on[name] = loss
        elif weights is None or bool(loss):
            raise ValueError(
                f"loss {name!r} has no gradient: it is a constant (leave it out of the "
                "call while it is off, or name all losses in `weights`, where a "
                "constant zero is off) or was detached (compute it without detach(), "
                "item() and torch.no_grad())"
            )
    return on


def check_weights(
    losses: Mapping[str, Tensor], weights: Optional[Mapping[str, float]]
) -> None:
    """Raise ValueError if all of these losses have the weight 0."""
    if weights is not None and not sum(weights[name] for name in losses) > 0:
        raise ValueError(
            f"the weights of the losses in this call, {list(losses)}, sum to zero: "
            "leave the call out while all of them are off"
        )


def check_inputs(
    input: Union[Tensor, Sequence[Tensor]], per_batch_item: bool, may_be_empty: bool
) -> Tuple[Tensor, ...]:
    """Return the input as a tuple of tensors, or raise ValueError or TypeError."""
    if not isinstance(input, (Tensor, Sequence)):
        raise TypeError(f"input must be a tensor or several, but is {type(input)}")
    inputs = (input,) if isinstance(input, Tensor) else tuple(input)
    if not inputs:
        raise ValueError("input is an empty sequence: pass the model's output")
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"input must hold tensors, but holds {type(tensor)}")
        _check_kind("input", tensor)
        if per_batch_item and tensor.dim() == 0:
            raise ValueError(
                "input has no batch axis (its shape is ()): pass the tensor with its "
                "batch axis, or set per_batch_item=False"
            )
        if tensor.numel() == 0 and not may_be_empty:
            raise ValueError(f"input is empty: its shape is {tuple(tensor.shape)}")
    if len({id(tensor) for tensor in inputs}) < len(inputs):
        raise ValueError("input holds the same tensor twice: pass it once")
    sizes = [len(tensor) for tensor in inputs] if per_batch_item else []
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the inputs have different batch sizes {sizes}: with per_batch_item all "
            "must have the same, or set per_batch_item=False"
        )
    return inputs


def check_surroundings() -> None:
    """Raise RuntimeError within torch.utils.checkpoint, which would run the call twice.

    Its second run, in the backward, would measure once more or find no graph.
    """
    if _in_checkpoint():
        raise RuntimeError(
            "the balancer was called inside of torch.utils.checkpoint, which would run "
            "the call twice: call it outside, on what the checkpointed part returns"
        )


def _in_checkpoint() -> bool:
    checkpoint = "torch.utils.checkpoint"
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is not None:
        hooks = top(False)
        return bool(hooks) and hooks[0].__module__ == checkpoint
    # PyTorch 2.6 does not tell its hooks. Its checkpoint is among the callers.
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != checkpoint:
        frame = frame.f_back
    return frame is not None


def check_requires_grad(inputs: Sequence[Tensor]) -> None:
    """Raise ValueError if a gradient cannot be taken for an input."""
    for i, tensor in enumerate(inputs):
        if not tensor.requires_grad:
            raise ValueError(
                f"input {i} does not require grad, so no loss has a gradient there: "
                "pass the model's output as it is, not detached"
            )


def _check_kind(what: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor is of a kind that gradients cannot be taken of."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise ValueError(
            f"{what} is inside of a torch.func transform (grad, vmap, ...), which the "
            "balancer's own gradients cannot be taken in: train with "
            "torch.autograd's backward()"
        )
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise ValueError(
            f"{what} is {kind}: pass a dense one, which its to_padded_tensor() or "
            "to_dense() returns, and compute the losses from that"
        )
    if tensor.is_floating_point() and tensor.dtype.itemsize < 2:
        raise ValueError(
            f"{what} is {tensor.dtype}, which holds no gradient: pass the tensor from "
            "before it was converted, in bfloat16 or wider"
        )
