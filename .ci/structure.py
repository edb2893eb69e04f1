"""Checks the structure of the project: lines, public names, and which room may import which.

The budgets are the numbers below. A change that needs more raises the number, and says so in the
changelog. Run it from anywhere: ``python .ci/structure.py``; it prints a table and exits with 1 if
anything is over its budget.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LINES = {
    # The house; then the losses of DISC, GePPO and GIPO, and the verbs of a run; then recomputed advantages,
    # shares and a controller (720), hooks, own actors and loggers (640), wrappers and reward scaling (300).
    # Devices, and mistakes in the names of columns (20); examples that run as they are copied (60); what a
    # failed end or resume of a run leaves, and simulators that cannot be restored (30).
    "amber_trl": 9_000 + 560 + 1_360 + 20 + 60 + 30,
    "recipes": 3_900
    + 1_470,  # TRPO and ACER (510), options of the above (520), page and words of the study (440)
    "tests": 13_500 + 2_410,  # of the above
    "recipes/ppo_amber_mujoco.py": 200,
    "README.md": 220,
}
NAMES = {"amber_trl": 21, "amber_trl/evaluation": 9}  # __version__ among those of amber_trl

# Lowest room first. A room may import those on lines above its own, never one on its line or below.
ROOMS = (
    ("errors", "_checks", "_provenance", "_terminal"),
    ("functional", "_compiler", "_actors"),
    ("transforms", "modules", "envs"),
    ("data", "objectives"),
    ("collectors",),
    ("training",),
    ("checkpoints",),
    ("runs",),
    ("evaluation",),
    ("__init__", "__main__"),
)
RECIPES = {path.stem for path in (ROOT / "recipes").iterdir()}
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}


def lines(place: str) -> int:
    """Lines of a file, or of all Python files below a folder."""
    path = ROOT / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return sum(len(file.read_text().splitlines()) for file in files)


def public_names(package: str) -> list[str]:
    """What the ``__all__`` of a package lists."""
    for node in ast.parse((ROOT / package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def modules() -> dict[str, ast.Module]:
    """Syntax tree of each module of the library, by its dotted name."""
    found = {}
    for path in sorted((ROOT / "amber_trl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts)] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The library's own modules that a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] in RECIPES:
                yield name
            while name.startswith("amber_trl"):
                if name in known or f"{name}.__init__" in known:
                    yield name if name in known else f"{name}.__init__"
                    break
                name = name.rpartition(".")[0]


def room(module: str) -> str:
    """The room that a module is in: the part of its name below the package."""
    return module.split(".")[1]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    done: set[str] = set()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for other in sorted(graph.get(module, ())):
                if found := search(other, [*path, module]):
                    return found
            done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := search(module, []))), [])


def problems() -> Iterator[str]:
    """What is over its budget or imports what it must not, in one line each."""
    for place, budget in LINES.items():
        if (count := lines(place)) > budget:
            yield f"{place} has {count} lines; its budget is {budget}"
    for package, budget in NAMES.items():
        if (count := len(public_names(package))) > budget:
            yield f"{package} has {count} public names; its budget is {budget}"
    trees = modules()
    graph = {name: set(imports(tree, set(trees))) for name, tree in trees.items()}
    for module, imported in graph.items():
        for other in sorted(imported):
            if not other.startswith("amber_trl."):
                yield f"{module} imports {other}, a recipe"
            elif RANK[room(other)] >= RANK[room(module)] and room(other) != room(module):
                yield f"{module} imports {other}, which is not in a lower room"
    if found := circle(graph):
        yield "imports go in a circle: " + " -> ".join(found)


def main() -> int:
    """Prints lines by room and budgets, then problems; returns the exit code."""
    places = [path for path in sorted((ROOT / "amber_trl").iterdir()) if path.suffix != ".typed"]
    for path in places:
        if count := lines(str(path.relative_to(ROOT))):
            sys.stdout.write(f"{path.relative_to(ROOT)!s:40} {count:6}\n")
    for place, budget in LINES.items():
        sys.stdout.write(f"{place:40} {lines(place):6} lines, at most {budget}\n")
    for package, budget in NAMES.items():
        sys.stdout.write(f"{package:40} {len(public_names(package)):6} names, at most {budget}\n")
    found = list(problems())
    for problem in found:
        sys.stderr.write(f"error: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
