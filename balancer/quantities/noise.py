"""Statistics of per-sample gradients: how much of a loss's gradient is noise.

Each function here takes `grads`, [B, D], of any floating dtype, whose row b is the
gradient g_b of sample b's own loss (not divided by B) with respect to D parameters, and
returns a tensor without axes, float64 (float32 on Apple's MPS), on the device of
`grads`. g = mean_b g_b is the gradient of the mean loss, and Var_d the variance of
element d over the samples, with B−1 unless a formula says otherwise.

One sample alone, or gradients that are all zero, say nothing about noise: each function
but `grad_norm` returns nan there, and does not warn. An element of g, or of g_b − g,
that is no more than the rounding of `grads` counts as zero. Where all of g is zero,
`norm_test` and `critical_batch_size` are inf, `inner_product_test` and
`orthogonality_test` nan. A wrong shape raises ValueError.

All but the critical batch size are quantities of Cockpit (Schneider et al., 2021,
"Cockpit: a practical debugging tool for the training of deep neural networks",
https://arxiv.org/abs/2102.06604).
"""

import math
from typing import Any, Tuple

import torch
from torch import Tensor

from balancer._gradients.precision import widened
from balancer.quantities.rounding import unit_of, without_rounding


def grad_norm(grads: Tensor) -> Tensor:
    """Return the norm of the mean gradient, ‖g‖.

    Args:
        grads: [B, D], per-sample gradients.

    Example:
        >>> grad_norm(torch.tensor([[2.0, 4.0], [4.0, 4.0]])).item()
        5.0
    """
    norm: Tensor = torch.linalg.vector_norm(_rows(grads).mean(0))
    return norm


def norm_test(grads: Tensor) -> Tensor:
    """Return the largest θ for which the batch passes the norm test.

        sqrt( Σ_b ‖g_b − g‖² / ((B−1) B ‖g‖²) )

    Source: Byrd et al., 2012, "Sample size selection in optimization methods for
    machine learning", eq. 3.9. It is the expected error of g relative to its norm:
    above 1 the step is mostly noise, and a larger batch would help.

    Args:
        grads: [B, D], per-sample gradients.

    Example:
        >>> norm_test(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).item()
        2.0
    """
    mean, deviations = _split(grads)
    noise = _variances(deviations).sum() / len(grads)
    return _defined((noise / mean.square().sum()).sqrt(), grads)


def inner_product_test(grads: Tensor) -> Tensor:
    """Return the largest θ for which the batch passes the inner product test.

        sqrt( Var_b(g_bᵀg) / (B ‖g‖⁴) )

    Source: Bollapragada et al., 2017, "Adaptive sampling strategies for stochastic
    optimization" (https://arxiv.org/abs/1710.11258), eq. 2.6. It says how far the
    samples disagree along g: small if nearly all of them descend when g is followed.

    Args:
        grads: [B, D], per-sample gradients.

    Example:
        >>> inner_product_test(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).item()
        0.0
    """
    mean, deviations = _split(grads)
    variance = _variances(deviations @ mean)
    fourth = mean.square().sum().square()
    return _defined((variance / (len(grads) * fourth)).sqrt(), grads)


def orthogonality_test(grads: Tensor) -> Tensor:
    """Return the largest ν for which the batch passes the orthogonality test.

        sqrt( Σ_b ‖g_b − (g_bᵀg / ‖g‖²) g‖² / ((B−1) B ‖g‖²) )

    Source: Bollapragada et al., 2017, "Adaptive sampling strategies for stochastic
    optimization" (https://arxiv.org/abs/1710.11258), eq. 3.3. It says how far the
    samples disagree across g. Its square and that of the inner product test add up to
    that of the norm test.

    Args:
        grads: [B, D], per-sample gradients.

    Example:
        >>> orthogonality_test(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).item()
        2.0
    """
    mean, deviations = _split(grads)
    square = mean.square().sum()
    across = deviations - torch.outer(deviations @ mean / square, mean)
    noise = _variances(across).sum() / len(grads)
    return _defined((noise / square).sqrt(), grads)


