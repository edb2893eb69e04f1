"""The documentation's promises: every public name has a page and an example, and examples run."""

import importlib
import inspect
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import amber_trl

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
REFERENCE = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))

ROOMS = [
    importlib.import_module(f"amber_trl.{found.name}")
    for found in pkgutil.iter_modules(amber_trl.__path__)
    if not found.name.startswith("_")
]


def public_objects() -> dict[str, object]:
    """Each name that a room makes public, by ``room.name``."""
    return {
        f"{room.__name__}.{name}": getattr(room, name) for room in ROOMS for name in room.__all__
    }


def classes_and_functions() -> list[str]:
    """The public names that can have a docstring: constants and type aliases cannot."""
    return [
        path
        for path, thing in public_objects().items()
        if inspect.isclass(thing) or inspect.isroutine(thing)
    ]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def marked_block(name: str, page: str = README) -> str:
    """The Python block of a page between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    found = re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", page, re.DOTALL)
    assert found, f"the page lacks the markers of {name}"
    (block,) = python_blocks(found[1])
    return block


FILE = re.compile(r"# (\w+\.py)\n")
"""First line of a block that is a file."""


def follow(command: str, folder: Path) -> None:
    """Runs a command line in this process, because starting another takes seconds."""
    words = shlex.split(command)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.chdir(folder)
        if words[0] == "PYTHONPATH=.":
            patch.syspath_prepend(folder)
            words.pop(0)
        if words[0] == "python":
            words.pop(0)
            patch.syspath_prepend((folder / words[0]).parent)
        else:
            words[0] = str(Path(sys.executable).parent / words[0])
        patch.setattr(sys, "argv", words)
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as left:
            if left.code:
                raise AssertionError(command) from left


def shortened(page: Path) -> str:
    """A how-to page with commands and programs cut to a fraction of the frames and seeds."""
    text = page.read_text()
    if page.parent.name != "how_to":
        return text
    text = re.sub(r"(?<=--total-frames )\d+", lambda found: str(int(found[0]) // 50), text)
    return text.replace("2048", "128").replace("in 0 1 2;", "in 0;")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_each_room_says_what_it_is_and_has_a_reference_page(room: ModuleType) -> None:
    assert (room.__doc__ or "").strip().endswith(".")
    assert isinstance(room.__all__, list | tuple)
    assert f".. automodule:: {room.__name__}\n" in REFERENCE


@pytest.mark.parametrize("path", classes_and_functions())
def test_each_public_name_has_a_docstring_with_an_example(path: str) -> None:
    text = inspect.getdoc(public_objects()[path])
    assert text, f"{path} has no docstring"
    assert ">>> " in text, f"{path}: its docstring has no example"


def test_the_top_offers_names_of_the_rooms() -> None:
    names = {path.rpartition(".")[2] for path in public_objects()}
    assert set(amber_trl.__all__) - {"__version__"} <= names
    assert all(hasattr(amber_trl, name) for name in amber_trl.__all__)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in sorted(DOCS.rglob("*.md"))
        if page.name != "contributing.md"  # its blocks are files, tried below
        for number, block in enumerate(python_blocks(shortened(page)))
        if not FILE.match(block)
    ],
)
def test_examples_on_the_pages_run(block: str) -> None:
    threads = torch.get_num_threads()
    exec(compile(block, "<page>", "exec"), {"__name__": "__main__"})
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted((DOCS / "how_to").glob("*.md")) if "```bash" in page.read_text()],
    ids=lambda page: page.stem,
)
def test_how_to_pages_can_be_followed(page: Path, tmp_path: Path) -> None:
    """Each file of the page is saved under the name in its first line; then the commands run."""
    text = shortened(page)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for block in python_blocks(text):
        if name := FILE.match(block):
            (tmp_path / name[1]).write_text(block)
    for commands in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if page.stem in {"multi_sync_collector", "sweep"}:  # they are about processes
            with_path = f'PATH="{Path(sys.executable).parent}:$PATH"\n{commands}'
            subprocess.run(["bash", "-ec", with_path], cwd=tmp_path, check=True)
        else:
            for command in commands.replace("\\\n", "").splitlines():
                follow(command, tmp_path)


def test_the_worked_changes_of_the_contributing_page(tmp_path: Path) -> None:
    page = (DOCS / "contributing.md").read_text()
    for folder in ("amber_trl", "recipes", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path)

    def edit(file: str, old: str, new: str) -> None:
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new, 1))

    functional, metrics = "amber_trl/functional.py", "amber_trl/transforms/_metrics.py"
    tests, kl_penalty = "tests/test_functional.py", "amber_trl/objectives/kl_penalty.py"
    edit(functional, "\ndef ", f"\n{marked_block('metric-function', page)}\n\ndef ")
    edit(functional, "__all__ = [", '__all__ = [\n    "chi_square",')
    edit(metrics, "functional import ", "functional import chi_square, ")
    edit(metrics, '"kl", ', '"kl", "chi_square", ')
    edit(metrics, '    "kl": kl', '    "chi_square": chi_square,\n    "kl": kl')
    edit(tests, "    kl_estimate,", "    chi_square,\n    kl_estimate,")
    added = "(chi_square, (0.25 + 0 + 4) / 3)"
    assert added in page
    edit(tests, "        (kl_estimate,", f"        {added},\n        (kl_estimate,")
    (tmp_path / kl_penalty).write_text(marked_block("loss-class", page))
    imported = "from amber_trl.objectives.kl_penalty import AmberKLPPOLoss\n"
    edit("amber_trl/objectives/__init__.py", "from ", f"{imported}from ")
    edit("amber_trl/objectives/__init__.py", "__all__ = [", '__all__ = ["AmberKLPPOLoss", ')
    (tmp_path / "targets.py").write_text(marked_block("task", page))
    recipe = marked_block("recipe", page).replace("100_000", "4096")
    (tmp_path / "recipes/reinforce.py").write_text(recipe)
    train = ["recipes/ppo_amber_mujoco.py", "--smoke"]
    for command in (
        ["-m", "pytest", "-q", f"{tests}::test_by_hand", functional, kl_penalty],
        [*train, "--env-id", "targets:Target-v0", "--staleness-metric", "chi_square"],
        ["recipes/reinforce.py", "runs/reinforce"],
    ):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=True)


def test_readme_loop_trains() -> None:
    block = marked_block("compose").replace("2048", "256")
    assert len(block.splitlines()) <= 40, "the example is meant to be read at a glance"
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(block, "<README compose>", "exec"), scope)
    assert scope["frames"] == scope["total_frames"]
    actor = scope["actor"]
    assert isinstance(actor, torch.nn.Module)
    assert all(parameter.isfinite().all() for parameter in actor.parameters())


def test_readme_loads_a_trained_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = marked_block("load-policy")
    assert len(block.splitlines()) <= 12
    (run_dir,) = set(re.findall(r"runs/[\w.-]+", block))
    follow(f"python {ROOT}/recipes/ppo_amber_mujoco.py --smoke --run-dir {run_dir}", tmp_path)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(block, "<README load-policy>", "exec"), scope)


@pytest.mark.parametrize(
    "name", re.findall(r"`(tests/[\w/]+\.py::\w+)`", (DOCS / "equations.md").read_text())
)
def test_tests_named_beside_the_equations_exist(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^ *def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_relative_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
