"""How far a training step went along its direction, and how far from where."""

import math
from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from balancer._gradients.precision import widened

# A variance of zero would weigh infinitely.
LEAST_VARIANCE = 1e-10


class StepPoint(NamedTuple):
    """What is known of the loss at one end of a step, along the step.

    Attributes:
        position: the distance τ from the step's start: 0, or the step's length t.
        loss: the mean of the samples' losses.
        loss_variance: their sample variance.
        slope: the mean of the samples' slopes g_bᵀd / ‖d‖ along the step d.
        slope_variance: their sample variance.
    """

    position: float
    loss: float
    loss_variance: float
    slope: float
    slope_variance: float

    @classmethod
    def measure(
        cls, losses: Tensor, grads: Tensor, step: Tensor, position: float
    ) -> "StepPoint":
        """Return the point for a batch.

        Args:
            losses: [B], the samples' losses.
            grads: [B, D], their gradients g_b, each of its own loss.
            step: [D], the step d of the parameters, from start to end.
            position: 0 at the step's start, ‖d‖ at its end.

        Raises:
            ValueError: the shapes do not fit together.

        Example:
            >>> grads, step = torch.tensor([[1.0, 0], [3, 5]]), torch.tensor([2.0, 0])
            >>> point = StepPoint.measure(torch.tensor([4.0, 4]), grads, step, 0.0)
            >>> point.loss, point.slope, point.slope_variance
            (4.0, 2.0, 2.0)
        """
        if grads.shape != (*losses.shape, *step.shape) or losses.dim() != 1:
            raise ValueError(
                "losses must be [B], grads [B, D] and step [D], but have the shapes "
                f"{tuple(losses.shape)}, {tuple(grads.shape)} and {tuple(step.shape)}"
            )
        losses, grads, step = (widened(x.detach()) for x in (losses, grads, step))
        slopes = grads @ step / torch.linalg.vector_norm(step)
        numbers = [*_mean_and_variance(losses), *_mean_and_variance(slopes)]
        return cls(float(position), *torch.stack(numbers).tolist())


def alpha(start: StepPoint, end: StepPoint) -> float:
    """Return the normalized length of a step.

    The quadratic w₀ + w₁τ + w₂τ² is fitted to losses and slopes at both ends of the
    step, by least squares weighted with the inverse variances (a variance of zero
    counts as 1e-10). With t the step's length,

        α = 2t / (−w₁/w₂) − 1:

    −1 for no step, 0 for one to the quadratic's minimum, 1 for one to the same height
    on the other side. A concave quadratic (w₂ < 0) gives −1.

    Source: Cockpit (Schneider et al., 2021, https://arxiv.org/abs/2102.06604), by the
    noise model of Mahsereci and Hennig, 2017, "Probabilistic line searches for
    stochastic optimization" (https://arxiv.org/abs/1703.10034).

    Args:
        start: the step's start; it may be of another batch than the end.
        end: the step's end.

    Returns:
        α; nan where it is not defined: if a number is not finite (as the variance of
        one sample), if the step has no length or if the quadratic has no slope at its
        start.

    Example:
        >>> start = StepPoint(0.0, 1.0, 0.1, slope=-2.0, slope_variance=0.1)
        >>> end = StepPoint(1.5, 0.25, 0.1, slope=1.0, slope_variance=0.1)
        >>> round(alpha(start, end), 6)  # of (1 − τ)²
        0.5
    """
    numbers = torch.tensor([start, end], dtype=torch.float64)
    length = end.position - start.position
    if not bool(numbers.isfinite().all()) or not length > 0:
        return math.nan
    # In units of the step's length, so that the least squares are well conditioned.
    design = torch.tensor(
        [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 2.0]],
        dtype=torch.float64,
    )
    values = torch.cat([numbers[:, 1], numbers[:, 3] * length])
    variances = torch.cat(
        [_positive(numbers[:, 2]), _positive(numbers[:, 4]) * length**2]
    )
    weights = variances.rsqrt()
    fit = torch.linalg.lstsq(
        weights[:, None] * design, weights * values, driver="gels"
    ).solution
    _, slope, curvature = fit.tolist()
    if curvature < 0:
        return -1.0
    return -2 * curvature / slope - 1 if slope else math.nan


def distance(start: Tensor, end: Tensor) -> Tensor:
    """Return ‖end − start‖: of one step its size, of a training how far it went.

    Source: UpdateSize and Distance of Cockpit (Schneider et al., 2021,
    https://arxiv.org/abs/2102.06604).

    Args:
        start: the parameters before, of any shape.
        end: the parameters after, of the same shape.

    Example:
        >>> distance(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 5.0])).item()
        5.0
    """
    change = widened(end.detach()) - widened(start.detach())
    length: Tensor = torch.linalg.vector_norm(change)
    return length


def _mean_and_variance(values: Tensor) -> Tuple[Tensor, Tensor]:
    mean = values.mean()
    return mean, (values - mean).square().sum() / (len(values) - 1)


def _positive(variances: Tensor) -> Tensor:
    return torch.where(variances > 0, variances, LEAST_VARIANCE)
