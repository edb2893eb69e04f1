"""Recipes as modules, for what needs no process of its own."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def load_recipe(name: str) -> ModuleType:
    """Imports a recipe from its file, under its own name, once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def ppo() -> ModuleType:
    return load_recipe("ppo_amber_mujoco")


@pytest.fixture(scope="session")
def a2c() -> ModuleType:
    return load_recipe("a2c_staleness_mujoco")
