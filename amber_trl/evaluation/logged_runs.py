"""Reads the logs of training runs, finished or not."""

import csv
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amber_trl.runs.scores import learning_curve

RunPath = Path | zipfile.Path  # a folder, or one inside a zip archive
Table = Mapping[str, NDArray[np.float64]]  # columns by name; an empty cell is NaN

INCIDENTAL = frozenset(
    {"run_dir", "overwrite", "resume", "extend", "checkpoint_interval"}
    | {"progress", "logger", "tensorboard", "eval_interval", "eval_episodes"}
    | {"device", "collector", "compile", "compiled", "num_threads", "smoke"}
)
"""Fields of ``config.json`` that do not distinguish setups: where and how a run is made and watched.
What ``smoke`` changes is in other fields."""
UNRECORDED: Mapping[str, Any] = {
    "loss": "amber",
    "learning_rate_schedule": "linear",
    "range_schedule": "linear",
    "advantages": "stored",
    "critic_on": "active",
    "reward_scaling": False,
    "activation": "tanh",
}
"""Options that early runs of the main recipe do not record, with the values that those runs had."""


@dataclass(frozen=True)
class LoggedRun:
    """What a training run has logged so far, as :func:`read_run` reads it.

    Attributes:
        path: the run directory.
        config: contents of ``config.json``.
        episodes: columns of ``episodes.csv``, one row per training episode.
        iterations: columns of ``iterations.csv``, one row per iteration.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun
        >>> episodes = {"frame": [10.0], "return": [3.0]}
        >>> run = LoggedRun(Path("runs/a"), {"env_id": "a"}, episodes, {"frames": [8.0, 16.0]})
        >>> run.frames, [column.tolist() for column in run.learning_curve]
        (16, [[8, 16], [nan, 3.0]])
    """

    path: RunPath
    config: Mapping[str, Any]
    episodes: Table
    iterations: Table

    @property
    def task(self) -> str:
        """The configuration's ``env_id``; ``unnamed`` if there is none."""
        return str(self.config.get("env_id", "unnamed"))

    @property
    def setup(self) -> str:
        """The configuration's ``setup``; ``unnamed`` if there is none."""
        return str(self.config.get("setup", "unnamed"))

    @property
    def frames(self) -> int:
        """Number of frames logged so far."""
        return int(self.iterations["frames"][-1]) if len(self.iterations["frames"]) else 0

    @property
    def learning_curve(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Frames and mean return of the last 100 episodes, after each iteration."""
        every = int(self.iterations["frames"][0]) if self.frames else 1
        ends = np.asarray(self.episodes["frame"], dtype=np.int64)
        return learning_curve(ends, self.episodes["return"], every, self.frames)


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[RunPath]:
    """Finds run directories: all folders with a ``config.json``, also inside zip archives.

    Args:
        paths: run directories, zip archives of some, or folders that contain either at any depth.

    Returns:
        The directories, each once.

    Raises:
        FileNotFoundError: if a path does not exist, or no run lies under it.
        ValueError: if a zip archive cannot be read.

    Examples:
        >>> import tempfile
        >>> from amber_trl.evaluation import find_runs
        >>> from amber_trl.runs import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with RunDirectory(f"{folder}/a/b") as run:
        ...         run.write_config({"env_id": "Hopper-v5"})
        ...     [run.name for run in find_runs([folder])]
        ['b']
    """
    found: dict[str, RunPath] = {}
    for path in map(Path, paths):
        here: list[RunPath] = [file.parent for file in sorted(path.rglob("config.json"))]
        for file in [path] if path.suffix == ".zip" else sorted(path.rglob("*.zip")):
            try:
                archive = zipfile.Path(file).root
            except zipfile.BadZipFile as error:
                raise ValueError(f"{file} cannot be read as a zip archive: {error}") from error
            names = sorted(n for n in archive.namelist() if f"/{n}".endswith("/config.json"))
            here += [zipfile.Path(archive, name.removesuffix("config.json")) for name in names]
        if not here:
            raise FileNotFoundError(
                f"there is no run at {path}: name run directories, each with a config.json, or "
                "folders or zip archives that contain some"
            )
        found |= {str(run): run for run in here}
    return list(found.values())


def read_run(path: str | os.PathLike[str] | zipfile.Path) -> LoggedRun:
    """Reads what a run has logged so far; the run may still be going on, or have been killed.

    Args:
        path: the run directory.

    Returns:
        The run. A last row that is still being written is left out.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file does not have the expected contents.

    Examples:
        >>> from amber_trl.evaluation import read_run
        >>> read_run("runs/halfcheetah").learning_curve  # doctest: +SKIP
    """
    path = path if isinstance(path, zipfile.Path) else Path(path)
    try:
        config = dict(json.loads((path / "config.json").read_text()))
        episodes = _read_table(path / "episodes.csv", "frame", "return")
        iterations = _read_table(path / "iterations.csv", "frames")
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as a run directory: {error}") from error
    return LoggedRun(path, config, episodes, iterations)


def _read_table(file: RunPath, *needed: str) -> dict[str, NDArray[np.float64]]:
    whole, _, _ = file.read_text().rpartition("\n")
    # The first iteration writes the headers.
    header, *rows = [*csv.reader(whole.splitlines())] or [list(needed)]
    if missing := set(needed) - set(header):
        raise ValueError(f"{file.name} has no {sorted(missing)}")
    cells = [[float(cell or "nan") for cell in row] for row in rows]
    columns = np.array(cells, dtype=np.float64).reshape(len(rows), len(header)).T
    return dict(zip(header, columns, strict=True))


def by_setup(runs: Sequence[LoggedRun]) -> dict[str, list[LoggedRun]]:
    """Groups runs that differ only in task and seed, under names that show the other differences.

    A name is the option ``setup``, followed by as few other options as are needed to tell setups
    apart; those of ``INCIDENTAL`` never count. Options count as different only if they differ among
    the runs of one task, so tasks may have options of their own, such as ``total_frames``. ``{}`` and
    ``[]`` count as None, as does a missing option, unless ``UNRECORDED`` has its value. None is not named.

    Args:
        runs: of any tasks and recipes.

    Returns:
        The runs by name. Names of the same ``setup`` are adjacent.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun, by_setup
        >>> configs = [{"env_id": "a", "setup": "ppo", "gamma": gamma} for gamma in (0.9, 0.99)]
        >>> list(by_setup([LoggedRun(Path(), config, {}, {}) for config in configs]))
        ['ppo, gamma=0.9', 'ppo, gamma=0.99']
    """
    found: dict[str, list[LoggedRun]] = {}
    for setup in dict.fromkeys(run.setup for run in runs):
        alike = [run for run in runs if run.setup == setup]
        differing = _differing(alike)
        for run in alike:
            values = ((name, _option(run, name)) for name in differing)
            words = (f"{name}={value}" for name, value in values if value is not None)
            found.setdefault(", ".join([setup, *words]), []).append(run)
    return found


def _option(run: LoggedRun, name: str) -> Any:
    value = run.config.get(name, UNRECORDED.get(name))
    return None if value in ({}, []) else value


def _differing(runs: Sequence[LoggedRun]) -> list[str]:
    """The fewest options, in order, that distinguish all setups within each task."""

    def told_apart(names: Sequence[str]) -> int:
        return len({(run.task, *(str(_option(run, name)) for name in names)) for run in runs})

    names = list(dict.fromkeys(name for run in runs for name in run.config))
    # The drop factor is None where another option chooses it; the length says least about a setup.
    names.sort(key=["drop_factor", "total_frames"].__contains__)
    chosen: list[str] = []
    for name in names:
        more = [*chosen, name]
        if name not in INCIDENTAL | {"env_id", "seed"} and told_apart(more) > told_apart(chosen):
            chosen = more
    return chosen
