"""Makes the runs on a Ray cluster, which schedules them and restarts those whose node dies."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from amber_trl.runs import StopOnInterrupt
from study import pools
from study.grid import Job
from study.pools import Ended


def make(jobs: Sequence[Job], address: str, retries: int) -> Generator[Ended]:
    """Makes each run as a one-core task; yields the end of every attempt.

    A run whose process, worker or node dies is retried up to ``retries`` times. All nodes need this
    checkout and the study directory at the same paths. ``address`` is passed to ``ray.init``.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"ray_address={address!r}, but ray is not installed: pip install ray, "
            "or leave the option out"
        ) from error
    ray.init(address, log_to_driver=False)
    task = ray.remote(num_cpus=1, max_retries=retries)(_make)
    pending = {task.remote(job, retries): job for job in jobs}
    asked = False
    with StopOnInterrupt() as stop:
        try:
            while pending:
                for reference in ray.wait(list(pending), timeout=1)[0]:
                    job = pending.pop(reference)
                    try:
                        yield from ray.get(reference)
                    except ray.exceptions.RayError as error:
                        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                        yield Ended(job, None if asked else reason)
                if stop.requested and not asked:
                    asked = True
                    for reference in pending:
                        ray.cancel(reference)  # a SIGINT, which asks the run to stop
        finally:
            ray.shutdown()


def _make(job: Job, retries: int) -> list[Ended]:
    return list(pools.make([job], 1, retries))
