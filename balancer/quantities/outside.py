"""How hard the losses outside the balance pull beside the balanced ones."""

import math
from itertools import compress
from typing import Dict, Mapping, Sequence

import torch
from torch import Tensor, nn
from typeguard import typechecked

from balancer._gradients.autograd import Gradients, loss_gradients
from balancer._gradients.float16 import HIGHEST, STEP, divided
from balancer._norms.items import item_norms

KEY = "outside_to_balanced"


class OutsideRatio:
    """Tells which of two kinds of losses rules the parameters that both train.

    A codec's commitment loss and the KL divergence of VITS do not depend on the
    waveform, so they are added outside the balancer, and `total_norm` alone says what
    they weigh beside the balanced losses. Let r be their sum, b that of the losses that
    the balancer returned, and θ the parameters that both reach, in a codec the
    encoder's. The ratio is ‖∂r/∂θ‖₂ / ‖∂b/∂θ‖₂. Far above 1 the encoder serves its
    codebook alone and few codes stay in use: raise `total_norm`. Next to 0 nothing
    holds the encoder to its codebook: lower it.

    AudioCraft logs the norms of r's and of both's gradient for the same end, as ratio1
    and ratio2.

    Args:
        module: holds the parameters, as the whole generator does. Those that one kind
            of losses does not reach do not count.
        every: the number of calls from one measurement to the next, at least 1. One
            takes two walks through the generator.

    Raises:
        ValueError: every is below 1.
        typeguard.TypeCheckError: an argument is of another type.

    Example:
        >>> import torch
        >>> encoder, decoder = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
        >>> outside_ratio = OutsideRatio(torch.nn.Sequential(encoder, decoder))
        >>> z = encoder(torch.ones(4, 3))
        >>> balanced = decoder(z).square().mean()
        >>> round(outside_ratio(3 * balanced, balanced)["outside_to_balanced"], 3)
        3.0
    """

    @typechecked
    def __init__(self, module: nn.Module, every: int = 100):
        if every < 1:
            raise ValueError(f"every must be at least 1, but is {every}")
        self.module = module
        self.every = every
        self._calls = 0
        self._last = math.nan

    def __call__(self, outside: Tensor, balanced: Tensor) -> Dict[str, float]:
        """Return `outside_to_balanced` as last measured, before the backward.

        The graphs stay for the trainer's own backward, and no parameter gets a `.grad`.

        Args:
            outside: the sum of the losses that are added to the balanced ones.
            balanced: the sum of the losses that the balancer returned.

        Returns:
            The ratio, of this process; nan where there is no parameter that both reach.

        Raises:
            RuntimeError: torch cannot walk the graph, as where it was freed.
        """
        if self._calls % self.every == 0:
            sums = {"outside": outside, "balanced": balanced}
            norms = norms_where_all_reach(sums, self.module)
            balanced_norm = norms.get("balanced", 0.0)
            self._last = norms["outside"] / balanced_norm if balanced_norm else math.nan
        self._calls += 1
        return {KEY: self._last}


def norms_where_all_reach(
    losses: Mapping[str, Tensor], module: nn.Module
) -> Dict[str, float]:
    """Return the norm of each loss's gradient in the parameters that all reach.

    Args:
        losses: name → tensor of one element. Their graphs are kept. The one that
            reaches fewest parameters comes best first: only these are asked for in the
            walks of the others.
        module: holds the parameters.

    Returns:
        name → norm; nothing if no parameter is reached by all.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    found: Dict[str, Gradients] = {}
    for name, loss in losses.items():
        if not parameters or not loss.requires_grad:
            return {}
        grads = _gradients(name, loss, parameters)
        reached = [grad is not None for grad in grads]
        parameters = list(compress(parameters, reached))
        found[name] = grads
        found = {n: tuple(compress(grads, reached)) for n, grads in found.items()}
    if not parameters:
        return {}
    norms = torch.cat([item_norms(grads, False) for grads in found.values()])
    return dict(zip(found, norms.tolist()))


def _gradients(name: str, loss: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    """Return ∂loss/∂p for each parameter, None where the loss does not reach it.

    A part of the graph may be float16, so the loss is multiplied by as high a power of
    two as overflows nowhere. In wider numbers that changes nothing.
    """
    for power in range(HIGHEST, -1, -STEP):
        grads = loss_gradients(name, loss, parameters, True, 2.0**power)
        there = tuple(grad for grad in grads if grad is not None)
        if not there or math.isfinite(item_norms(there, False).item()):
            break
    return divided(grads, power)
