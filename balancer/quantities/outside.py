"""How hard the losses outside the balance pull beside the balanced ones."""

import math
from typing import Dict, List, Optional, Sequence

import torch
from torch import Tensor, nn
from typeguard import typechecked

from balancer._gradients.autograd import Gradients, explained
from balancer._gradients.float16 import HIGHEST, STEP, divided
from balancer._gradients.graph import is_float16

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

    AudioCraft logs ∂r and ∂(r + b) for the same end, as ratio1 and ratio2.

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
            norms = norms_where_all_reach([outside, balanced], self.module)
            self._last = norms[0] / norms[1] if norms and norms[1] else math.nan
        self._calls += 1
        return {KEY: self._last}


def norms_where_all_reach(
    losses: Sequence[Tensor], module: nn.Module
) -> Optional[List[float]]:
    """Return the norm of each loss's gradient in the parameters that all reach.

    Args:
        losses: tensors of one element. Their graphs are kept.
        module: holds the parameters.

    Returns:
        A norm for each loss; None if no parameter is reached by all.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters or not all(loss.requires_grad for loss in losses):
        return None
    found = [_gradients(loss, parameters) for loss in losses]
    shared = [grads for grads in zip(*found) if all(grad is not None for grad in grads)]
    if not shared:
        return None
    squares = [
        torch.stack([grad.double().square().sum() for grad in of_loss]).sum()
        for of_loss in zip(*shared)
    ]
    norms: List[float] = torch.stack(squares).sqrt().tolist()
    return norms


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    """Return ∂loss/∂p for each parameter, None where the loss does not reach it.

    Under float16 the loss is multiplied by as high a power of two as overflows nowhere.
    """
    for power in range(HIGHEST if is_float16([loss, *parameters]) else 0, -1, -STEP):
        with explained("what the losses pull with cannot be measured"):
            found = torch.autograd.grad(
                loss,
                parameters,
                torch.full_like(loss, 2.0**power),
                retain_graph=True,
                allow_unused=True,
            )
        there = [grad for grad in found if grad is not None]
        if power == 0 or all(bool(grad.isfinite().all()) for grad in there):
            break
    return divided(found, power)
