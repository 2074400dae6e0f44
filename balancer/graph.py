"""The walk that finds out how losses hang together with the input."""

import itertools
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

Edge = Tuple[Any, int]


def _edge(tensor: Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def check_paths(losses: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> None:
    """Refuse a loss that `input_only=True` would rob of a part of its gradient.

    Such a loss reaches what produces the input by a way around the input: through tied
    weights, say, or a penalty on the latent that was added to it. What only the loss
    itself uses, as a discriminator's parameters, is no way around.

    Args:
        losses: name → tensor of one element that requires grad.
        inputs: tensors that require grad.

    Raises:
        ValueError: a loss goes around the input or does not depend on it; an input is
            computed from another one.
    """
    stops = [_edge(tensor) for tensor in inputs]
    producers = _producers(stops)
    for name, loss in losses.items():
        reaches_input, around = _walk(_edge(loss), set(stops), producers)
        if not reaches_input and _edge(loss)[0] in {node for node, _ in stops}:
            raise ValueError(
                f"loss {name!r} and `input` were computed by one node of the graph, as "
                "when the whole step was compiled together: compile the modules by "
                "themselves, or call torch._dynamo.graph_break() after `input`"
            )
        if reaches_input and around:
            raise ValueError(
                f"loss {name!r} also reaches {_describe(around)} by a way around "
                "`input`, and with input_only=True that part of its gradient would be "
                "lost: add that term to the total loss outside the balancer, pass the "
                "tensor where the ways meet as one more `input`, or set "
                "input_only=False"
            )
        if not reaches_input:
            raise ValueError(_independent(name, bool(around)))


def walk_order(
    losses: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> Dict[str, bool]:
    """Return the order in which to walk the losses, and whose graph to keep.

    A graph that no later walk needs is freed while it is walked, as in any backward.
    Those that share nothing go first and those that share by size, so that the largest
    walk finds most of the memory free already and frees its own graph as it goes.

    Args:
        losses: name → loss.
        inputs: where the walks end.

    Returns:
        name → whether the graph has to be kept, in the order of the walks.
    """
    stops = {_edge(tensor) for tensor in inputs}
    nodes = {name: _inner_nodes(_edge(loss), stops) for name, loss in losses.items()}
    count: Dict[Any, int] = {}
    for node in itertools.chain.from_iterable(nodes.values()):
        count[node] = count.get(node, 0) + 1
    shares = {n: any(count[node] > 1 for node in nodes[n]) for n in losses}
    order = sorted(losses, key=lambda name: (shares[name], len(nodes[name])))
    kept = {}
    for name in order:
        for node in nodes[name]:
            count[node] -= 1
        kept[name] = any(count[node] for node in nodes[name])
    return kept


def _inner_nodes(start: Edge, stops: Set[Edge]) -> Set[Any]:
    """Return the nodes of a loss's graph; leaves have nothing that could be freed."""
    nodes: Set[Any] = set()
    stack = [start]
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or node in nodes or edge in stops or hasattr(node, "variable"):
            continue
        nodes.add(node)
        stack.extend(node.next_functions)
    return nodes


def why_independent(name: str, loss: Tensor, inputs: Sequence[Tensor]) -> str:
    """Return a message that says why a loss has no gradient with respect to input."""
    stops = [_edge(tensor) for tensor in inputs]
    _, around = _walk(_edge(loss), set(stops), _producers(stops))
    return _independent(name, bool(around))


def _independent(name: str, meets_producers: bool) -> str:
    if meets_producers:
        return (
            f"loss {name!r} does not depend on `input`, but on what produces `input`: "
            "it was computed from another tensor, of which `input` is a view or a "
            "copy, or the other way round; pass the very tensor that the losses take"
        )
    return (
        f"loss {name!r} has a gradient, but not with respect to `input`: it was "
        "computed from a detached tensor; compute it from `input` without detach() "
        "and outside torch.no_grad()"
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


def _walk(start: Edge, stops: Set[Edge], producers: Set[Any]) -> Tuple[bool, List[Any]]:
    """Walk back from a loss, up to the inputs.

    Returns:
        Whether an input was reached, and the producers' nodes that were reached too.
    """
    reaches_input, around, seen = False, [], set()
    stack: List[Edge] = [start]
    while stack:
        edge = stack.pop()
        node = edge[0]
        if edge in stops:
            reaches_input = True
        elif node in producers:
            around.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.extend(node.next_functions)
    return reaches_input, around


def _describe(nodes: Iterable[Any]) -> str:
    for node in nodes:
        if hasattr(node, "variable"):
            return f"a parameter of shape {tuple(node.variable.shape)}"
    return "parameters that produce `input`"
