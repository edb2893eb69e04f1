"""Runs recipes, in this process and in their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


def run_script(
    recipe: str,
    *options: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Runs a recipe in its own process, which can import the tests' modules."""
    command = [sys.executable, str(RECIPES / f"{recipe}.py"), *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(RECIPES.parent), **env}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def run_main(recipe: ModuleType, *words: str | Path) -> Any:
    """Runs a command line in this process; returns the exit code, or the error message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{recipe.__name__}.py", *map(str, words)])
        try:
            return recipe.main()
        except SystemExit as left:
            return left.code
