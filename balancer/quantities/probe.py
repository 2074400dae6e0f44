"""The probe: how much of each loss's gradient of a shared layer is noise."""

import math
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm
from typeguard import typechecked

from balancer._gradients.autograd import Gradients, explained, no_hooks
from balancer._gradients.float16 import divided, power_for
from balancer._gradients.graph import is_float16
from balancer._norms.ranks import gather_rows, has_ranks, mean_over_ranks
from balancer._scales.sections import nearest
from balancer.quantities import noise
from balancer.quantities.per_sample import (
    parameters_of,
    per_sample_gradients,
    zero_gradients,
)

# The quantities that need the per-sample gradients and nothing else.
QUANTITIES: Dict[str, Callable[[Tensor], Tensor]] = {
    "norm_test": noise.norm_test,
    "inner_product_test": noise.inner_product_test,
    "orthogonality_test": noise.orthogonality_test,
    "mean_gsnr": noise.mean_gsnr,
    "early_stopping": noise.early_stopping,
    "critical_batch_size": noise.critical_batch_size,
}

# A call of the layer that leads to `input`: its output's edge, and its input.
Call = Tuple[GradientEdge, Tensor]


class GradientProbe:
    """Takes quantities of the losses' per-sample gradients of one layer's parameters.

    Gradients of different outputs mean nothing to one another, those of the same
    parameters do. So the probe sits on a layer that all losses train, best the last one
    before `input`: it notes what the layer takes in, the balancer hands it each loss's
    gradient at `input`, and from there it goes back to the layer, through the few
    operations between, and no further.

    For losses that are means over the batch of B samples, l = Σ_b l_b / B, row b of the
    gradients [B, D] is that of sample b's own loss l_b, which is B times what sample b
    adds to the gradient of l. Several calls of the layer (a dual decoder) add up. Over
    several ranks the rows of all ranks are taken together, so that each rank has the
    result of one process on the joined batch.

    Give it to a balancer, which takes the quantities on the first call that measures
    and then on each that comes `every` calls later or more. Between, the layer runs as
    if there were no probe (a compiled module is broken in two graphs at the layer). If
    the layer ran before the probe came due, as in a step of several forwards and then
    several calls, or if it is frozen just then, the quantities are taken in a later
    call. One probe serves one balancer. What it notes stays in autograd's graph and
    goes with it; no state dict of a module has a new key.

    Args:
        layer: maps one tensor [B, …] to one tensor [B, …], each sample by itself, e.g.
            a convolution or a linear layer, with weight_norm or without. Nothing
            after it may mix samples. Its B·D gradients are kept for one loss at a time.
        quantities: names out of norm_test, inner_product_test, orthogonality_test,
            mean_gsnr, early_stopping and critical_batch_size: the functions of
            `balancer.quantities`. mean_gsnr and early_stopping depend on the loss's
            scale through their ε, the others do not.
        every: the number of calls of the balancer between two results, at least 1.

    Raises:
        ValueError: an unknown quantity (the nearest known one is named) or none at all;
            every is below 1; the layer has no parameters that are trained, or a
            BatchNorm, which mixes samples.
        typeguard.TypeCheckError: an argument is of another type.

    Example:
        >>> import torch
        >>> from balancer import Balancer
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        >>> balancer = Balancer(probe=GradientProbe(net[0], ["norm_test"]))
        >>> y = net(torch.randn(8, 3))
        >>> _, stats = balancer({"l1": y.abs().mean()}, y)
        >>> 0 < stats["l1_norm_test"] < float("inf")
        True
    """

    @typechecked
    def __init__(
        self,
        layer: nn.Module,
        quantities: Sequence[str] = ("norm_test", "mean_gsnr", "critical_batch_size"),
        every: int = 100,
    ):
        _check_layer(layer)
        _check_quantities(quantities)
        if every < 1:
            raise ValueError(f"every must be at least 1, but is {every}")
        self.layer = layer
        self.quantities = list(dict.fromkeys(quantities))
        self.every = every
        # Whether the layer's calls are noted. The balancer sets it, call by call.
        self.armed = True
        layer.register_forward_hook(self._note, with_kwargs=True)

    # Inside a compiled module this breaks the graph in two, as it has to.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _note(
        self, layer: nn.Module, args: Tuple[Any, ...], kwargs: Any, output: Any
    ) -> None:
        """Leave the layer's input with the node that made its output.

        There it lives as long as the graph does: one that never comes to the balancer,
        as that of a discriminator's turn, is let go with all that it holds. While
        nothing is due, None takes the input's place, and says that it ran.
        """
        if not torch.is_grad_enabled():
            return
        if not self.armed:
            if isinstance(output, Tensor) and output.requires_grad:
                _leave(self, output, None)
            return
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            raise TypeError(
                f"{self._layer()} was called with {len(args)} arguments and the "
                f"keywords {list(kwargs)}, but must be called with one tensor alone: "
                "probe a layer that is"
            )
        if not isinstance(output, Tensor):
            raise TypeError(
                f"{self._layer()} returned {type(output)}, but must return one tensor: "
                "probe a layer that does"
            )
        if output.requires_grad:
            _leave(self, output, args[0].detach())

    def measure(
        self,
        gradients: Mapping[str, Gradients],
        inputs: Sequence[Tensor],
        norms: Mapping[str, float],
        group: Any = None,
    ) -> Optional[Dict[str, float]]:
        """Return the quantities of each loss; the balancer calls this.

        Args:
            gradients: name → the gradients at `inputs` of a loss of this rank.
            inputs: the tensors that the losses were computed from.
            norms: name → the norm of the gradient at `inputs`, for each loss that some
                rank brought, in the same order on each rank.
            group: the ranks, None for all.

        Returns:
            `{name}_{quantity}` → value, the same on each rank; None if they have to
            wait for a later call, since the layer is frozen, or ran while nothing was
            due.

        Raises:
            ValueError: no call of the layer leads to `inputs`, or one has a batch of
                another size.
            RuntimeError: the layer does not map each sample by itself.
        """
        calls = self._take_calls(inputs) if parameters_of(self.layer) else []
        if not _on_all_ranks(bool(calls), inputs[0].device, group):
            return None
        half = is_float16(inputs)
        found: List[Tensor] = []
        for name, norm in norms.items():
            rows = zero_gradients(self.layer, 0)
            if name in gradients:
                power = power_for(norm) if half else 0
                rows = self._rows(gradients[name], inputs, calls, power)
            rows = gather_rows(rows, group)
            found += [QUANTITIES[quantity](rows) for quantity in self.quantities]
        return dict(zip(self._keys(norms), torch.stack(found).tolist()))

    def stats(
        self, names: Sequence[str], last: Mapping[str, float]
    ) -> Dict[str, float]:
        """Return the quantities to report, as last measured, nan where never.

        Args:
            names: the losses to report.
            last: `{name}_{quantity}` → value.
        """
        return {key: last.get(key, math.nan) for key in self._keys(names)}

    def _keys(self, names: Iterable[str]) -> List[str]:
        return [f"{name}_{quantity}" for name in names for quantity in self.quantities]

    def _take_calls(self, inputs: Sequence[Tensor]) -> List[Call]:
        """Return the layer's calls that lead to the inputs, and let go what they took.

        None of them if one was not noted, or was already taken for an earlier call.
        """
        calls: List[Call] = []
        known = True
        seen = set()
        stack: List[Any] = [get_gradient_edge(tensor).node for tensor in inputs]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            notes = node.metadata.get(self, {})
            for output_nr, x in notes.items():
                known = known and x is not None
                calls.append((GradientEdge(node, output_nr), x))
                notes[output_nr] = None
            stack.extend(following for following, _ in node.next_functions)
        if not calls:
            raise ValueError(
                f"no call of {self._layer()} leads to `input`: probe a layer that "
                "`input` is computed by, such as the decoder's last convolution, and "
                "run it after the probe is made and with grad mode on (in "
                "torch.utils.checkpoint: use_reentrant=False)"
            )
        if not known:
            return []
        sizes = {len(x) for _, x in calls}
        batches = {len(tensor) for tensor in inputs if tensor.dim()}
        if len(sizes | batches) > 1:
            raise ValueError(
                f"{self._layer()} took batches of {sorted(sizes)}, but `input` has one "
                f"of {sorted(batches)}: probe a layer whose axis 0 is that of the "
                "samples, as that of `input` must be"
            )
        return calls

    def _rows(
        self,
        grads: Gradients,
        inputs: Sequence[Tensor],
        calls: Sequence[Call],
        power: int,
    ) -> Tensor:
        """Return one loss's per-sample gradients on this rank, [B, D]."""
        batch = len(calls[0][1])
        rows = zero_gradients(self.layer, batch)
        given = [(y, grad) for y, grad in zip(inputs, grads) if grad is not None]
        if not given:
            return rows
        with no_hooks(inputs), explained(f"{self._layer()} cannot be probed"):
            found = torch.autograd.grad(
                [y for y, _ in given],
                [edge for edge, _ in calls],
                [(grad * 2.0**power).to(y.dtype) for y, grad in given],
                retain_graph=True,
                allow_unused=True,
            )
        for (_, x), cotangent in zip(calls, divided(found, power)):
            if cotangent is not None:
                rows = rows + batch * per_sample_gradients(self.layer, x, cotangent)
        return rows

    def _layer(self) -> str:
        return f"the probe's layer ({type(self.layer).__name__})"


