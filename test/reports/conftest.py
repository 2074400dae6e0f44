"""The fixtures of trainings.py."""

from trainings import data, decode, train, trained  # noqa: F401
