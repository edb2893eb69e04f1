"""Stop and resume the main recipe in every combination, and compare with uninterrupted runs.

    python -m tests.robustness.exact_resume --out exact_resume

Each combination is trained once whole, and once stopped twice by SIGTERM (with a partly filled
buffer, and later), resumed each time in a new process. Parameters, optimiser state, generators,
``episodes.csv`` and ``iterations.csv`` must be the same, byte for byte. Prints a table; exit code
1 if any combination differs.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import tyro
from tqdm import tqdm

from amber_trl.envs import TASKS
from tests.robustness.trainings import differences, finish, short, stop_after

MATRIX = ("HalfCheetah-v5", "Humanoid-v5", "Reacher-v4", "BipedalWalker-v3", "Pendulum-v1")
STOPS = (2, 6)
"""Iterations, of ten, after which a run is asked to stop; eight batches fill the buffer."""


@dataclass(frozen=True)
class Combination:
    """One way to train."""

    env_id: str
    num_envs: int
    setup: str
    compile: str

    @property
    def options(self) -> list[str]:
        """The recipe's options."""
        return [
            *("--env-id", self.env_id),
            *("--num-envs", str(self.num_envs)),
            *("--setup", self.setup),
            *("--compile", self.compile),
        ]


def combinations(matrix: bool, tasks: bool) -> list[Combination]:
    """Five tasks in every combination, then all twelve in one."""
    every = [Combination(*c) for c in product(MATRIX, (1, 8), ("ppo", "amber"), ("off", "on"))]
    one = [Combination(env_id, 8, "amber", "off") for env_id in TASKS]
    return list(dict.fromkeys([*(every if matrix else []), *(one if tasks else [])]))


def check(combination: Combination, directory: Path) -> list[str]:
    """The differences between the uninterrupted run and the one stopped twice."""
    whole, stopped, log = directory / "whole", directory / "stopped", directory / "log.txt"
    finish(log, *short(whole, combination.options))
    stop_after(STOPS[0], stopped, log, *short(stopped, combination.options))
    stop_after(STOPS[1], stopped, log, "--resume", str(stopped))
    finish(log, "--resume", str(stopped))
    return differences(whole, stopped)


def main(out: Path | None = None, matrix: bool = True, tasks: bool = True) -> int:
    """Checks every combination.

    Args:
        out: keep the runs there (else in a directory that is removed).
        matrix: check five tasks with one and eight environments, ppo and amber, eager and compiled.
        tasks: check all twelve tasks once.
    """
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for combination in tqdm(combinations(matrix, tasks), unit="combination"):
            name = "-".join(map(str, vars(combination).values()))
            try:
                found = check(combination, (out or Path(temporary)) / name)
            except RuntimeError as error:
                found = [str(error)]
            failed += bool(found)
            tqdm.write(f"{name}: {'DIFFERS in ' + ', '.join(found) if found else 'identical'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
