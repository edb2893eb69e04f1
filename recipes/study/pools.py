"""Makes several runs at a time, in processes on this machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from subprocess import Popen

from amber_trl.runs import StopOnInterrupt
from study import runs
from study.grid import Job


@dataclass(frozen=True)
class Ended:
    """The end of an attempt at a run."""

    job: Job
    problem: str | None
    """What went wrong, in one line; None if nothing did or the run was asked to stop."""
    again: bool = False
    """Whether another attempt follows."""


def make(jobs: Sequence[Job], workers: int, retries: int) -> Generator[Ended]:
    """Makes runs, each with its recipe's command; yields the end of every attempt.

    The first SIGINT or SIGTERM stops the runs after their iteration and starts no more. A second
    SIGINT kills them. A run whose process is killed is tried again, up to ``retries`` times. A run that
    fails is not, since it would fail again.
    """
    waiting = deque((job, retries) for job in jobs)
    running: list[tuple[Popen[bytes], Job, int]] = []
    asked = False
    with StopOnInterrupt() as stop:
        try:
            while running or (waiting and not stop.requested):
                while waiting and len(running) < workers and not stop.requested:
                    job, left = waiting.popleft()
                    running.append((runs.start(job), job, left))
                if stop.requested and not asked:
                    asked = True
                    for process, *_ in running:
                        process.terminate()
                time.sleep(0.2)
                for process, job, left in [one for one in running if one[0].poll() is not None]:
                    running.remove((process, job, left))
                    killed, problem = process.returncode < 0, runs.problem(job, process.returncode)
                    if killed and stop.requested:
                        problem = None  # the stop signal killed it while it was starting
                    again = killed and left > 0 and not stop.requested
                    if again:
                        waiting.appendleft((job, left - 1))
                    yield Ended(job, problem, again)
        finally:
            for process, *_ in running:
                process.kill()
                process.wait()
