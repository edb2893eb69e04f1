"""Trainings of the main recipe in separate processes, stopped and compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amber_trl.checkpoints import list_checkpoints, read_component

RECIPE = Path(__file__).parents[2] / "recipes" / "ppo_amber_mujoco.py"
INTERRUPTED = 128 + signal.SIGTERM


def start(log: Path, *options: str) -> subprocess.Popen[bytes]:
    """Starts the recipe; its output is appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(RECIPE), "--no-progress", *options],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def finish(log: Path, *options: str) -> None:
    """Runs the recipe to its end.

    Raises:
        RuntimeError: if it ends with an error.
    """
    if code := start(log, *options).wait():
        raise RuntimeError(f"exit code {code}: see {log}")


def stop_after(rows: int, run_dir: Path, log: Path, *options: str) -> None:
    """Runs the recipe, and sends SIGTERM once ``iterations.csv`` has that many rows.

    Raises:
        RuntimeError: if it ends in another way.
    """
    process = start(log, *options)
    while process.poll() is None and iterations(run_dir) < rows:
        time.sleep(0.002)
    process.terminate()
    if (code := process.wait()) != INTERRUPTED:
        raise RuntimeError(f"exit code {code}, not {INTERRUPTED}: see {log}")


def iterations(run_dir: Path) -> int:
    """Rows of ``iterations.csv``, the header not counted."""
    table = run_dir / "iterations.csv"
    return max(0, table.read_bytes().count(b"\n") - 1) if table.exists() else 0


def differences(one: Path, other: Path) -> list[str]:
    """The results that differ between two runs: tables by byte, states by bit."""
    found = [
        name
        for name in ("episodes.csv", "iterations.csv")
        if (one / name).read_bytes() != (other / name).read_bytes()
    ]
    ours, theirs = (list_checkpoints(run / "checkpoints")[-1] for run in (one, other))
    for name in ("loss", "optimizer", "schedule", "generators"):
        if not same(read_component(ours, name), read_component(theirs, name)):
            found.append(name)
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def short(run_dir: Path, options: Sequence[str] = ()) -> list[str]:
    """Options of a short run into ``run_dir``."""
    return ["--smoke", "--run-dir", str(run_dir), *options]
