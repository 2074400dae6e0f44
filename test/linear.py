"""Losses with chosen gradients, for tests."""

import torch

DOUBLE = torch.float64


def linear_losses(y, grads):
    """Losses whose gradients with respect to y are the given tensors."""
    return {name: (y * grad).sum() for name, grad in grads.items()}


def random_grads(
    seed, names=("a", "b", "c"), shape=(3, 2, 4), spread=4.0, dtype=DOUBLE
):
    """Gradients by name, of sizes from 10^-spread to 10^spread."""
    generator = torch.Generator().manual_seed(seed)
    grads = {}
    for name in names:
        exponent = spread * (2 * torch.rand((), generator=generator).item() - 1)
        grad = torch.randn(shape, generator=generator, dtype=DOUBLE)
        grads[name] = (grad * 10**exponent).to(dtype)
    return grads
