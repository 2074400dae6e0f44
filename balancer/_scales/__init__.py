"""Norms to scales: options, weights, what is remembered, and the rule."""
