"""The wheel is complete, its metadata agree, and importing it stays light."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Run in a fresh interpreter, where no test has imported anything: prints the modules that the import loaded.
PROBE = """
import socket, sys

def refuse(*args, **kwargs):
    raise RuntimeError("import used the network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import amber_trl

started = sorted({"torch", "torchrl"} & set(sys.modules))
from amber_trl import *

heavy = {"matplotlib", "tensorboard", "sphinx", "pytest", "wandb", "torch.utils.tensorboard"}
print(amber_trl.__file__)
print(amber_trl.__version__)
print(sorted(heavy & set(sys.modules)), started, amber_trl.functional.__name__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built by the declared backend without isolation, hence offline."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def recipe_files(name: str = "ppo_amber_mujoco") -> set[str]:
    """A recipe's file, and those beside it that it imports."""
    text = (ROOT / "recipes" / f"{name}.py").read_text()
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    siblings = imported & {path.stem for path in (ROOT / "recipes").glob("*.py")}
    return {f"{name}.py"}.union(*map(recipe_files, siblings))


def test_wheel_holds_the_package_the_main_recipe_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "amber_trl"
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        info = {Path(name).name for name in archive.namelist() if ".dist-info/" in name}
    assert "amber_trl/py.typed" in shipped
    assert shipped == sources | {f"amber_trl/_recipes/{name}" for name in recipe_files()}
    assert {"METADATA", "LICENSE"} <= info


# Run in an empty folder: trains, is stopped, resumes and plays, as a user of the wheel would.
STOP_AND_GO = """
import os, signal, threading, time
from pathlib import Path
from amber_trl.__main__ import main

def stop():
    table = Path("runs/Pendulum-v1-amber-seed0/iterations.csv")
    while not (table.exists() and table.read_text()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop).start()
words = ["train", "--smoke", "--env-id", "Pendulum-v1", "--total-frames", "12800"]
assert main([*words, "--no-progress"]) == 130
assert main(["train", "--resume", "runs/Pendulum-v1-amber-seed0", "--no-progress"]) == 0
assert main(["evaluate", "runs/Pendulum-v1-amber-seed0", "--episodes", "1"]) == 0
"""


def test_the_wheel_trains(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    (empty := tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STOP_AND_GO],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "wheel")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resume with --resume runs/Pendulum-v1-amber-seed0\n" in done.stdout
    assert "after 12800 frames: runs/Pendulum-v1-amber-seed0\n" in done.stdout
    assert "checkpoints/000000012800.ckpt, episodes=1" in done.stdout


def test_wheel_imports_light_and_offline(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    where, stated, heavy = probe.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert stated == version("amber_trl")
    assert heavy == "[] [] amber_trl.functional"


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("pyproject.toml", r'^version = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## \[(\d.+?)\]"),
    ],
)
def test_the_installed_version_is_the_one_stated(file: str, pattern: str) -> None:
    stated = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert stated
    assert stated[1] == version("amber_trl")


def test_metadata_state_licence_and_python_versions() -> None:
    stated = metadata("amber_trl")
    assert stated["License-Expression"] == "MIT"
    assert stated["Requires-Python"] == "<3.14,>=3.11"
    classifiers = set(stated.get_all("Classifier") or [])
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    command = re.search(
        r"^<!-- test-command -->\n```bash\n(.+)\n```\n<!-- /test-command -->$", readme, re.MULTILINE
    )
    assert command, "README.md lacks the marked one-line test command"
    assert "\n" not in command[1]
    assert "pytest" in command[1]
    assert "<!-- test-command -->" in (ROOT / ".ci" / "run").read_text()
