"""Histograms of per-sample gradients, alone and against the parameters."""

from typing import Tuple

import torch
from torch import Tensor

from balancer._gradients.precision import widened

Range = Tuple[float, float]


def grad_hist_1d(grads: Tensor, bins: int, range: Range) -> Tuple[Tensor, Tensor]:
    """Return how often which gradient element occurs.

    Source: Cockpit (Schneider et al., 2021, https://arxiv.org/abs/2102.06604). Elements
    outside of the range count in the border bins; nan counts nowhere.

    Args:
        grads: per-sample gradients, of any shape.
        bins: the number of bins, at least 1.
        range: the lowest and the highest edge.

    Returns:
        The counts, int64 [bins], and the edges, float64 [bins + 1]. A bin holds its
        lower edge, and the last one its upper edge too.

    Raises:
        ValueError: bins is below 1, or the range is empty or not finite.

    Example:
        >>> grads = torch.tensor([[-5.0, 0.1], [0.2, 0.9]])
        >>> grad_hist_1d(grads, 2, (0.0, 1.0))[0].tolist()
        [3, 1]
    """
    flat = widened(grads.detach()).flatten().contiguous()
    edges = _edges(flat, bins, range)
    bin_of = _bin_of(flat, edges)[~flat.isnan()]
    return torch.bincount(bin_of, minlength=bins), edges


def grad_hist_2d(
    grads: Tensor,
    params: Tensor,
    bins: Tuple[int, int],
    range: Tuple[Range, Range],
) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:
    """Return how often which gradient element occurs at which parameter value.

    Source: Cockpit (Schneider et al., 2021, https://arxiv.org/abs/2102.06604). Elements
    outside of a range count in the border bins; nan counts nowhere.

    Args:
        grads: [B, D], per-sample gradients.
        params: [D], the parameters' values.
        bins: the numbers of bins for gradients and for parameters, at least 1.
        range: the lowest and highest edges for gradients and for parameters.

    Returns:
        The counts, int64 [bins[0], bins[1]], and the edges for gradients, float64
        [bins[0] + 1], and for parameters, [bins[1] + 1].

    Raises:
        ValueError: params does not fit grads, bins is below 1, or a range is empty or
            not finite.

    Example:
        >>> grads = torch.tensor([[-1.0, 0.5], [0.7, 9.0]])
        >>> params = torch.tensor([3.0, -3.0])
        >>> counts, _ = grad_hist_2d(grads, params, (2, 2), ((-1, 1), (-4, 4)))
        >>> counts.tolist()
        [[0, 1], [2, 1]]
    """
    if grads.dim() != 2 or params.shape != grads.shape[1:]:
        raise ValueError(
            "grads must be [B, D] and params [D], but have the shapes "
            f"{tuple(grads.shape)} and {tuple(params.shape)}"
        )
    values = [
        widened(tensor.detach()).flatten().contiguous()
        for tensor in (grads, params.expand_as(grads))
    ]
    edges = [_edges(values[0], count, ends) for count, ends in zip(bins, range)]
    rows, columns = map(_bin_of, values, edges)
    known = ~(values[0].isnan() | values[1].isnan())
    counts = torch.bincount(
        (rows * bins[1] + columns)[known], minlength=bins[0] * bins[1]
    )
    return counts.view(bins[0], bins[1]), (edges[0], edges[1])


def _edges(values: Tensor, bins: int, range: Range) -> Tensor:
    low, high = range
    if bins < 1:
        raise ValueError(f"bins must be at least 1, but is {bins}")
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(f"range must be finite and rise, but is {(low, high)}")
    # Of half the range, since the whole may be wider than the largest number.
    halves = torch.linspace(
        low / 2, high / 2, bins + 1, dtype=values.dtype, device=values.device
    )
    return 2 * halves


def _bin_of(values: Tensor, edges: Tensor) -> Tensor:
    """Return the number of each value's bin."""
    return torch.bucketize(values, edges[1:-1], right=True)
