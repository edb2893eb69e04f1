"""Recipes as modules, for what needs no process of its own."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def ppo() -> ModuleType:
    return importlib.import_module("ppo_amber_mujoco")


@pytest.fixture(scope="session")
def a2c() -> ModuleType:
    return importlib.import_module("a2c_staleness_mujoco")
