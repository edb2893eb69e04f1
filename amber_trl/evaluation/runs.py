"""Reading one run directory, and refusing one that is not whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl.evaluation.run_checks import check_agreement
from amber_trl.evaluation.run_files import (
    RunError,
    UnfinishedRunError,
    read_config,
    read_summary,
    read_table,
    read_versions,
    table_file,
)
from amber_trl.evaluation.setups import Setup
from amber_trl.runs.scores import final_score, learning_curve, speed_score

_EPISODE_TYPES = {
    "frame": np.int64,
    "return": np.float64,
    "length": np.int64,
    "terminated": np.int64,
    "truncated": np.int64,
}
_ITERATION_TYPES = {"frames": np.int64, "active_batches": np.int64}
_TABLES = ("episodes.csv", "episodes.csv.gz", "iterations.csv", "iterations.csv.gz")
_MARKS = ("config.json", "versions.json", "summary.json", *_TABLES)


@dataclass(frozen=True)
class Run:
    """A finished training run, as :func:`read_run` reads it.

    Attributes:
        path: its directory.
        config: contents of ``config.json``.
        versions: versions of the packages it ran with.
        summary: contents of ``summary.json``.
        setup: what was trained.
        episodes: ``episodes.csv``, one row per training episode.
        iterations: ``iterations.csv``, one row per iteration.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import Run
        >>> sorted(Run.__dataclass_fields__)[:3]
        ['config', 'episodes', 'iterations']
    """

    path: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    summary: Mapping[str, Any]
    setup: Setup
    episodes: pd.DataFrame
    iterations: pd.DataFrame

    @property
    def labels(self) -> dict[str, Any]:
        """Protocol, task, setup and seed: the first columns of every table of a study."""
        return {
            "protocol": self.config["protocol"],
            "task": self.config["env_id"],
            "setup": self.setup.name,
            "seed": self.config["seed"],
        }

    @property
    def exactness(self) -> str:
        """``exact``, or ``approximate`` if it was resumed otherwise than to the bit."""
        return str(self.summary.get("exactness", "not recorded"))

    @property
    def final_score(self) -> float:
        """Mean return of the last 100 episodes."""
        return final_score(self.episodes["frame"], self.episodes["return"])

    @property
    def speed_score(self) -> float:
        """Average of the learning curve."""
        return speed_score(*self._for_curve())

    @property
    def learning_curve(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Frames, and the mean return of the last 100 episodes, after each iteration."""
        return learning_curve(*self._for_curve())

    def _for_curve(self) -> tuple[pd.Series[int], pd.Series[float], int, int]:
        every, frames = self.config["frames_per_batch"], self.summary["frames"]
        return self.episodes["frame"], self.episodes["return"], every, frames


def find_runs(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """Run directories under the given paths, at any depth, links followed.

    Args:
        paths: run directories, or folders that hold some.

    Returns:
        The directories, sorted, each once, by whatever names it is reached.

    Raises:
        FileNotFoundError: if a path does not exist.
        RunError: if no path is given, there is no run under one of them, or a folder has files of a run and other
            runs below it.
        OSError: if a folder cannot be read.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import find_runs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "a" / "b").mkdir(parents=True)
        ...     _ = (Path(folder) / "a" / "b" / "config.json").write_text("{}")
        ...     [run.name for run in find_runs([folder])]
        ['b']
    """
    found: dict[Path, Path] = {}
    if not (paths := list(paths)):
        raise RunError("no run is given: name run directories, or folders that hold some")
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is not there: name a run directory, or a folder of some"
            )
        marked = set(_marked(path)) if path.is_dir() else set()
        if not marked:
            raise RunError(f"{path} holds no run: none of {list(_MARKS)} is under it")
        for run in sorted(marked):
            outer = sorted(marked.intersection(run.parents))
            if not any(_is_in_checkpoint(run, of) for of in outer):
                _refuse_runs_below(outer, run)
                found.setdefault(run.resolve(), run)
    return sorted(found.values())


def _marked(path: Path) -> Iterator[Path]:
    """Folders with files of a run; one that several links lead to is given once."""
    seen: set[str] = set()
    for folder, below, files in os.walk(path, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
        elif not {*_MARKS}.isdisjoint([*below, *files]):
            yield Path(folder)
        seen.add(real)
        below.sort()


def _raise(error: OSError) -> None:
    raise error


def _is_in_checkpoint(path: Path, run: Path) -> bool:
    """Whether a folder is of a run's checkpoints, which may hold files of such names."""
    below = path.relative_to(run).parts
    return len(below) > 1 and below[0] == "checkpoints" and below[1][0].isdigit()


def _refuse_runs_below(folders: Iterable[Path], run: Path) -> None:
    for folder in folders:
        stray = ", ".join(str(folder / name) for name in _MARKS if (folder / name).exists())
        raise RunError(
            f"{stray}: a run's files, in a folder that holds other runs ({run}), where they would "
            "hide them; remove them, or move them to a folder of their own"
        )


def read_run(path: str | PathLike[str]) -> Run:
    """Reads a run directory, its tables plain or compressed (``.csv.gz``).

    Args:
        path: the directory.

    Returns:
        The run.

    Raises:
        UnfinishedRunError: if it has no summary, was interrupted, or no episode of it ended.
        RunError: if a file is missing, cannot be read, holds what no run leaves, or does not agree
            with the others (the number of episodes, the frames, the scores, the versions).

    Examples:
        >>> from amber_trl.evaluation import read_run
        >>> read_run("runs/nothing-here")
        Traceback (most recent call last):
            ...
        amber_trl.evaluation.run_files.UnfinishedRunError: runs/nothing-here: no config.json...
    """
    path = Path(path)
    config, summary = read_config(path), read_summary(path)
    try:
        setup = Setup.from_config(config)
    except ValueError as error:
        raise RunError(f"{path / 'config.json'}: {error}") from error
    if summary["interrupted"]:
        raise UnfinishedRunError(
            f"{path}: interrupted after {summary['frames']} frames; finish it, or remove it"
        )
    run = Run(
        path,
        config,
        read_versions(path),
        summary,
        setup,
        read_table(table_file(path, "episodes"), _EPISODE_TYPES),
        read_table(table_file(path, "iterations"), _ITERATION_TYPES),
    )
    check_agreement(run)
    return run
