"""Refusals of a bad call, each with the name of what is wrong and the way out."""

from typing import Mapping, Optional, Sequence, Tuple, Union

from torch import Tensor


def check_losses(
    losses: Mapping[str, Tensor], weights: Optional[Mapping[str, float]]
) -> None:
    """Raise ValueError or TypeError if the losses cannot be balanced with `weights`."""
    if not isinstance(losses, Mapping):
        raise TypeError(f"losses must be a dict of tensors, but is {type(losses)}")
    if not losses:
        raise ValueError("losses is empty: pass at least one loss")
    for name, loss in losses.items():
        if not isinstance(name, str):
            raise TypeError(f"a loss's name must be a string, but is {name!r}")
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss {name!r} must be a tensor, but is {type(loss)}")
        if loss.numel() != 1:
            raise ValueError(
                f"loss {name!r} must have one element, but has shape "
                f"{tuple(loss.shape)}: take its mean or sum first"
            )
        if loss.is_complex():
            raise ValueError(
                f"loss {name!r} must be real, but is {loss.dtype}: take its abs() or "
                "its real part"
            )
        if weights is not None and name not in weights:
            raise ValueError(
                f"loss {name!r} has no weight: weights names {list(weights)}; add "
                f"{name!r} to it, or leave the loss out of the call"
            )
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


def check_differentiable(
    losses: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> None:
    """Raise ValueError if a gradient cannot be taken of a loss or for an input."""
    for i, tensor in enumerate(inputs):
        if not tensor.requires_grad:
            raise ValueError(
                f"input {i} does not require grad, so no loss has a gradient there: "
                "pass the model's output as it is, not detached"
            )
    for name, loss in losses.items():
        if not loss.requires_grad:
            raise ValueError(
                f"loss {name!r} has no gradient: it is a constant (leave it out of the "
                "call while it is off) or was detached (compute it without detach(), "
                "item() and torch.no_grad())"
            )
