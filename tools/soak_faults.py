"""What goes wrong in a soak, and when: drawn from a seed, alike on all ranks."""

import math
import random
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Set

import torch
from torch import Tensor

# Faults of one loss, and whether they last for a stretch of steps.
LOSS_FAULTS = {
    "NaN in a loss": False,
    "Inf in a loss": False,
    "NaN in a gradient": False,
    "Inf in a gradient": False,
    "gradient of zero": True,
    "loss absent": True,
    "loss times 1e10": True,
    "loss times 1e-10": True,
}
BAD_INPUT, EMPTY, FLOAT16 = "NaN in the input", "empty batch on a rank", "float16"
# What happens before a step.
REFUSED, VALIDATION, RESTORED = "refused call", "validation", "checkpoint restored"
COPIED, PICKLED = "deepcopy", "pickle"

EVERY = 3  # steps from one fault to the next
STRETCH = (2, 20)  # steps that a lasting fault lasts

# The kinds of faults that a step has, and the losses that they strike.
Faults = Dict[str, Set[str]]


@dataclass
class _Fault:
    kind: str
    loss: str
    rank: Optional[int]  # None for all
    last: int  # step


class Schedule:
    """Deals the kinds of faults like cards: each comes once before any comes again.

    Args:
        losses: the losses' names.
        rank: for which the faults are told; all ranks draw the same.
        ranks: how many there are.
        seed: of all that is drawn.
    """

    def __init__(self, losses: Sequence[str], rank: int, ranks: int, seed: int):
        self.losses, self.rank, self.ranks = list(losses), rank, ranks
        self.kinds = [*LOSS_FAULTS, BAD_INPUT, FLOAT16]
        self.kinds += [REFUSED, VALIDATION, RESTORED, COPIED, PICKLED]
        self.kinds += [EMPTY] if ranks > 1 else []
        self.injected = dict.fromkeys(self.kinds, 0)
        self._random = random.Random(seed)
        self._deck: List[str] = []
        self._active: List[_Fault] = []

    def step(self, step: int) -> Faults:
        """Return the faults of a step on this rank; to be called for each in order."""
        self._active = [fault for fault in self._active if fault.last >= step]
        if step % EVERY == 0:
            self._active.append(self._deal(step))
        faults: Faults = {}
        for fault in self._active:
            if fault.rank in (None, self.rank):
                faults.setdefault(fault.kind, set()).add(fault.loss)
        if len(faults.get("loss absent", ())) == len(self.losses):
            del faults["loss absent"]
        return faults

    def _deal(self, step: int) -> _Fault:
        if not self._deck:
            self._deck = self._random.sample(self.kinds, len(self.kinds))
        kind = self._deck.pop()
        self.injected[kind] += 1
        one = self._random.randrange(self.ranks)
        everywhere = self._random.random() < 0.5
        if kind == EMPTY:
            everywhere = False
        elif kind not in LOSS_FAULTS and kind != BAD_INPUT:
            everywhere = True
        lasts = kind == FLOAT16 or LOSS_FAULTS.get(kind, False)
        last = step + (self._random.randint(*STRETCH) if lasts else 0)
        loss = self._random.choice(self.losses)
        return _Fault(kind, loss, None if everywhere else one, last)


def spoil(losses: Dict[str, Tensor], faults: Faults) -> Dict[str, Tensor]:
    """Return the losses with what the faults make of them."""
    change = {
        "NaN in a loss": lambda loss: loss * math.nan,
        "Inf in a loss": lambda loss: loss * math.inf,
        "NaN in a gradient": lambda loss: _SpoilGradient.apply(loss, math.nan),
        "Inf in a gradient": lambda loss: _SpoilGradient.apply(loss, math.inf),
        "gradient of zero": lambda loss: _SpoilGradient.apply(loss, 0.0),
        "loss times 1e10": lambda loss: loss * 1e10,
        "loss times 1e-10": lambda loss: loss * 1e-10,
    }
    absent = faults.get("loss absent", set())
    spoiled = {name: loss for name, loss in losses.items() if name not in absent}
    for kind in faults.keys() & change.keys():
        for name in faults[kind] & spoiled.keys():
            spoiled[name] = change[kind](spoiled[name])
    return spoiled


class _SpoilGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None
