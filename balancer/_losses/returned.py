"""The losses that a call returns.

With `input_only=True` they have the values of the scaled losses and their gradients
with respect to the input, and end there: no backward through them walks on into a
loss's own parameters. A float16 loss comes back in float32, since its scaled value and
the gradient that a trainer sends into it need not fit into float16.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from balancer._gradients.autograd import Gradients, explained, no_hooks
from balancer._gradients.float16 import divided, power_of_held
from balancer._gradients.graph import LossGraph, edge_of
from balancer._gradients.precision import float32_at_least

# What a float16 number is off by at most, as long as it is none of the smallest.
_FLOAT16_ROUNDING = 2.0**-11


def scaled_losses(
    losses: Mapping[str, Tensor], scales: Mapping[str, float]
) -> Dict[str, Tensor]:
    """Return s_i·l_i on the losses' whole graphs."""
    return {name: _scaled(loss, scales[name]) for name, loss in losses.items()}


def check_scales(losses: Mapping[str, Tensor], scales: Mapping[str, float]) -> None:
    """Refuse float16 losses whose scale is no float16, before they are scaled.

    It is the gradient that a backward sends into the loss's own graph.

    Raises:
        ValueError: a scale is too large or too small.
    """
    for name, loss in losses.items():
        if loss.dtype != torch.float16:
            continue
        scale = scales[name]
        as_float16 = torch.tensor(scale, dtype=torch.float16).item()
        if abs(as_float16 - scale) > _FLOAT16_ROUNDING * scale:
            raise ValueError(
                f"loss {name!r} is float16 and its scale {scale:.3g} is none, so with "
                "input_only=False its gradient would be lost: compute the loss in "
                "float32 (its mean of float() values), or set input_only=True"
            )


def measured_losses(
    losses: Mapping[str, Tensor],
    scales: Mapping[str, float],
    gradients: Mapping[str, Gradients],
    inputs: Sequence[Tensor],
) -> Dict[str, Tensor]:
    """Return surrogate losses that carry gradients which are known already.

    Loss i has the value s_i·l_i and the gradient s_i·g_i. All are outputs of one node,
    so a backward adds K tensors of the input's size and does nothing else.
    """
    returned = _MeasuredLosses.apply(  # type: ignore[no-untyped-call]
        [scales[name] for name in losses],
        [loss.detach() for loss in losses.values()],
        [gradients[name] for name in losses],
        list(inputs),
        *inputs,
    )
    return dict(zip(losses, returned))


def held_losses(
    graph: LossGraph, scales: Mapping[str, float], norms: Mapping[str, float]
) -> Dict[str, Tensor]:
    """Return surrogate losses whose gradients are taken when a backward asks for them.

    That backward walks all the loss graphs jointly, once, for the inputs alone.

    Args:
        graph: that of the losses.
        scales: name → s_i.
        norms: name → n_i as last measured.
    """
    powers = [0] * len(graph.losses)
    half = graph.runs_in_float16()
    if half:
        total = sum(scales[name] * norms.get(name, 0.0) for name in graph.losses)
        powers = [power_of_held(total, scales[name]) for name in graph.losses]
    returned = _HeldLosses.apply(  # type: ignore[no-untyped-call]
        _Held(graph, [scales[name] for name in graph.losses], powers, half),
        *graph.inputs,
    )
    return dict(zip(graph.losses, returned))


def _scaled(loss: Tensor, scale: float) -> Tensor:
    return (loss.float() if loss.dtype == torch.float16 else loss) * scale


class _MeasuredLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scales: Sequence[float],
        losses: List[Tensor],
        gradients: Sequence[Gradients],
        sources: Sequence[Tensor],
        *inputs: Tensor,
    ) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.scales, ctx.inputs = scales, sources
        ctx.save_for_backward(*(grad for grads in gradients for grad in grads))
        return tuple(map(_scaled, losses, scales))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[Tensor]) -> Any:
        count = len(ctx.inputs)
        totals: List[Optional[Tensor]] = [None] * count
        with torch.no_grad():
            for i, (outer, scale) in enumerate(zip(grad_outputs, ctx.scales)):
                if outer is None:
                    continue
                factor = float32_at_least(outer).reshape(()) * scale
                saved = ctx.saved_tensors[i * count : (i + 1) * count]
                for j, grad in enumerate(saved):
                    if grad is not None:
                        totals[j] = _add_scaled(totals[j], grad, factor)
        return (None, None, None, None, *_first_order(totals, ctx.inputs))


