"""Losses to gradients: the graphs, the walks through them, and float16 on the way."""
