"""Shared test tools: losses that count the backward passes that walk through them."""

import pytest
import torch


class Walks:
    """Counts, by name, how often a backward passed through a node."""

    def __init__(self):
        self.counts = {}

    def through(self, name, tensor):
        """Return the tensor, with a node behind it that counts."""
        return _Count.apply(tensor, name, self)

    def take(self):
        """Return the counts and begin anew."""
        counts, self.counts = self.counts, {}
        return counts


class _Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, walks):
        ctx.name, ctx.walks = name, walks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        ctx.walks.counts[ctx.name] = ctx.walks.counts.get(ctx.name, 0) + 1
        return grad, None, None


@pytest.fixture
def walks():
    return Walks()
