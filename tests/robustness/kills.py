"""Kill a training repeatedly, at random times, and check that nothing is lost.

    python -m tests.robustness.kills --kills 100

The main recipe trains with a checkpoint after every iteration. It is killed by SIGKILL, resumed in
a new process, and killed again. After each kill there must be a checkpoint that verifies, and it
must be that of the last iteration logged or of the one before. In the end the run is let finish,
and must be the same, byte for byte, as one that was never killed. Exit code 1 if not.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import tyro
from tqdm import tqdm

from amber_trl.checkpoints import list_checkpoints, verify_run
from tests.robustness.trainings import differences, finish, iterations, short, start

FRAMES = 256
"""Frames of an iteration of a short run."""


def newest_sound(run_dir: Path) -> int | None:
    """Iterations in the newest checkpoint that verifies, None if there is none."""
    if not list_checkpoints(run_dir / "checkpoints"):
        return None
    for path, problem in reversed(verify_run(run_dir)):
        if problem is None:
            return int(path.stem) // FRAMES
        tqdm.write(problem)
    return None


def kill_once(run_dir: Path, log: Path, options: list[str], within: float) -> str | None:
    """Trains until a random moment after the first iteration; returns what is wrong afterwards."""
    before = iterations(run_dir)
    process = start(log, *options)
    while process.poll() is None and iterations(run_dir) == before:
        time.sleep(0.005)
    time.sleep(random.uniform(0, within))
    process.kill()
    if process.wait() >= 0:
        return f"it ended by itself with exit code {process.returncode}: see {log}"
    logged, saved = iterations(run_dir), newest_sound(run_dir)
    if saved is None:
        return None if logged <= 1 else f"no sound checkpoint after {logged} iterations"
    return None if logged - 1 <= saved <= logged else f"checkpoint {saved} of {logged} iterations"


def main(
    kills: int = 100,
    within: float = 1.5,
    env_id: str = "HalfCheetah-v5",
    total_iterations: int = 1000,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Kills, checks and compares.

    Args:
        kills: number of kills.
        within: the longest time from a process's first iteration to its kill, in seconds.
        env_id: task to train on.
        total_iterations: length of the run; it must not end before the last kill, so more on a
            fast machine.
        seed: seed of the times.
        out: keep the two runs there (else in a directory that is removed).
    """
    random.seed(seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = out or Path(temporary)
        log, killed, whole = (directory / name for name in ("log.txt", "killed", "whole"))
        common = ["--env-id", env_id, "--total-frames", str(total_iterations * FRAMES)]
        common += ["--compile", "off"]
        first = short(killed, [*common, "--checkpoint-interval", "1"])
        for number in tqdm(range(kills), unit="kill"):
            again = ["--resume", str(killed)] if newest_sound(killed) else [*first, "--overwrite"]
            if problem := kill_once(killed, log, again, within):
                wrong += 1
                tqdm.write(f"kill {number}: {problem}")
        tqdm.write(f"{kills} kills over {iterations(killed)} iterations, {wrong} problems")
        finish(log, "--resume", str(killed))
        finish(log, *short(whole, common))
        found = differences(whole, killed)
    tqdm.write(
        f"the final result is {'DIFFERENT in ' + ', '.join(found) if found else 'identical'}"
    )
    return 1 if wrong or found else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
