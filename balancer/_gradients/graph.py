"""The graphs of a call's losses, walked once and asked for everything about them."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

Edge = Tuple[Any, int]

# The node of a conversion: no other brings float16 into a graph of float32 numbers.
_CONVERSION = "ToCopyBackward0"


@dataclass
class _Reach:
    """What a walk back from a loss met, up to the inputs."""

    input: bool = False
    nodes: Set[Any] = field(default_factory=set)
    around: List[Any] = field(default_factory=list)  # nodes that produce the inputs


class LossGraph:
    """The graphs of the losses in one call, from each loss back to the inputs.

    It is made anew in each call, since any call may bring a loss of another tensor or
    one that goes around the input. That is one visit of each loss's nodes and of those
    that produce the inputs: 0.5 to 1 ms in full-size codecs.

    Args:
        losses: name → tensor of one element that requires grad.
        inputs: tensors that require grad.

    Raises:
        ValueError: an input is computed from another one.
    """

    def __init__(self, losses: Mapping[str, Tensor], inputs: Sequence[Tensor]):
        self.losses = losses
        self.inputs = inputs
        self._stops = [_edge(tensor) for tensor in inputs]
        producers = _producers(self._stops)
        stops = set(self._stops)
        self._reach = {
            name: _walk(_edge(loss), stops, producers) for name, loss in losses.items()
        }

    def check(self, input_only: bool) -> None:
        """Refuse losses that do not depend on the input, and what `input_only` loses.

        A loss that reaches what produces the input by a way around the input, through
        tied weights or a penalty on the latent, would lose that part of its gradient.
        What only the loss itself uses, as a discriminator's parameters, is no way
        around.

        Raises:
            ValueError: a loss does not depend on the input, or goes around it.
        """
        for name, reach in self._reach.items():
            if not reach.input:
                raise ValueError(self._why_independent(name))
            if input_only and reach.around:
                raise ValueError(
                    f"loss {name!r} also reaches {_describe(reach.around)} by a way "
                    "around `input`, and with input_only=True that part of its "
                    "gradient would be lost: add that term to the total loss outside "
                    "the balancer, pass the tensor where the ways meet as one more "
                    "`input`, or set input_only=False"
                )

    def order(self) -> Dict[str, bool]:
        """Return the order in which to walk the losses, and whose graph to keep.

        A graph that no later walk needs is freed while it is walked, as in any
        backward. Those that share nothing go first and those that share by size, so
        that the largest walk finds most of the memory free already and frees its own
        graph as it goes.

        Returns:
            name → whether the graph has to be kept, in the order of the walks.
        """
        nodes = {name: reach.nodes for name, reach in self._reach.items()}
        count: Dict[Any, int] = {}
        for node in itertools.chain.from_iterable(nodes.values()):
            count[node] = count.get(node, 0) + 1
        shares = {n: any(count[node] > 1 for node in nodes[n]) for n in nodes}
        kept = {}
        for name in sorted(nodes, key=lambda name: (shares[name], len(nodes[name]))):
            for node in nodes[name]:
                count[node] -= 1
            kept[name] = any(count[node] for node in nodes[name])
        return kept

    def runs_in_float16(self) -> bool:
        """Tell whether a gradient may pass through float16 on its way.

        By the dtype of a loss or an input, by autocast, or by a conversion
        within the graph, as a discriminator of half precision has it.
        """
        half = torch.float16
        return (
            is_float16(self.inputs)
            or any(loss.dtype == half for loss in self.losses.values())
            or any(
                _converts_to(half, node)
                for reach in self._reach.values()
                for node in reach.nodes
            )
        )

    def _why_independent(self, name: str) -> str:
        """Return a message that says why a loss has no gradient for the input."""
        node = _edge(self.losses[name])[0]
        if any(node is stop for stop, _ in self._stops):
            return (
                f"loss {name!r} and `input` were computed by one node of the graph, as "
                "when the whole step was compiled together: compile the modules by "
                "themselves, or call torch._dynamo.graph_break() after `input`"
            )
        if self._reach[name].around:
            return (
                f"loss {name!r} does not depend on `input`, but on what produces "
                "`input`: it was computed from another tensor, of which `input` is a "
                "view or a copy, or the other way round, or `input` was changed in "
                "place (as by y += 0) after the loss was computed; pass the very "
                "tensor that the losses take, as it was when they took it"
            )
        return (
            f"loss {name!r} has a gradient, but not with respect to `input`: it was "
            "computed from a detached tensor (compute it from `input` without detach() "
            "and outside torch.no_grad()), or `input` was changed in place after the "
            "loss was computed"
        )


def is_float16(inputs: Sequence[Tensor]) -> bool:
    """Tell whether gradients at the inputs are float16, by dtype or by autocast."""
    kind = inputs[0].device.type
    return any(tensor.dtype == torch.float16 for tensor in inputs) or (
        torch.is_autocast_enabled(kind)
        and torch.get_autocast_dtype(kind) == torch.float16
    )


def edge_of(tensor: Tensor) -> GradientEdge:
    """Return where a tensor's gradient goes, of a leaf that is a subclass too."""
    with torch._C.DisableTorchFunctionSubclass():
        return get_gradient_edge(tensor)


def _edge(tensor: Tensor) -> Edge:
    edge = edge_of(tensor)
    return edge.node, edge.output_nr


def _converts_to(dtype: torch.dtype, node: Any) -> bool:
    return type(node).__name__ == _CONVERSION and any(
        made.dtype == dtype for made in node._input_metadata
    )


def _producers(stops: Sequence[Edge]) -> Set[Any]:
    """Return the nodes that the inputs are computed by, the inputs' own among them."""
    nodes = {node for node, _ in stops}
    stack: List[Any] = list(nodes)
    while stack:
        for edge in stack.pop().next_functions:
            if edge in stops:
                raise ValueError(
                    f"input {stops.index(edge)} takes part in computing another input, "
                    "so its gradient would count twice: pass the tensors of one level"
                )
            if edge[0] is not None and edge[0] not in nodes:
                nodes.add(edge[0])
                stack.append(edge[0])
    return nodes


def _walk(start: Edge, stops: Set[Edge], producers: Set[Any]) -> _Reach:
    """Walk back from a loss. Leaves have nothing that a walk could free."""
    reach = _Reach()
    seen = reach.nodes
    stack = [start]
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or node in seen:
            continue
        if edge in stops:
            reach.input = True
        elif node in producers:
            reach.around.append(node)
        else:
            following = node.next_functions
            if following:
                seen.add(node)
                stack.extend(following)
    return reach


def _describe(nodes: Iterable[Any]) -> str:
    for node in nodes:
        if hasattr(node, "variable"):
            return f"a parameter of shape {tuple(node.variable.shape)}"
    return "parameters that produce `input`"
