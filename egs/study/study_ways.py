"""The ways to weigh losses that the study compares.

A way is called with the losses of a step and the waveform that they are computed from,
and returns what the trainer runs backward through. `scales` then says what the way
multiplied each loss's gradient by. The rules of others are written from their formulas,
which the docstrings give: n_i is the norm ‖∂l_i/∂y[b]‖₂, mean over batch items.
"""

from collections import defaultdict
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch import Tensor, nn

from balancer import Balancer

Losses = Mapping[str, Tensor]
WEIGHTS_LR = 0.025  # of what is learned: GradNorm's, Chen et al., section 5.1
EPSILON = 1e-12


class Way:
    """A way to weigh losses.

    Attributes:
        scales: name → what the last call multiplied the loss's gradient by.
        learned: the parameters that are trained beside the model, at WEIGHTS_LR.
    """

    def __init__(self) -> None:
        self.scales: Dict[str, float] = {}
        self.learned: List[nn.Parameter] = []

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        raise NotImplementedError


class Sum(Way):
    """Σ_i f_i l_i with factors f_i that stand; a factor 0 turns its loss off."""

    def __init__(self, factors: Mapping[str, float]):
        super().__init__()
        self.factors = factors

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        self.scales = {name: self.factors[name] for name in losses}
        return combined(losses, self.scales)


class Ours(Way):
    """The balancer of this package."""

    def __init__(self, **options: Any):
        super().__init__()
        self.balancer = Balancer.from_config(options)

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        balanced, stats = self.balancer(losses, y)
        self.scales = {name: stats[f"{name}_scale"] for name in losses}
        return torch.stack(list(balanced.values())).sum()


class Espnet(Way):
    """ESPnet 202511's balancer: s_i = 1 / a_i, a_i ← β a_i + (1 − β) n_i from 0.

    It has no weights, and no correction while the average is young.
    """

    def __init__(self, decay: float = 0.999):
        super().__init__()
        self.decay = decay
        self.averages: Dict[str, float] = defaultdict(float)

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        for name, norm in norms(gradients(losses, y)).items():
            old = self.averages[name]
            self.averages[name] = self.decay * old + (1 - self.decay) * norm
        self.scales = {name: 1 / self.averages[name] for name in losses}
        return combined(losses, self.scales)


