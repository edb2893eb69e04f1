"""Programs that take turns, each in a process of its own, on one thread.

A program never ends by itself. After each iteration it calls ``turn(part=seconds, ...)``, which
reports how long parts of the iteration took, and returns when the next may begin.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

import torch
from tqdm import tqdm


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What every program has to do in an iteration."""

    env_id: str
    frames_per_batch: int
    epochs: int
    minibatch_size: int
    device: str


class Turn(Protocol):
    """Reports the parts of an iteration, in seconds, and waits for the next."""

    def __call__(self, **parts: float) -> None:
        """Ends one iteration, and begins the next; raises ``Finished`` where there is none."""


Program = Callable[[Workload, Turn], None]
Programs = dict[str, tuple[Program, int]]
"""By name, each with the number of its iterations before the first that counts."""
Samples = dict[str, list[dict[str, float]]]
"""By name: for every round the seconds of the iteration (whole, and parts), and peak bytes."""


class Finished(Exception):  # noqa: N818
    """Ends a program that has had its last turn."""


class Clock:
    """Seconds since it was last asked."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def measure(programs: Programs, work: Workload, repeats: int, title: str) -> Samples:
    """Has all programs take turns.

    Args:
        programs: what to measure.
        work: what an iteration has to do.
        repeats: number of rounds that count, in each of which every program has one turn.
        title: shown on the progress bar.

    Raises:
        RuntimeError: a program failed.
    """
    workers = {name: _Worker(name, program, work) for name, (program, _) in programs.items()}
    samples: Samples = {name: [] for name in programs}
    total = sum(burn_in for _, burn_in in programs.values()) + repeats * len(programs)
    try:
        with tqdm(total=total, desc=title, unit="turn") as bar:
            for name, (_, burn_in) in programs.items():
                for _ in range(burn_in):
                    workers[name].turn()
                    bar.update()
            for _ in range(repeats):
                for name, worker in workers.items():
                    samples[name].append(worker.turn())
                    bar.update()
    finally:
        for worker in workers.values():
            worker.close()
    return samples


class _Worker:
    """A program in a process of its own, which rests except in its turn."""

    def __init__(self, name: str, program: Program, work: Workload) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["amber_trl", "torchrl.collectors", "torch._dynamo"])
        self._name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, program, work), daemon=True)
        self._process.start()
        theirs.close()

    def turn(self) -> dict[str, float]:
        """Runs one iteration, and says how long it took."""
        try:
            self._pipe.send(None)
            answer = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            answer = f"its process ended with exit code {self._process.exitcode}"
        if isinstance(answer, str):
            raise RuntimeError(f"{self._name} failed: {answer}")
        return dict(answer)

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


class _Turns:
    """The other end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._wait()

    def __call__(self, **parts: float) -> None:
        whole = time.perf_counter() - self._start
        self._pipe.send({"whole": whole, "peak": peak_bytes(), **parts})
        self._wait()

    def _wait(self) -> None:
        try:
            self._pipe.recv()
        except EOFError:
            raise Finished from None
        self._start = time.perf_counter()


def settle() -> None:
    """Makes torch use one thread, and its libraries keep quiet."""
    torch.set_num_threads(1)
    logging.getLogger("torchrl").setLevel(logging.WARNING)


def _run(pipe: Connection, program: Program, work: Workload) -> None:
    settle()
    with open(os.devnull, "w") as nowhere:  # what simulators say would break the progress bar
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    try:
        program(work, _Turns(pipe))
    except Finished:
        pass
    except Exception:
        pipe.send(traceback.format_exc())


def peak_bytes() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
