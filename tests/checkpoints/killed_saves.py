"""Kills processes that save checkpoints, and checks what remains; run as a program.

    python -m tests.checkpoints.killed_saves SAVED SCRATCH KILLS

It first restores the checkpoints saved in SAVED. Then it kills at each write, fsync, rename, directory
creation and removal of two saves, and at KILLS random times, in directories below SCRATCH. It prints
its findings as JSON. It forks, so that only one process imports torch.
"""

import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from amber_trl.checkpoints import list_checkpoints, verify_run
from tests.checkpoints.checkpointed import Learner

_FORK = multiprocessing.get_context("fork")
_CALLS = ("rename", "replace", "write", "fsync", "mkdir", "unlink")


class Halved(io.FileIO):
    """A file that splits each write into two calls, so that a kill can fall between them."""

    def write(self, content: Any) -> int:
        half = len(content) // 2
        return os.write(self.fileno(), content[:half]) + os.write(self.fileno(), content[half:])


def kill_at_call(number: int) -> None:
    """Makes this process die before the ``number``-th of the calls."""
    count = itertools.count(1)

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted

    for name in _CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    opened = Path.open

    def halved(path: Path, mode: str = "r") -> Any:
        return Halved(path, mode) if mode == "wb" else opened(path, mode)

    setattr(Path, "open", halved)  # noqa: B010 (mypy knows no other way)


def go_on(directory: Path, saves: int, finished: Any, killed_at: int | None = None) -> None:
    """Resumes and saves; ``finished.value`` is the frame count of the last finished save."""
    torch.manual_seed(1)
    learner = Learner()
    checkpoints = learner.checkpoints(directory)
    checkpoints.restore()
    if killed_at is not None:
        kill_at_call(killed_at)
    for _ in range(saves):
        learner.step()
        checkpoints.save(learner.counter.frames, score=-learner.counter.frames)
        finished.value = learner.counter.frames


def look(directory: Path, finished: int, expected: dict[int, list[float]]) -> int:
    """Asserts that all checkpoints verify and none finished is lost; returns the newest one's frames."""
    learner = Learner()
    restored = learner.checkpoints(directory).restore()
    frames = 0 if restored is None else restored.frames
    assert finished <= frames <= finished + 10, (finished, frames)
    if restored is not None:
        assert not [problem for _, problem in verify_run(directory) if problem]
        assert learner.fingerprint() == expected[frames]
    assert sorted(directory.glob("*")) == list_checkpoints(directory)
    return frames


def fingerprints(steps: int) -> dict[int, list[float]]:
    """The uninterrupted learner's fingerprint after each step."""
    torch.manual_seed(1)
    learner, found = Learner(), {}
    for _ in range(steps):
        learner.step()
        found[learner.counter.frames] = learner.fingerprint()
    return found


def at_each_call(directory: Path) -> int:
    """Kills in the first save, and in a fourth, which removes an older one; then resumes."""
    expected, kills, place = fingerprints(5), 0, directory / "place"
    finished = _FORK.RawValue("i")
    go_on(directory / "three", 3, finished)
    for before in (0, 3):
        for number in itertools.count(1):
            if before:
                shutil.copytree(directory / "three", place)
            finished.value = 10 * before
            child = _FORK.Process(target=go_on, args=(place, 1, finished, number))
            child.start()
            child.join()
            look(place, finished.value, expected)
            go_on(place, 1, finished)
            shutil.rmtree(place)
            if child.exitcode == 0:
                break
            assert child.exitcode == -signal.SIGKILL
            kills += 1
    return kills


def at_random(directory: Path, kills: int) -> int:
    """One learner, killed again and again; it never loses more than the save in progress."""
    expected, times = fingerprints(100 * kills), random.Random(0)
    finished = _FORK.RawValue("i")
    for _ in range(kills):
        before = finished.value
        child = _FORK.Process(target=go_on, args=(directory, 100, finished))
        child.start()
        while finished.value == before and child.is_alive():
            time.sleep(0.001)
        time.sleep(times.uniform(0.0, 0.05))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        look(directory, finished.value, expected)
    return kills


def restored(directory: Path) -> list[float]:
    """Restores what another process saved."""
    learner = Learner()
    learner.checkpoints(directory).restore()
    return learner.fingerprint()


if __name__ == "__main__":
    torch.set_num_threads(1)
    saved, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    found = {
        "restored": restored(saved),
        "at_each_call": at_each_call(scratch / "calls"),
        "at_random": at_random(scratch / "random", int(sys.argv[3])),
    }
    sys.stdout.write(json.dumps(found))
