"""The losses that are returned with `input_only=True`.

They have the values of the scaled losses and their gradients with respect to the input,
and end there: no backward through them walks on into a loss's own parameters.
"""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from balancer.gradients import Gradients, explained, no_hooks
from balancer.half import divided, power_over
from balancer.precision import float32_at_least


def measured_losses(
    losses: Sequence[Tensor],
    scales: Sequence[float],
    gradients: Sequence[Gradients],
    inputs: Sequence[Tensor],
) -> Tuple[Tensor, ...]:
    """Return surrogate losses that carry gradients which are known already.

    Loss i has the value s_i·l_i and the gradient s_i·g_i. All are outputs of one node,
    so a backward adds K tensors of the input's size and does nothing else.
    """
    return _MeasuredLosses.apply(  # type: ignore[no-untyped-call,no-any-return]
        scales, [loss.detach() for loss in losses], gradients, *inputs
    )


def held_losses(
    losses: Sequence[Tensor], scales: Sequence[float], inputs: Sequence[Tensor]
) -> Tuple[Tensor, ...]:
    """Return surrogate losses whose gradients are taken when a backward asks for them.

    That backward walks all the loss graphs jointly, once, for the inputs alone.
    """
    edges = [get_gradient_edge(tensor) for tensor in inputs]
    return _HeldLosses.apply(  # type: ignore[no-untyped-call,no-any-return]
        scales, list(losses), list(inputs), edges, *inputs
    )


def scaled_losses(
    losses: Iterable[Tensor], scales: Iterable[float]
) -> Tuple[Tensor, ...]:
    """Return s_i·l_i on the losses' whole graphs."""
    return tuple(loss * scale for loss, scale in zip(losses, scales))


class _MeasuredLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scales: Sequence[float],
        losses: List[Tensor],
        gradients: Sequence[Gradients],
        *inputs: Tensor,
    ) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.scales = scales
        ctx.save_for_backward(*(grad for grads in gradients for grad in grads))
        return tuple(loss * scale for loss, scale in zip(losses, scales))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Optional[Tensor]) -> Any:
        count = len(ctx.saved_tensors) // len(ctx.scales)
        totals: List[Optional[Tensor]] = [None] * count
        for i, (outer, scale) in enumerate(zip(grad_outputs, ctx.scales)):
            if outer is None:
                continue
            factor = float32_at_least(outer).reshape(()) * scale
            for j, grad in enumerate(ctx.saved_tensors[i * count : (i + 1) * count]):
                if grad is not None:
                    totals[j] = _add_scaled(totals[j], grad, factor)
        return (None, None, None, *totals)


def _add_scaled(total: Optional[Tensor], grad: Tensor, factor: Tensor) -> Tensor:
    grad = float32_at_least(grad)
    factor = factor.to(grad.dtype)
    return grad * factor if total is None else total.addcmul_(grad, factor)


class _HeldLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scales: Sequence[float],
        losses: List[Tensor],
        sources: List[Tensor],
        edges: Sequence[Any],
        *inputs: Tensor,
    ) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.scales, ctx.losses, ctx.inputs, ctx.edges = scales, losses, sources, edges
        return tuple(loss.detach() * scale for loss, scale in zip(losses, scales))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Optional[Tensor]) -> Any:
        if ctx.losses is None:
            raise RuntimeError(
                "the graphs of the balanced losses were freed by their first backward: "
                "pass retain_graph=True to that one, or call the balancer again"
            )
        # Whether the backward that is running was given retain_graph=True.
        keep_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        totals: List[Optional[Tensor]] = [None] * len(ctx.edges)
        walks = _plan_walks(ctx.losses, grad_outputs, ctx.scales)
        while walks:
            power, asked = walks.popitem()
            losses, outers = zip(*asked)
            with no_hooks(ctx.inputs), explained("the losses cannot be walked"):
                found = torch.autograd.grad(
                    losses,
                    ctx.edges,
                    outers,
                    retain_graph=keep_graph or bool(walks),
                    allow_unused=True,
                )
            totals = _sums(totals, divided(found, -power) if power else found)
        _check_some(totals, grad_outputs)
        if not keep_graph:
            ctx.losses = ctx.inputs = ctx.edges = None
        return (None, None, None, None, *totals)


def _check_some(
    totals: Sequence[Optional[Tensor]], outers: Sequence[Optional[Tensor]]
) -> None:
    """Raise ValueError if gradients were asked for and none came out.

    A call that measures nothing does not look at the graphs of known losses.
    """
    asked = any(outer is not None for outer in outers)
    if asked and all(total is None for total in totals):
        raise ValueError(
            "none of the balanced losses depends on `input`: pass the very tensor that "
            "they were computed from, not a view or a copy of it"
        )


def _plan_walks(
    losses: Sequence[Tensor],
    outers: Sequence[Optional[Tensor]],
    scales: Sequence[float],
) -> Dict[int, List[Tuple[Tensor, Tensor]]]:
    """Return which losses to walk jointly, and with which gradients.

    Returns:
        power of two → (loss, gradient) pairs, whose gradients lack that power: 0 for
        all but float16 losses whose scale is too large for float16.
    """
    walks: Dict[int, List[Tuple[Tensor, Tensor]]] = {}
    for loss, outer, scale in zip(losses, outers, scales):
        if outer is not None:
            power = power_over(scale) if loss.dtype == torch.float16 else 0
            walks.setdefault(power, []).append((loss, outer * (scale * 2.0**-power)))
    return walks


def _sums(
    totals: Sequence[Optional[Tensor]], found: Sequence[Optional[Tensor]]
) -> List[Optional[Tensor]]:
    return [
        one if total is None else total if one is None else total + one
        for total, one in zip(totals, found)
    ]
