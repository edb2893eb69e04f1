"""What makes the runs: a Ray cluster, which places them and replaces those whose worker dies."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from study import runs
from study.grid import Job
from study.pools import THREADS, Ended


class RayPool:
    """Makes each run as a task of one core, in a worker process that makes no other.

    Ray tries a run again, on any node, when its worker or node dies. An error is no reason to try
    again: it would come back. All nodes must have this checkout and the study directory at the
    same paths.

    Args:
        address: of the cluster, as ``ray.init`` takes it; ``local`` starts one on this machine.
        retries: further attempts at a run whose worker died.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no cluster at the address.
    """

    def __init__(self, address: str, retries: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                f"ray_address={address!r}, but ray is not installed: install it with "
                'pip install "amber_trl[ray]", or leave the option out'
            ) from error
        self._ray = ray
        ray.init(address, runtime_env={"env_vars": THREADS}, log_to_driver=False)
        # One task a worker, as a run settles threads, generators and the compiler's caches.
        options = {"num_cpus": 1, "max_retries": retries, "max_calls": 1}
        self._make = ray.remote(**options)(runs.make)
        self._pending: dict[object, Job] = {}
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> Generator[Ended | None]:
        """Makes all of them; yields each attempt's end, and None once a second in between."""
        begun = {job.name: runs.attempts(job) + 1 for job in jobs}
        self._pending = {self._make.remote(job): job for job in jobs}
        try:
            while self._pending:
                done, _ = self._ray.wait(list(self._pending), timeout=1)
                for task in done:
                    yield self._ended(task, self._pending.pop(task))
                for job in self._pending.values():
                    if (attempts := runs.attempts(job)) > begun[job.name]:
                        begun[job.name] = attempts
                        yield Ended(job, "its worker died", again=True)
                yield None
        finally:
            self._ray.shutdown()

    def stop(self) -> None:
        """Has the runs end after their iteration, and starts no others."""
        self._stopping = True
        for task in self._pending:
            self._ray.cancel(task)

    def _ended(self, task: object, job: Job) -> Ended:
        try:
            return Ended(job, self._ray.get(task))
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            return Ended(job, None if self._stopping else f"{type(error).__name__}: {reason}")
