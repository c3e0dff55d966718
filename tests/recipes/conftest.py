"""What tests of the recipes share."""

import importlib
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "organic_1"


@pytest.fixture
def recipe(monkeypatch):
    """Imports a module of recipes/organic_1, which are scripts beside each other and no package."""
    monkeypatch.syspath_prepend(str(RECIPE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(RECIPE) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
