"""Every example in a docstring of what stands on ESPnet runs."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["layout", "tables"])
def test_examples(name):
    results = doctest.testmod(importlib.import_module(f"balancer.espnet.{name}"))
    assert results.attempted and not results.failed
