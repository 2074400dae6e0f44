"""The ways of putting several losses together that the benchmark compares.

A way is called with the outputs of a turn's forward and returns what is left to run
backward through: tensors and their gradients, or nothing if it ran its own backward.
"""

import contextlib
import importlib.util
import io
from typing import Callable, Dict, List, Optional, Tuple

import torch
from benchmark_turn import Outputs, Turn
from espnet2.gan_codec.shared.loss.loss_balancer import Balancer as EspnetBalancer
from torch import Tensor

from balancer import Balancer
from balancer.espnet.losses import losses_of

Left = Tuple[List[Tensor], List[Optional[Tensor]]]
Way = Callable[[Outputs], Left]

NO_BALANCING, ESPNET, AUDIOCRAFT = "no balancing", "ESPnet's balancer", "AudioCraft's"
TORCHJD, MEASURED, HELD = "TorchJD, constant", "ours, measuring", "ours, holding"
# All ways weigh the losses alike, and their norms sum to their number as ESPnet's do.
# ESPnet takes 0 for 1, so no memory at all is written as a very small decay.
DECAY = 1e-30


def make_ways(turn: Turn) -> Dict[str, Way]:
    """Return the ways that can run here, by name."""
    total = float(len(losses_of(turn.net)))
    ways: Dict[str, Way] = {
        NO_BALANCING: lambda out: ([sum(out.losses.values()) + out.other], [None]),
        ESPNET: _Espnet(),
        AUDIOCRAFT: _Audiocraft(total),
        MEASURED: _Ours(total, update_every=1),
        HELD: _Ours(total, update_every=10**9),
    }
    if importlib.util.find_spec("torchjd"):
        ways[TORCHJD] = _TorchJD(turn, total)
    return ways


class _Ours:
    def __init__(self, total: float, update_every: int):
        self.balancer = Balancer(total, DECAY, update_every=update_every)

    def __call__(self, out: Outputs) -> Left:
        losses, _ = self.balancer(out.losses, out.y)
        return [sum(losses.values()) + out.other], [None]


class _Espnet:
    """ESPnet's own class, without its print."""

    def __init__(self) -> None:
        self.balancer = EspnetBalancer(ema_decay=DECAY)

    def __call__(self, out: Outputs) -> Left:
        with contextlib.redirect_stdout(io.StringIO()):
            losses, _ = self.balancer(out.losses, out.y)
        return [sum(losses.values()) + out.other], [None]


class _Audiocraft:
    """The algorithm from its formula: a gradient each, one backward from the output.

    Source: Défossez et al., 2022, section 3.4.
    """

    def __init__(self, total: float) -> None:
        self.total = total
        self.totals: Dict[str, float] = {}
        self.mass = 0.0

    def __call__(self, out: Outputs) -> Left:
        grads = {
            name: torch.autograd.grad(loss, out.y, retain_graph=True)[0]
            for name, loss in out.losses.items()
        }
        self.mass = DECAY * self.mass + 1
        combined = torch.zeros_like(out.y)
        for name, grad in grads.items():
            norm = grad.norm(dim=tuple(range(1, grad.dim()))).mean().item()
            self.totals[name] = DECAY * self.totals.get(name, 0.0) + norm
            average = self.totals[name] / self.mass
            combined += self.total / len(grads) / (1e-12 + average) * grad
        return [out.y, out.other], [combined, None]


class _TorchJD:
    """mtl_backward with constant weights: the scales that a balancer found before."""

    def __init__(self, turn: Turn, total: float):
        self.turn, self.total = turn, total
        self.scales: Optional[Tensor] = None

    def __call__(self, out: Outputs) -> Left:
        from torchjd.aggregation import Constant
        from torchjd.autojac import jac_to_grad, mtl_backward

        if self.scales is None:
            balancer = Balancer(self.total, DECAY, input_only=False)
            _, stats = balancer(out.losses, out.y)
            scales = [stats[f"{name}_scale"] for name in out.losses]
            self.scales = torch.tensor(scales, device=out.y.device)
        # The decoder is what the losses share; ESPnet's other losses come in after.
        shared = list(self.turn.net.generator.parameters())
        used = [p for p in shared if p.requires_grad]
        mtl_backward(
            list(out.losses.values()),
            features=out.y,
            tasks_params=[[] for _ in out.losses],
            shared_params=used,
            retain_graph=True,
            parallel_chunk_size=1,
        )
        jac_to_grad([p for p in used if p.jac is not None], Constant(self.scales))
        return [out.other], [None]
