"""A process killed while saving leaves checkpoints that verify, including the last finished one."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.checkpointed import stepped

ROOT = Path(__file__).parents[2]
KILLS = 20


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The killing program's findings, and what it should have restored before."""
    torch.manual_seed(0)
    saved = tmp_path_factory.mktemp("saved")
    _, fingerprints = stepped(saved, 2)
    shared = Path("/dev/shm")  # a kill leaves the same files in memory, only faster
    scratch = tempfile.mkdtemp(dir=shared if shared.is_dir() else saved.parent)
    program = [sys.executable, "-W", "ignore", "-m", "tests.checkpoints.killed_saves"]
    words = [*program, str(saved), scratch, str(KILLS)]
    try:
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900)
    finally:
        shutil.rmtree(scratch)
    assert run.returncode == 0, run.stderr
    return {**json.loads(run.stdout), "saved": fingerprints[-1]}


def test_another_process_restores(found: dict[str, Any]) -> None:
    assert found["restored"] == found["saved"]


def test_killed_at_every_write_fsync_rename_and_removal(found: dict[str, Any]) -> None:
    # The first save: mkdir, fsync, four writes, fsync, rename, fsync. The fourth has no mkdir and no
    # fsync after it, but a removal.
    assert found["at_each_call"] == 9 + 8


def test_killed_at_random_times(found: dict[str, Any]) -> None:
    assert found["at_random"] == KILLS
