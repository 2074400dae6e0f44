"""The gradient of each sample's own loss with respect to one layer's parameters."""

import contextlib
import warnings
from collections import OrderedDict
from typing import Any, Dict, Iterator, Tuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from balancer._gradients.precision import float32_at_least


def parameters_of(layer: nn.Module) -> Dict[str, Tensor]:
    """Return the parameters of a layer that are trained, detached, float32 at least."""
    return {
        name: float32_at_least(parameter.detach())
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad
    }


def per_sample_gradients(layer: nn.Module, x: Tensor, cotangent: Tensor) -> Tensor:
    """Return, for each sample, its output's gradient pulled back to the parameters.

    Args:
        layer: maps each sample of a batch by itself.
        x: [B, …], the layer's input.
        cotangent: [B, …], the gradient at the layer's output.

    Returns:
        [B, D]: row b is Jᵀ·cotangent[b], where J is the derivative of the output for
        x[b] by the D elements of the layer's parameters in the order of parameters().

    Raises:
        RuntimeError: the layer does not map each sample by itself.
    """
    if not len(x):
        return zero_gradients(layer, 0)
    parameters = parameters_of(layer)
    # Copies, since a layer may update its buffers as it runs.
    rest = {
        name: float32_at_least(tensor.detach().clone())
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers())
        if name not in parameters
    }

    def pull_back(x: Tensor, cotangent: Tensor) -> Tuple[Tensor, ...]:
        def output(parameters: Dict[str, Tensor]) -> Tensor:
            y: Tensor = functional_call(layer, {**rest, **parameters}, (x[None],))
            return y[0]

        pulled = vjp(output, parameters)[1](cotangent)
        return tuple(pulled[0].values())

    dtype = next(iter(parameters.values())).dtype
    x = x.to(dtype) if x.is_floating_point() else x
    with _bare(layer), torch.autocast(x.device.type, enabled=False):
        with warnings.catch_warnings():
            # weight_norm's backward runs sample by sample, and is small.
            warnings.filterwarnings("ignore", "There is a performance drop")
            try:
                rows = vmap(pull_back)(x, cotangent.to(dtype))
            except RuntimeError as error:
                raise RuntimeError(
                    f"no per-sample gradients of a {type(layer).__name__}: it must map "
                    "each sample by itself and without chance, as a convolution or a "
                    f"linear layer does; torch says: {error}"
                ) from error
    return torch.cat([row.flatten(1) for row in rows], dim=1)


def zero_gradients(layer: nn.Module, batch: int) -> Tensor:
    """Return what `per_sample_gradients` returns of a zero cotangent, [batch, D]."""
    parameters = list(parameters_of(layer).values())
    size = sum(parameter.numel() for parameter in parameters)
    return parameters[0].new_zeros(batch, size)


@contextlib.contextmanager
def _bare(layer: nn.Module) -> Iterator[None]:
    """Run a layer without anybody's forward and backward hooks, and leave no trace.

    Forward pre-hooks stay, since the old weight_norm works by one. The attribute that
    it sets is put back.
    """
    kept = [(module, dict(module.__dict__)) for module in layer.modules()]
    hooks = ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    empty: Dict[str, Any] = {name: OrderedDict() for name in hooks}
    for module, _ in kept:
        module.__dict__.update(empty)
    try:
        yield
    finally:
        for module, attributes in kept:
            module.__dict__.clear()
            module.__dict__.update(attributes)
