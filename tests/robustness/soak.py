"""Watch a long training: its memory and open files must stay flat, its disk bounded.

    python -m tests.robustness.soak --minutes 60

Trains PPO-AMBER with eight batches and a checkpoint after every iteration, inspects the process every
few seconds, and finally stops it by SIGTERM. Memory is flat if its median in the last quarter of the
time is at most 5 % above that in the second quarter. Linux only.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import tyro

from tests.robustness.trainings import INTERRUPTED, iterations, start


class Look(NamedTuple):
    """One measurement."""

    minutes: float
    mebibytes: float
    files: int
    disk: float


def look(pid: int, run_dir: Path, since: float) -> Look:
    """Resident memory and open files of a process, and the disk space of its checkpoints."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    files = len(os.listdir(f"/proc/{pid}/fd"))
    disk = 0
    for parent, _, names in os.walk(
        run_dir / "checkpoints"
    ):  # passes over what is removed meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                disk += Path(parent, name).stat().st_size
    minutes = (time.monotonic() - since) / 60
    return Look(minutes, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, files, disk / 2**20)


def main(
    minutes: float = 60, every: float = 5, env_id: str = "HalfCheetah-v5", out: Path | None = None
) -> int:
    """Trains and watches.

    Args:
        minutes: duration.
        every: seconds between measurements.
        env_id: task to train on.
        out: directory of the run (else one that is removed).
    """
    with tempfile.TemporaryDirectory() as temporary:
        run_dir = (out or Path(temporary)) / "run"
        options = ["--env-id", env_id, "--total-frames", "1000000000", "--compile", "on"]
        options += ["--checkpoint-interval", "1", "--run-dir", str(run_dir)]
        process = start(run_dir.with_suffix(".log"), *options)
        while process.poll() is None and iterations(run_dir) < 10:  # compiled, buffer full
            time.sleep(1)
        since, looks = time.monotonic(), []
        while process.poll() is None and time.monotonic() - since < 60 * minutes:
            looks.append(look(process.pid, run_dir, since))
            time.sleep(every)
        process.terminate()
        code, done = process.wait(), iterations(run_dir)
    quarter = len(looks) // 4
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    report = {
        name: [statistics.median(getattr(x, name) for x in part) for part in (early, late)]
        for name in Look._fields[1:]
    }
    for name, (first, last) in report.items():
        sys.stdout.write(f"{name}: second quarter {first:.1f}, last quarter {last:.1f}\n")
    sys.stdout.write(f"most disk {max(x.disk for x in looks):.1f} MiB, {done} iterations\n")
    flat = report["mebibytes"][1] <= 1.05 * report["mebibytes"][0]
    flat &= report["files"][1] <= report["files"][0]
    return 0 if flat and code == INTERRUPTED else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
