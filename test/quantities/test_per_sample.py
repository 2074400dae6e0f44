"""Per-sample gradients of one layer, and the layer as it was before."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from balancer.quantities.per_sample import per_sample_gradients

LAYERS = {
    "conv": lambda: nn.Conv1d(3, 4, 5, padding=2, padding_mode="reflect"),
    "grouped": lambda: nn.Conv1d(3, 6, 4, stride=2, groups=3, dilation=2),
    "transposed": lambda: nn.ConvTranspose1d(3, 2, 4, stride=3, output_padding=1),
    "linear": lambda: nn.Linear(9, 2),
    "group norm": lambda: nn.GroupNorm(1, 3),
    "embedding": lambda: nn.Embedding(7, 2),
    "weight_norm": lambda: weight_norm(nn.ConvTranspose1d(3, 2, 4)),
    "spectral_norm": lambda: spectral_norm(nn.Conv1d(3, 2, 5)),
    "parametrized weight_norm": lambda: parametrizations.weight_norm(nn.Linear(9, 2)),
    "parametrized spectral_norm": lambda: parametrizations.spectral_norm(
        nn.Conv1d(3, 2, 5)
    ),
}


@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_equal_plain_gradients_and_leave_no_trace(kind, batch):
    """No warning, no buffer of a running norm moved on, no attribute changed."""
    torch.manual_seed(0)
    layer = LAYERS[kind]().double()
    x = torch.randn(batch, 3, 9, dtype=torch.float64)
    if kind == "embedding":
        x = torch.randint(7, (batch, 9))
    cotangent = torch.randn_like(layer(x))
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    attributes = {**layer.__dict__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = per_sample_gradients(layer, x, cotangent)
    assert layer.__dict__ == attributes
    assert all(torch.equal(layer.state_dict()[key], state[key]) for key in state)
    if "spectral" in kind:  # once its iteration stands, it is a function
        for _ in range(300):
            layer(x)
        rows = per_sample_gradients(layer, x, cotangent)
    parameters = list(layer.parameters())
    assert rows.shape == (batch, sum(p.numel() for p in parameters))
    for row, sample, outer in zip(rows, x.split(1), cotangent.split(1)):
        grads = torch.autograd.grad(layer(sample), parameters, outer)
        expected = torch.cat([grad.flatten() for grad in grads])
        torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-12)
