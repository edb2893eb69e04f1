"""Reading one run directory, and refusing one that is not whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl.evaluation.run_files import (
    RunError,
    UnfinishedRunError,
    read_config,
    read_summary,
    read_table,
    read_versions,
    table_file,
)
from amber_trl.evaluation.scores import final_score, learning_curve, speed_score
from amber_trl.evaluation.setups import Setup
from amber_trl.training.provenance import differences

_EPISODE_TYPES = {
    "frame": np.int64,
    "return": np.float64,
    "length": np.int64,
    "terminated": np.int64,
    "truncated": np.int64,
}
_ITERATION_TYPES = {"frames": np.int64, "active_batches": np.int64}
_LEDGER = ("importance_ratio", "staleness", "active")
_SCHEDULED = ("learning_rate", "clip_epsilon", "drop_factor")
"""Settings that ``iterations.csv`` has a column of, which begins with the configuration's value."""
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
    _check_agreement(run)
    return run


def _check_agreement(run: Run) -> None:
    config, summary, episodes = run.config, run.summary, run.episodes
    frames, every = summary["frames"], config["frames_per_batch"]
    last = 0 if run.iterations.empty else run.iterations["frames"].iloc[-1]
    _check(run, "last frame of the iterations", last, frames)
    _check(run, "iterations times frames_per_batch", len(run.iterations) * every, frames)
    _check(run, "number of episodes", len(episodes), summary["episodes"])
    if frames < (total := config["total_frames"]):
        raise UnfinishedRunError(f"{run.path}: {frames} of {total} frames; finish it")
    _check(run, "frames, for that total_frames,", -(-total // every) * every, frames)
    if not len(episodes):
        raise UnfinishedRunError(
            f"{run.path}: no episode finished, so there is no score; train for longer"
        )
    _check_iterations(run)
    _check_episodes(run)
    if changed := differences(run.versions, summary["versions"]):
        raise RunError(
            f"{run.path}: versions.json and summary.json differ: {', '.join(changed)}: the run was "
            "resumed under other versions, or the files are not of one run; make it anew"
        )
    for score in ("final_score", "speed_score"):
        stated, computed = summary[score], getattr(run, score)
        if stated is None or not np.isclose(stated, computed, rtol=1e-9, atol=0):
            raise RunError(
                f"{run.path}: summary.json says {score}={stated}, its episodes give {computed}: "
                "the files are not of one run"
            )


def _check(run: Run, what: str, found: Any, stated: Any) -> None:
    if found != stated:
        raise RunError(
            f"{run.path}: {what} must be {found} by the other files, and summary.json says "
            f"{stated}: the files are not of one run; restore them, or remove the run"
        )


def _check_iterations(run: Run) -> None:
    table, every, most = run.iterations, run.config["frames_per_batch"], run.setup.num_batches
    columns = (f"{name}_{age}" for age in range(most) for name in _LEDGER)
    if lacking := next((column for column in columns if column not in table), None):
        _refuse_table(run, "iterations", f"no column {lacking}, and num_batches={most}")
    if (beyond := f"active_{most}") in table:
        _refuse_table(run, "iterations", f"a column {beyond}, and num_batches={most}")
    frames, active = table["frames"].to_numpy(), table["active_batches"].to_numpy()
    expected = every * np.arange(1, len(table) + 1)
    for row in np.flatnonzero(frames != expected)[:1]:
        found = f"frames={frames[row]} in row {row + 1}, where {expected[row]} is due"
        _refuse_table(run, "iterations", f"{found}, as frames_per_batch={every}")
    for row in np.flatnonzero((active < 1) | (active > most))[:1]:
        found = f"active_batches={active[row]} at frame {frames[row]}"
        _refuse_table(run, "iterations", f"{found}, not from 1 to num_batches={most}")
    in_use = table[[f"active_{age}" for age in range(most)]].sum(axis=1).to_numpy()
    for row in np.flatnonzero(active != in_use)[:1]:
        found = f"active_batches={active[row]} at frame {frames[row]}"
        _refuse_table(
            run, "iterations", f"{found}, where {in_use[row]:g} batches are marked active"
        )
    for row in np.flatnonzero(table["active_0"].to_numpy() != 1)[:1]:
        _refuse_table(run, "iterations", f"the newest batch is not in use at frame {frames[row]}")
    _check_settings(run)


def _check_settings(run: Run) -> None:
    """Refuses a table that was made with other settings than the configuration's."""
    config, active = run.config, run.iterations["active_batches"]
    size, whole = config["minibatch_size"], pd.Series(1, active.index)
    scale, passes = (active, whole) if config["scale_minibatch"] else (whole, active)
    updates = config["epochs"] * (config["frames_per_batch"] // size) * passes
    for name, due in (("minibatch_size", size * scale), ("updates", updates)):
        if name not in run.iterations:
            _refuse_table(run, "iterations", f"no column {name}")
        for row in np.flatnonzero(run.iterations[name] != due)[:1]:
            what = f"{name}={run.iterations[name][row]} in row {row + 1}"
            _refuse_table(run, "iterations", f"{what}, where config.json means {due[row]}")
    for name in _SCHEDULED:
        if (stated := getattr(run.setup, name)) is None:
            continue
        if name not in run.iterations:
            _refuse_table(run, "iterations", f"no column {name}")
        # Archived tables have six significant digits.
        if not np.isclose(found := run.iterations[name].iloc[0], stated, rtol=1e-5, atol=0):
            what = f"{name} begins at {found:g}, and config.json says {stated:g}"
            _refuse_table(run, "iterations", what)


def _check_episodes(run: Run) -> None:
    frames, last = run.episodes["frame"].to_numpy(), run.summary["frames"]
    length, ends = run.episodes["length"].to_numpy(), run.episodes[["terminated", "truncated"]]
    if not np.isfinite(run.episodes["return"]).all():
        _refuse_table(run, "episodes", "a return that is not finite")
    for row in np.flatnonzero((frames < 1) | (frames > last))[:1]:
        found = f"frame={frames[row]} in row {row + 1}"
        _refuse_table(run, "episodes", f"{found}, not from 1 to the run's last, {last}")
    for row in np.flatnonzero(np.diff(frames) <= 0)[:1]:
        found = f"frame={frames[row + 1]} in row {row + 2} after {frames[row]}"
        _refuse_table(run, "episodes", f"{found}, where frames ascend")
    if not ends.isin([0, 1]).all(axis=None) or (ends.sum(axis=1) == 0).any():
        _refuse_table(run, "episodes", "an episode that was neither terminated nor truncated")
    # Frames are counted environment by environment in each step, and in each of these episodes
    # follow upon each other; a resume that is not exact leaves out those that were running.
    step, lane = np.divmod(frames - 1, run.config["num_envs"])
    due = (pd.Series(step) - pd.Series(step).groupby(lane).shift(fill_value=-1)).to_numpy()
    fits = length == due
    if run.exactness == "approximate":
        fits = (length >= 1) & (length <= due)
    for row in np.flatnonzero(~fits)[:1]:
        found = f"length={length[row]} in row {row + 1}"
        _refuse_table(run, "episodes", f"{found}, where its environment made {due[row]} steps")


def _refuse_table(run: Run, name: str, what: str) -> NoReturn:
    raise RunError(
        f"{table_file(run.path, name)}: {what}: the table is damaged, or of another run; restore "
        "it, or remove the run"
    )
