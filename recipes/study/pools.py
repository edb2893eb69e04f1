"""What makes the runs: processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from study import runs
from study.grid import Job

THREADS = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Environment of a process that makes a run, on one core."""


@dataclass(frozen=True)
class Ended:
    """An attempt at a run is over."""

    job: Job
    problem: str | None = None
    """What went wrong, in a line; None if nothing did, or the run was asked to stop."""
    again: bool = False
    """Whether another attempt will be made."""


class Pool(Protocol):
    """Makes runs, several at a time."""

    def run(self, jobs: Sequence[Job]) -> Generator[Ended | None]:
        """Makes all of them; yields each attempt's end, and None now and then in between."""

    def stop(self) -> None:
        """Has the runs end after their iteration, and starts no others."""


@dataclass
class _Attempt:
    job: Job
    number: int
    process: BaseProcess
    pipe: Connection


class LocalPool:
    """Makes each run in a process of its own, in a session of its own, on one thread.

    A process that dies before it could say how its run went (killed, out of memory) is replaced,
    up to ``retries`` times per run. An error is no reason to try again: it would come back.

    Args:
        workers: runs at a time.
        retries: further attempts at a run whose process died.
    """

    def __init__(self, workers: int, retries: int) -> None:
        self._workers, self._retries = workers, retries
        self._context = multiprocessing.get_context("spawn")
        self._attempts: list[_Attempt] = []
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> Generator[Ended | None]:
        """Makes all of them; yields each attempt's end, and None once a second in between."""
        waiting = deque((job, 0) for job in jobs)
        try:
            while self._attempts or (waiting and not self._stopping):
                while waiting and len(self._attempts) < self._workers and not self._stopping:
                    self._attempts.append(self._start(*waiting.popleft()))
                wait([attempt.process.sentinel for attempt in self._attempts], timeout=1)
                for attempt in [a for a in self._attempts if a.process.exitcode is not None]:
                    self._attempts.remove(attempt)
                    ended = self._ended(attempt)
                    if ended.again:
                        waiting.appendleft((attempt.job, attempt.number + 1))
                    yield ended
                yield None
        finally:
            for attempt in self._attempts:
                attempt.process.kill()
                attempt.process.join()

    def stop(self) -> None:
        """Has the runs end after their iteration, and starts no others."""
        self._stopping = True
        for attempt in self._attempts:
            with suppress(ProcessLookupError):
                # Not SIGINT, which a shell's background jobs ignore.
                os.kill(attempt.process.pid or 0, signal.SIGTERM)

    def _start(self, job: Job, number: int) -> _Attempt:
        pipe, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_make, args=(job, theirs))
        process.start()
        theirs.close()
        return _Attempt(job, number, process, pipe)

    def _ended(self, attempt: _Attempt) -> Ended:
        with attempt.pipe as pipe, suppress(EOFError):
            return Ended(attempt.job, pipe.recv())
        if self._stopping:
            return Ended(attempt.job)
        problem = f"its process died ({_cause(attempt.process.exitcode)})"
        return Ended(attempt.job, problem, again=attempt.number < self._retries)


def _make(job: Job, pipe: Connection) -> None:
    os.setsid()  # a terminal's Ctrl-C goes to the parent alone, which passes it on once
    pipe.send(runs.make(job))


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
