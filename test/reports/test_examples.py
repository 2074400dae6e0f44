"""Every example in a docstring of the reports runs."""

import doctest
import importlib
import pkgutil

import pytest

from balancer import reports

MODULES = [module.name for module in pkgutil.iter_modules(reports.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"balancer.reports.{name}")
    assert not doctest.testmod(module).failed
