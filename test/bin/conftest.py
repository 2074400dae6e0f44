"""The fixtures of trainings.py."""

from trainings import data, decode, train, trained, trained_tts  # noqa: F401
