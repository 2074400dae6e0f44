"""Quantities that tell how a training goes, of gradients and of steps.

The functions take tensors and need no balancer: statistics of per-sample gradients
(`noise`), their histograms (`histograms`) and how far a step went (`step_length`). The
probe (`probe`) takes some of them of each loss as a balancer trains, and `outside`
weighs the balanced losses against those beside them. Names below are the public ones.

Most are quantities of Cockpit (Schneider et al., 2021, "Cockpit: a practical debugging
tool for the training of deep neural networks", https://arxiv.org/abs/2102.06604).
"""

from balancer.quantities.histograms import grad_hist_1d, grad_hist_2d
from balancer.quantities.noise import (
    cabs,
    critical_batch_size,
    early_stopping,
    grad_norm,
    inner_product_test,
    mean_gsnr,
    norm_test,
    orthogonality_test,
    tic_diag,
    tic_trace,
)
from balancer.quantities.outside import OutsideRatio
from balancer.quantities.step_length import StepPoint, alpha, distance

__all__ = [
    "OutsideRatio",
    "StepPoint",
    "alpha",
    "cabs",
    "critical_batch_size",
    "distance",
    "early_stopping",
    "grad_hist_1d",
    "grad_hist_2d",
    "grad_norm",
    "inner_product_test",
    "mean_gsnr",
    "norm_test",
    "orthogonality_test",
    "tic_diag",
    "tic_trace",
]
