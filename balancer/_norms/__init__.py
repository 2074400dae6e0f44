"""Gradients to norms: over batch items, over ranks, and over time."""
