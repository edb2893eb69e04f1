"""A process killed while it saves leaves checkpoints that verify, the newest of them the last."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _kill(*arguments: str) -> int:
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.killed_saves", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: what a kill leaves there is the same."""
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else tmp_path))
    yield directory
    shutil.rmtree(directory)


def test_killed_at_every_fsync_and_rename(memory: Path) -> None:
    kills = _kill("calls", str(memory))
    assert kills > 2 * 20, "each of the two saves has about twenty such calls"


def test_killed_at_random_times(memory: Path) -> None:
    assert _kill("random", str(memory), "20") == 20