def _on_all_ranks(ready: bool, device: torch.device, group: Any) -> bool:
    """Tell whether all ranks are ready: they wait together, since they gather rows."""
    if not has_ranks(group):
        return ready
    share = torch.full((1,), float(ready), device=device)
    return mean_over_ranks(share, [1], group)[0] == [1.0]


def _leave(probe: GradientProbe, output: Tensor, x: Optional[Tensor]) -> None:
    """Leave a note of the probe with the node that made the layer's output."""
    edge = get_gradient_edge(output)
    notes: Any = edge.node.metadata
    notes.setdefault(probe, {})[edge.output_nr] = x


def _check_quantities(names: Sequence[str]) -> None:
    """Raise ValueError if the names are not some of the known ones."""
    known = list(QUANTITIES)
    if isinstance(names, str) or not names:
        raise ValueError(
            f"quantities must be a list of names out of {known}, but is {names!r}"
        )
    for name in names:
        if name not in known:
            raise ValueError(f"unknown quantity {name!r}: {nearest(name, known)}")


def _check_layer(layer: nn.Module) -> None:
    """Raise ValueError if a layer cannot be probed, whatever it is called with."""
    kind = type(layer).__name__
    if not parameters_of(layer):
        raise ValueError(
            f"the probe's layer ({kind}) has no parameters that are trained, so no "
            "gradient of any: probe a convolution or a linear layer"
        )
    for name, module in layer.named_modules():
        if isinstance(module, _BatchNorm):
            raise ValueError(
                f"the probe's layer ({kind}) holds a {type(module).__name__} "
                f"({name or 'itself'}), which mixes the samples of a batch, so that "
                "none has a gradient of its own: probe a convolution or a linear layer"
            )