class Audiocraft(Way):
    """AudioCraft's balancer: the gradient R Σ_i w_i / Σ_j w_j · g_i / (ε + a_i) at y.

    a_i = total_i / fix_i with total_i ← β total_i + n_i and fix_i ← β fix_i + 1, and
    R = 1. Source: Défossez et al., 2022, section 3.4.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        decay: float = 0.999,
        total_norm: float = 1.0,
        per_batch_item: bool = True,
        epsilon: float = EPSILON,
    ):
        super().__init__()
        self.weights, self.decay, self.total_norm = weights, decay, total_norm
        self.per_batch_item, self.epsilon = per_batch_item, epsilon
        self.totals: Dict[str, float] = defaultdict(float)
        self.fixes: Dict[str, float] = defaultdict(float)

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        grads = gradients(losses, y)
        whole = sum(self.weights[name] for name in losses)
        for name, norm in norms(grads, self.per_batch_item).items():
            self.totals[name] = self.decay * self.totals[name] + norm
            self.fixes[name] = self.decay * self.fixes[name] + 1
            share = self.total_norm * self.weights[name] / whole
            average = self.totals[name] / self.fixes[name]
            self.scales[name] = share / (self.epsilon + average)
        return as_loss({n: self.scales[n] * g for n, g in grads.items()}, y)


class Uncertainty(Way):
    """Uncertainty weighting, by TorchJD: Σ_i ½ exp(−v_i) l_i + ½ v_i, v_i learned.

    Source: Kendall et al., 2018, "Multi-Task Learning Using Uncertainty to Weigh
    Losses for Scene Geometry and Semantics".
    """

    def __init__(self, names: List[str]):
        from torchjd.scalarization import UW  # of the extra "study"

        super().__init__()
        self.scalarizers = {name: UW(1) for name in names}
        self.learned = [x.log_var for x in self.scalarizers.values()]

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        found = [self.scalarizers[n](loss.reshape(1)) for n, loss in losses.items()]
        self.scales = {
            n: 0.5 * float(torch.exp(-self.scalarizers[n].log_var.detach()))
            for n in losses
        }
        return torch.stack(found).sum()


class GradNorm(Way):
    """GradNorm: weights w_i, learned so that G_i = ‖∂(w_i l_i)/∂W‖ ≈ Ḡ r_i^α.

    W is the decoder's last layer, Ḡ the mean of the G_i, r_i = (l_i / l_i(0)) over its
    mean. The w_i follow the gradient of Σ_i |G_i − Ḡ r_i^α|, whose target is held
    constant, so that of w_i is sign(G_i − Ḡ r_i^α) ‖∂l_i/∂W‖; after it they are scaled
    to sum to the number of losses. A loss that starts late has its l_i(0) then.
    Source: Chen et al., 2018, https://arxiv.org/abs/1711.02257, section 3.
    """

    def __init__(self, names: List[str], layer: Tensor, alpha: float = 1.5):
        super().__init__()
        self.layer, self.alpha = layer, alpha
        self.weights = {name: nn.Parameter(torch.ones(())) for name in names}
        self.learned = list(self.weights.values())
        self.first: Dict[str, float] = {}

    def __call__(self, losses: Losses, y: Tensor) -> Tensor:
        self._renormalize(losses)
        self.scales = {name: float(self.weights[name].detach()) for name in losses}
        grads = gradients(losses, y)
        raw = {}
        for name, grad in grads.items():
            (at_layer,) = torch.autograd.grad(y, self.layer, grad, retain_graph=True)
            raw[name] = float(at_layer.norm())
        # Zero, with the slopes for its gradient: zero_grad comes after this.
        slopes = self.slopes(losses, raw)
        pull = sum(s * (self.weights[n] - self.scales[n]) for n, s in slopes.items())
        return as_loss({n: self.scales[n] * g for n, g in grads.items()}, y) + pull

    def slopes(self, losses: Losses, raw: Mapping[str, float]) -> Dict[str, float]:
        """Return the gradient of Σ_i |G_i − Ḡ r_i^α| in each w_i.

        Args:
            raw: name → ‖∂l_i/∂W‖.
        """
        for name, loss in losses.items():
            self.first.setdefault(name, float(loss.detach()))
        rates = {n: float(x.detach()) / self.first[n] for n, x in losses.items()}
        mean_rate = sum(rates.values()) / len(rates)
        found = {name: self.scales[name] * norm for name, norm in raw.items()}
        mean = sum(found.values()) / len(found)
        slopes = {}
        for name, norm in raw.items():
            away = found[name] - mean * (rates[name] / mean_rate) ** self.alpha
            slopes[name] = norm if away > 0 else -norm
        return slopes

    @torch.no_grad()
    def _renormalize(self, losses: Losses) -> None:
        present = [self.weights[name] for name in losses]
        for weight in present:
            weight.clamp_(min=1e-6)  # a negative one would train against the loss
        whole = torch.stack(present).sum()
        for weight in present:
            weight.mul_(len(present) / whole)


def gradients(losses: Losses, y: Tensor) -> Dict[str, Tensor]:
    """Return each loss's gradient at y, and keep the graphs."""
    return {
        name: torch.autograd.grad(loss, y, retain_graph=True)[0]
        for name, loss in losses.items()
    }


def norms(grads: Mapping[str, Tensor], per_batch_item: bool = True) -> Dict[str, float]:
    """Return the norm of each gradient, the mean over batch items or the whole's."""
    return {
        name: float(
            grad.flatten(1).norm(dim=1).mean() if per_batch_item else grad.norm()
        )
        for name, grad in grads.items()
    }


def combined(losses: Losses, scales: Mapping[str, float]) -> Tensor:
    """Return Σ_i s_i l_i."""
    return torch.stack([scales[name] * loss for name, loss in losses.items()]).sum()


def as_loss(grads: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Return a scalar whose gradient at y is the sum of these."""
    return (y * torch.stack(list(grads.values())).sum(0).detach()).sum()


def make_way(
    section: Mapping[str, Any], names: List[str], layer: Optional[Tensor] = None
) -> Way:
    """Return the way that a training's configuration names.

    Args:
        section: `name`, and the way's own arguments.
        names: of the losses.
        layer: the parameter that GradNorm measures at.
    """
    arguments = {key: value for key, value in section.items() if key != "name"}
    ways: Dict[str, Callable[[], Way]] = {
        "sum": lambda: Sum(**arguments),
        "ours": lambda: Ours(**arguments),
        "espnet": lambda: Espnet(**arguments),
        "audiocraft": lambda: Audiocraft(**arguments),
        "uncertainty": lambda: Uncertainty(names),
        "gradnorm": lambda: GradNorm(names, layer),
    }
    return ways[section["name"]]()
