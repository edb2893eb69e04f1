"""Rounds in which all programs take turns, each in a process of its own, on one thread.

A program never ends by itself. After each iteration it calls ``report(part=seconds, ...)`` with the
time of the iteration's parts; the call returns when the next iteration may begin.
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
    """The work of one iteration, the same for every program."""

    env_id: str
    frames_per_batch: int
    epochs: int
    minibatch_size: int
    compile: bool
    device: str
    smoke: bool


class Report(Protocol):
    """Ends an iteration: takes the seconds of its parts and waits for the next."""

    def __call__(self, **parts: float) -> None:
        """Raises ``Finished`` after the last iteration."""


Program = Callable[[Workload, Report], None]
Programs = dict[str, tuple[Program, int]]
"""Programs by name, each with the number of its warm-up iterations."""
Samples = dict[str, list[dict[str, float]]]
"""By program, for every round: the seconds of the iteration (``whole``) and of its parts, and peak
memory in bytes (``peak``)."""


class Finished(Exception):  # noqa: N818
    """Ends a program after its last iteration."""


class Clock:
    """A stopwatch."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


def measure(programs: Programs, work: Workload, repeats: int, title: str) -> Samples:
    """Warms all programs up, then measures them in ``repeats`` rounds of one iteration each.

    A program that fails raises a RuntimeError with its traceback.
    """
    workers = {name: _Worker(name, program, work) for name, (program, _) in programs.items()}
    samples: Samples = {name: [] for name in programs}
    total = sum(burn_in for _, burn_in in programs.values()) + repeats * len(programs)
    try:
        with tqdm(total=total, desc=title, unit="iteration") as bar:
            for name, (_, burn_in) in programs.items():
                for _ in range(burn_in):
                    workers[name].iterate()
                    bar.update()
            for _ in range(repeats):
                for name, worker in workers.items():
                    samples[name].append(worker.iterate())
                    bar.update()
    finally:
        for worker in workers.values():
            worker.close()
    return samples


class _Worker:
    """A program in its own process, which waits while the others take their turns."""

    def __init__(self, name: str, program: Program, work: Workload) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["amber_trl", "torchrl.collectors", "torch._dynamo"])
        self._name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, program, work), daemon=True)
        self._process.start()
        theirs.close()

    def iterate(self) -> dict[str, float]:
        """Runs one iteration and returns how long it and its parts took."""
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


class _PipedReport:
    """The program's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._wait()

    def __call__(self, **parts: float) -> None:
        whole = time.perf_counter() - self._start
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # from KiB
        self._pipe.send({"whole": whole, "peak": peak, **parts})
        self._wait()

    def _wait(self) -> None:
        try:
            self._pipe.recv()
        except EOFError:
            raise Finished from None
        self._start = time.perf_counter()


def settle() -> None:
    """Makes torch use one thread, and TorchRL log only warnings."""
    torch.set_num_threads(1)
    logging.getLogger("torchrl").setLevel(logging.WARNING)


def _run(pipe: Connection, program: Program, work: Workload) -> None:
    settle()
    with open(os.devnull, "w") as nowhere:  # simulator output would break the progress bar
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    try:
        program(work, _PipedReport(pipe))
    except Finished:
        pass
    except Exception:
        pipe.send(traceback.format_exc())