def _add_scaled(total: Optional[Tensor], grad: Tensor, factor: Tensor) -> Tensor:
    grad = float32_at_least(grad)
    factor = factor.to(grad.dtype)
    return grad * factor if total is None else total.addcmul_(grad, factor)


class _Held:
    """The losses of a call that holds, until a backward has taken their gradients."""

    def __init__(
        self, graph: LossGraph, scales: List[float], powers: List[int], half: bool
    ):
        self.names = list(graph.losses)
        self.losses = list(graph.losses.values())
        self.inputs = list(graph.inputs)
        self.edges = [edge_of(tensor) for tensor in self.inputs]
        self.scales, self.powers, self.half = scales, powers, half

    def values(self) -> Tuple[Tensor, ...]:
        """Return s_i·l_i, without a graph."""
        return tuple(map(_scaled, [loss.detach() for loss in self.losses], self.scales))

    def gradients(
        self, outers: Sequence[Optional[Tensor]], keep_graph: bool
    ) -> List[Optional[Tensor]]:
        """Return Σ_i outer_i·s_i·g_i for each input.

        One walk is jointly for all losses. Where gradients pass through float16 they
        are walked as numbers of middling size, by powers of two, and losses whose
        powers differ go one after the other.
        """
        unit = _unit(outers) if self.half else None
        walks: Dict[int, List[Tuple[Tensor, Tensor]]] = {}
        for loss, outer, scale, power in zip(
            self.losses, outers, self.scales, self.powers
        ):
            if outer is not None:
                seed = outer * (scale * 2.0**power)
                seed = seed if unit is None else seed * unit
                walks.setdefault(power, []).append((loss, seed.to(loss.dtype)))
        totals: List[Optional[Tensor]] = [None] * len(self.edges)
        while walks:
            power, asked = walks.popitem()
            losses, seeds = zip(*asked)
            what = f"the losses {self.names} cannot be walked"
            with no_hooks(self.inputs), explained(what):
                found: Gradients = torch.autograd.grad(
                    losses,
                    self.edges,
                    seeds,
                    retain_graph=keep_graph or bool(walks),
                    allow_unused=True,
                )
            if unit is not None:
                found = _divided_by(unit, divided(found, power))
            totals = list(map(_sum, totals, found))
        return totals


def _unit(outers: Sequence[Optional[Tensor]]) -> Tensor:
    """Return the power of two that brings what a backward sends in to about 1.

    On the device, so that nothing waits for it.
    """
    asked = [outer.abs().reshape(()) for outer in outers if outer is not None]
    largest = torch.stack([outer.float() for outer in asked]).max()
    mantissa, _ = torch.frexp(largest)
    usable = (largest > 0) & largest.isfinite()
    return torch.where(usable, mantissa / largest, torch.ones_like(largest))


def _divided_by(unit: Tensor, grads: Gradients) -> Gradients:
    return tuple(None if grad is None else grad / unit.to(grad.dtype) for grad in grads)


def _sum(total: Optional[Tensor], one: Optional[Tensor]) -> Optional[Tensor]:
    return one if total is None else total if one is None else total + one


class _HeldLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, held: _Held, *inputs: Tensor) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.held = held
        return held.values()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Optional[Tensor]) -> Any:
        if ctx.held is None:
            raise RuntimeError(
                "the graphs of the balanced losses were freed by their first backward: "
                "pass retain_graph=True to that one, or call the balancer again"
            )
        # Whether the backward that is running was given retain_graph=True.
        keep_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        with torch.no_grad():
            totals = ctx.held.gradients(grad_outputs, keep_graph)
        totals = _first_order(totals, ctx.held.inputs)
        if not keep_graph:
            ctx.held = None
        return (None, *totals)


def _first_order(
    totals: Sequence[Optional[Tensor]], inputs: Sequence[Tensor]
) -> Sequence[Optional[Tensor]]:
    """Return gradients that refuse to be differentiated again.

    A backward with create_graph=True is the one that may be. What it would miss is the
    dependence of the losses' gradients on the inputs.
    """
    known = [total for total in totals if total is not None]
    if not torch.is_grad_enabled() or not known:
        return totals
    apply: Any = _FirstOrderOnly.apply
    guarded = iter(apply(len(known), *known, *inputs))
    return [None if total is None else next(guarded) for total in totals]


class _FirstOrderOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        raise RuntimeError(
            "the gradient of balanced losses was to be differentiated once more "
            "(create_graph=True), but they carry it as a constant: make the balancer "
            "with input_only=False, whose losses keep their whole graphs"
        )
