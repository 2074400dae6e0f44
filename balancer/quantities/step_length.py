"""How far a training step went along its direction, and how far from where."""

import math
from fractions import Fraction
from typing import List, NamedTuple, Tuple

import torch
from torch import Tensor

from balancer._gradients.precision import widened
from balancer.quantities.rounding import unit_of, without_rounding

# A variance of zero would weigh infinitely.
LEAST_VARIANCE = 1e-10
# The relative rounding of a Python float.
_UNIT = Fraction(1, 2**53)


class StepPoint(NamedTuple):
    """What is known of the loss at one end of a step, along the step.

    Attributes:
        position: the distance τ from the step's start: 0, or the step's length t.
        loss: the mean of the samples' losses.
        loss_variance: their sample variance.
        slope: the mean of the samples' slopes g_bᵀd / ‖d‖ along the step d.
        slope_variance: their sample variance.
        loss_rounding: how far rounding may have taken the loss from what it stands for;
            half a unit in a float's last place is assumed in any case.
        slope_rounding: the same for the slope.
    """

    position: float
    loss: float
    loss_variance: float
    slope: float
    slope_variance: float
    loss_rounding: float = 0.0
    slope_rounding: float = 0.0

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
        loss_unit = unit_of(losses)
        slope_unit = unit_of(grads, sums=len(step)) + unit_of(step)
        losses, grads, step = (widened(x.detach()) for x in (losses, grads, step))
        length = torch.linalg.vector_norm(step)
        slopes = grads @ step / length
        steepest = grads.abs() @ step.abs() / length
        found = torch.stack(
            [
                *_summary(losses, loss_unit * losses.abs()),
                *_summary(slopes, slope_unit * steepest),
            ]
        ).tolist()
        loss, loss_variance, loss_rounding = found[:3]
        slope, slope_variance, slope_rounding = found[3:]
        return cls(
            float(position),
            loss,
            loss_variance,
            slope,
            slope_variance,
            loss_rounding,
            slope_rounding,
        )


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
        start, none that is more than the rounding of the points' numbers.

    Example:
        >>> start = StepPoint(0.0, 1.0, 0.1, slope=-2.0, slope_variance=0.1)
        >>> end = StepPoint(1.5, 0.25, 0.1, slope=1.0, slope_variance=0.1)
        >>> round(alpha(start, end), 6)  # of (1 − τ)²
        0.5
    """
    if not all(map(math.isfinite, (*start, *end))) or end.position <= start.position:
        return math.nan
    first, last, rounding = _fitted_slopes(start, end)
    if abs(first) <= rounding:
        return math.nan
    if last < first:
        return -1.0
    # The slopes are w₁ and w₁ + 2·w₂·t.
    try:
        return float(-last / first)
    except OverflowError:
        return math.copysign(math.inf, -first)


def distance(start: Tensor, end: Tensor) -> Tensor:
    """Return ‖end − start‖: of one step its size, of a training how far it went.

    Source: UpdateSize and Distance of Cockpit (Schneider et al., 2021,
    https://arxiv.org/abs/2102.06604).

    Args:
        start: the parameters before, of any shape.
        end: the parameters after, of the same shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> distance(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 5.0])).item()
        5.0
    """
    if start.shape != end.shape:
        raise ValueError(
            "start and end must have the same shape, but have the shapes "
            f"{tuple(start.shape)} and {tuple(end.shape)}"
        )
    change = widened(end.detach()) - widened(start.detach())
    length: Tensor = torch.linalg.vector_norm(change)
    return length


def _fitted_slopes(
    start: StepPoint, end: StepPoint
) -> Tuple[Fraction, Fraction, Fraction]:
    """Return the quadratic's slopes at both ends, and the rounding of the first.

    A quadratic fulfils 2·(f₁ − f₀) = t·(s₀ + s₁). What the four numbers miss of it,
    weighted least squares spread over them in proportion to their variances. Fractions
    do that without rounding, so what there is of it came in with the points.
    """
    t = Fraction(end.position) - Fraction(start.position)
    (f0, v0, s0, w0, e0, d0), (f1, v1, s1, w1, e1, d1) = map(_exact, (start, end))
    missing = 2 * (f1 - f0) - t * (s0 + s1)
    spread = t / (4 * (v0 + v1) + t**2 * (w0 + w1))
    part = w0 * spread
    # Of losses and slopes; of t, which the slopes are multiplied by; and of the part,
    # in which t stands three times and variances twice.
    rounding = (
        (1 - part * t) * d0
        + part * (2 * (e0 + e1) + t * d1)
        + part * _UNIT * (t * abs(s0 + s1) + 5 * abs(missing))
    )
    return s0 + part * missing, s1 + w1 * spread * missing, rounding


def _exact(point: StepPoint) -> List[Fraction]:
    """Return loss, variance, slope, variance, and the roundings of loss and slope."""
    loss, slope = Fraction(point.loss), Fraction(point.slope)
    return [
        loss,
        Fraction(point.loss_variance if point.loss_variance > 0 else LEAST_VARIANCE),
        slope,
        Fraction(point.slope_variance if point.slope_variance > 0 else LEAST_VARIANCE),
        max(Fraction(point.loss_rounding), _UNIT * abs(loss)),
        max(Fraction(point.slope_rounding), _UNIT * abs(slope)),
    ]


def _summary(values: Tensor, roundings: Tensor) -> List[Tensor]:
    """Return mean, sample variance and the mean's rounding.

    Args:
        values: [B].
        roundings: [B], what each value may be off by.
    """
    mean = values.mean()
    rounding = (
        roundings.mean() + unit_of(values, sums=len(values)) * values.abs().mean()
    )
    deviations = without_rounding(values - mean, roundings + rounding)
    return [mean, deviations.square().sum() / (len(values) - 1), rounding]
