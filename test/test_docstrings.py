"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil

import pytest

import balancer

# What needs more than PyTorch has its own tests.
APART = ("balancer.bin", "balancer.espnet", "balancer.reports")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(balancer.__path__, "balancer.")
    if not module.name.startswith(APART)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_interface_has_examples():
    finder = doctest.DocTestFinder()
    tests = {test.name: test.examples for test in finder.find(balancer.Balancer)}
    assert tests["Balancer"] and tests["Balancer.from_config"]