def mean_gsnr(grads: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return the mean gradient signal-to-noise ratio of the parameters.

        mean_d( g_d² / (mean_b g_bd² − g_d² + ε) )

    Source: Liu et al., 2020, "Understanding why neural networks generalize well through
    GSNR of parameters" (https://arxiv.org/abs/2001.07384), the definition of the GSNR.
    High values go with good generalization.

    Args:
        grads: [B, D], per-sample gradients.
        epsilon: ε, added to each variance (of the unit of a squared gradient).

    Example:
        >>> mean_gsnr(torch.tensor([[1.0, 3.0], [1.0, -1.0]]), epsilon=1.0).item()
        0.6
    """
    mean, deviations = _split(grads)
    return _defined(
        (mean.square() / (deviations.square().mean(0) + epsilon)).mean(), grads
    )


def cabs(grads: Tensor, lr: float, loss: float) -> Tensor:
    """Return the batch size that the CABS rule suggests.

        lr · Σ_d Var_d / loss, the variances with B in place of B−1

    Source: Balles et al., 2017, "Coupling adaptive batch sizes with learning rates"
    (https://arxiv.org/abs/1612.05086), eq. 22. It is derived for SGD and a loss whose
    minimum is 0.

    Args:
        grads: [B, D], per-sample gradients.
        lr: the learning rate.
        loss: the mean loss.

    Example:
        >>> cabs(torch.tensor([[1.0, 2.0], [1.0, -2.0]]), lr=0.5, loss=0.25).item()
        8.0
    """
    _, deviations = _split(grads)
    whole = deviations.square().mean(0).sum()
    return _defined(_number("lr", lr) * whole / _number("loss", loss), grads)


def early_stopping(grads: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return the evidence-based criterion to stop: above 0, stop.

        1 − B · mean_d( g_d² / (Var_d + ε) )

    Source: Mahsereci et al., 2017, "Early stopping without a validation set"
    (https://arxiv.org/abs/1703.09580), eq. 7. Above 0 the gradient is no larger than
    what noise alone would make it.

    Args:
        grads: [B, D], per-sample gradients.
        epsilon: ε, added to each variance (of the unit of a squared gradient).

    Example:
        >>> early_stopping(torch.tensor([[1.0], [0.0]]), epsilon=0.0).item()
        0.0
    """
    mean, deviations = _split(grads)
    ratios = mean.square() / (_variances(deviations) + epsilon)
    return _defined(1 - len(grads) * ratios.mean(), grads)


def tic_trace(grads: Tensor, curvature_trace: float, epsilon: float = 1e-7) -> Tensor:
    """Return the Takeuchi information criterion, approximated by traces.

        Σ_b ‖g_b‖² / B / (trace + ε)

    Source: Thomas et al., 2020, "On the interplay between noise and curvature and its
    effect on optimization and generalization" (https://arxiv.org/abs/1906.07774). An
    estimate of the gap between training and test loss near a minimum.

    Args:
        grads: [B, D], per-sample gradients.
        curvature_trace: the trace of the mean loss's Hessian or Gauss-Newton matrix.
        epsilon: ε, added to the trace.

    Example:
        >>> tic_trace(torch.tensor([[1.0], [3.0]]), 2.0, epsilon=0.0).item()
        2.5
    """
    squares = _rows(grads).square().sum(1).mean()
    trace = _number("curvature_trace", curvature_trace)
    return _defined(squares / (trace + epsilon), grads)


def tic_diag(grads: Tensor, curvature_diag: Tensor, epsilon: float = 1e-7) -> Tensor:
    """Return the Takeuchi information criterion, approximated by diagonals.

        Σ_d mean_b g_bd² / (diag_d + ε)

    Source: Thomas et al., 2020, "On the interplay between noise and curvature and its
    effect on optimization and generalization" (https://arxiv.org/abs/1906.07774).

    Args:
        grads: [B, D], per-sample gradients.
        curvature_diag: [D], the diagonal of the mean loss's Hessian or Gauss-Newton
            matrix.
        epsilon: ε, added to each element of the diagonal.

    Example:
        >>> diag = torch.tensor([1.0, 2.0])
        >>> tic_diag(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), diag, epsilon=0.0).item()
        7.0
    """
    squares = _rows(grads).square().mean(0)
    if curvature_diag.shape != squares.shape:
        raise ValueError(
            "curvature_diag must be [D], an element for each column of grads, but has "
            f"shape {tuple(curvature_diag.shape)} where grads has {tuple(grads.shape)}"
        )
    return _defined((squares / (curvature_diag.to(squares) + epsilon)).sum(), grads)


def critical_batch_size(grads: Tensor) -> Tensor:
    """Return the simple gradient noise scale, an estimate of the critical batch size.

        tr Σ / ‖g‖², where Σ is the samples' covariance, with B−1

    Source: McCandlish et al., 2018, "An empirical model of large-batch training"
    (https://arxiv.org/abs/1812.06162), eq. 2.9. Well below it a batch twice as large
    halves the number of steps; well above it, it hardly helps. ‖g‖² holds noise of
    about tr Σ / B itself, so of a batch much smaller than the result, the result is too
    small.

    Args:
        grads: [B, D], per-sample gradients.

    Example:
        >>> critical_batch_size(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).item()
        8.0
    """
    mean, deviations = _split(grads)
    return _defined(_variances(deviations).sum() / mean.square().sum(), grads)


def _rows(grads: Tensor) -> Tensor:
    if grads.dim() != 2:
        raise ValueError(
            "grads must be [B, D], a row for each sample, but has shape "
            f"{tuple(grads.shape)}"
        )
    return widened(grads.detach())


def _number(name: str, value: Any) -> float:
    """Return a number, which may be a tensor that holds one and no more."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(
            f"{name} must be one number, but is a tensor of shape {tuple(value.shape)}"
        )
    return float(value)


def _split(grads: Tensor) -> Tuple[Tensor, Tensor]:
    """Return g, [D], and the deviations g_b − g, [B, D], zero where they are rounding.

    Samples that cancel and samples that agree leave nothing else, and its inverse would
    be a number that means nothing.
    """
    rows = _rows(grads)
    unit = unit_of(grads, sums=len(grads))
    sizes = unit * rows.abs()
    bound = sizes.mean(0)
    mean = without_rounding(rows.mean(0), bound)
    return mean, without_rounding(rows - mean, sizes + bound)


def _variances(deviations: Tensor) -> Tensor:
    """Return the sample variances over axis 0; torch.var would warn of one sample."""
    return deviations.square().sum(0) / (len(deviations) - 1)


def _defined(value: Tensor, grads: Tensor) -> Tensor:
    """Return the value, or nan where the gradients can say nothing about noise."""
    if len(grads) < 2:
        return torch.full_like(value, math.nan)
    return torch.where(grads.any(), value, math.nan)
