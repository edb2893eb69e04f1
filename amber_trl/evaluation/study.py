"""Many runs as tidy tables, and the selections of them that can be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl.evaluation.references import PAPER_SETTINGS
from amber_trl.evaluation.run_files import RunError, UnfinishedRunError
from amber_trl.evaluation.runs import Run, find_runs, read_run
from amber_trl.evaluation.setups import Setup

# What a table shows in its columns, and what changes no result.
_SHOWN = {"env_id", "protocol", "seed", "setup", *Setup.__dataclass_fields__}
_WITHOUT_EFFECT = {
    *("run_dir", "overwrite", "resume", "checkpoint_interval", "tensorboard", "progress"),
    *("collector", "compile", "compiled", "num_threads"),
}
_LABELS = ["protocol", "task", "setup", "seed"]


@dataclass(frozen=True)
class Selection:
    """Runs of some setups on the tasks that all of them have, with equal seeds.

    Attributes:
        setups: names of the setups.
        tasks: tasks, sorted.
        runs: their rows of the study's table ``runs``.
        left_out: in words, the tasks that not all the setups have, and with ``partial=True`` the
            runs whose seed they do not all have.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection
        >>> runs = pd.DataFrame({"task": ["a", "a"], "setup": "ppo", "final_score": [1.0, 2.0]})
        >>> Selection(("ppo",), ("a",), runs).scores("ppo", "final")["a"].tolist()
        [1.0, 2.0]
    """

    setups: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: pd.DataFrame
    left_out: tuple[str, ...] = ()

    def scores(self, setup: str, metric: str) -> dict[str, NDArray[np.float64]]:
        """Scores of a setup by task, in the order of seeds.

        Args:
            setup: its name.
            metric: ``final`` or ``speed``.

        Returns:
            ``[seeds]`` by task.
        """
        rows = self.runs[self.runs["setup"] == setup]
        column = f"{metric}_score"
        return {task: rows.loc[rows["task"] == task, column].to_numpy() for task in self.tasks}


@dataclass(frozen=True)
class Study:
    """All runs of a study in tidy tables, each with the columns protocol, task, setup and seed.

    Attributes:
        runs: a row per run: ``final_score``, ``speed_score``, ``frames``, ``seconds``,
            ``exactness``, ``path``.
        curves: a row per iteration: ``frames`` and ``return``, of the last 100 episodes.
        episodes: a row per training episode, as in ``episodes.csv``.
        iterations: a row per iteration, as in ``iterations.csv`` without the batches.
        batches: a row per iteration and batch age: ``importance_ratio`` and the rest of the
            ledger. Batches that were not stored yet have no row.
        setups: the setups by name, in the order in which tables show them.
        settings: by protocol, the configuration that all its runs share.
        versions: by protocol, the versions that all its runs share.
        partial: whether unfinished runs, and seeds that not all setups have, are left out.
        left_out: the unfinished runs that were, in words.

    Examples:
        >>> from amber_trl.evaluation import Study
        >>> "curves" in Study.__dataclass_fields__
        True
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    episodes: pd.DataFrame
    iterations: pd.DataFrame
    batches: pd.DataFrame
    setups: Mapping[str, Setup]
    settings: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, Mapping[str, str]]
    partial: bool = False
    left_out: tuple[str, ...] = ()

    def setups_of(self, protocol: str) -> dict[str, Setup]:
        """The setups that a protocol has runs of, in order."""
        there = set(self.runs.loc[self.runs["protocol"] == protocol, "setup"])
        return {name: setup for name, setup in self.setups.items() if name in there}

    def departures(self, protocol: str) -> list[str]:
        """In what a protocol's runs differ from the paper's, in words; empty if in nothing."""
        settings = self.settings[protocol]
        return [
            f"{name} {settings[name]} (the paper: {paper})"
            for name, paper in PAPER_SETTINGS.items()
            if settings[name] != paper
        ]

    def rows(self, table: str, selection: Selection) -> pd.DataFrame:
        """The rows of a table that belong to selected runs.

        Args:
            table: ``curves``, ``episodes``, ``iterations`` or ``batches``.
            selection: the runs.

        Returns:
            The rows, in order.
        """
        return getattr(self, table).merge(selection.runs[_LABELS])

    def select(
        self, protocol: str, setups: Sequence[str], *, all_tasks: bool = False
    ) -> Selection | None:
        """Runs of some setups that can be compared.

        Args:
            protocol: theirs.
            setups: names of setups.
            all_tasks: whether every setup must have every task that one of them has.

        Returns:
            The runs on the tasks that all the setups have; None if there is no such task.

        Raises:
            RunError: if the setups differ in their seeds on a task, or tasks among each other; if
                ``all_tasks`` and a setup lacks a task. Not so with ``partial``, where the seeds
                that all the setups have on a task are taken.
        """
        runs = self.runs[(self.runs["protocol"] == protocol) & self.runs["setup"].isin(setups)]
        seeds = {cell: set(rows["seed"]) for cell, rows in runs.groupby(["task", "setup"])}
        every = sorted(set(runs["task"]))
        lacking = {name: [task for task in every if (task, name) not in seeds] for name in setups}
        tasks = sorted(set(every).difference(*lacking.values()))
        if all_tasks and not self.partial and tasks != every:
            setup = next(name for name in setups if lacking[name])
            raise RunError(f"{protocol}: no run of {setup} on {lacking[setup][0]}: {_WAY_OUT}")
        rows = runs[runs["task"].isin(tasks)]
        left_out = [f"tasks without {s}: {', '.join(own)}" for s, own in lacking.items() if own]
        if not self.partial:
            _refuse_unequal_seeds(rows)
            return Selection(tuple(setups), tuple(tasks), rows, tuple(left_out)) if tasks else None
        common = {
            task: set.intersection(*(seeds[task, setup] for setup in setups)) for task in tasks
        }
        keep = np.array([row.seed in common[row.task] for row in rows.itertuples()], dtype=bool)
        tasks = [task for task in tasks if common[task]]
        if not tasks:
            return None
        left_out += _words(rows[~keep])
        return Selection(tuple(setups), tuple(tasks), rows[keep], tuple(left_out))


_LEAVE_OUT = "leave out all such runs (partial=True, --partial)"
_WAY_OUT = "run it, or ask for a partial report (--partial), which compares what all have"


def read_study(paths: Iterable[str | PathLike[str]], *, partial: bool = False) -> Study:
    """Reads all runs under the given paths into tidy tables.

    Args:
        paths: run directories, or folders that hold some.
        partial: leave out unfinished runs, and in comparisons the seeds that not every setup has,
            instead of refusing them.

    Returns:
        The study.

    Raises:
        FileNotFoundError: if a path does not exist.
        RunError: if there is no (finished) run; one is unfinished or damaged; two are the same
            task, setup and seed, or one is a copy of another; or the runs of a protocol
            differ in a version, or in a setting that no column shows.

    Examples:
        >>> from amber_trl.evaluation import read_study
        >>> study = read_study(["docs/data/study/paper/Pendulum-v1"])  # doctest: +SKIP
        >>> study.runs.groupby("setup")["final_score"].mean()  # doctest: +SKIP
    """
    runs: list[Run] = []
    left_out: list[str] = []
    for path in find_runs(paths):
        try:
            runs.append(read_run(path))
        except UnfinishedRunError as error:
            if not partial:
                raise UnfinishedRunError(f"{error}; or {_LEAVE_OUT}") from error
            left_out.append(str(error))
    if not runs:
        raise RunError(f"no finished run under {[str(path) for path in paths]}")
    _refuse_duplicates(runs)
    by_protocol = _by_protocol(runs)
    settings = {protocol: _shared_settings(own) for protocol, own in by_protocol.items()}
    versions = {protocol: _shared_versions(own) for protocol, own in by_protocol.items()}
    _refuse_copies(runs)
    setups = {run.setup.name: run.setup for run in sorted(runs, key=lambda run: run.setup.rank)}
    return Study(
        _table(runs, _scores),
        _table(runs, _curve),
        _table(runs, lambda run: run.episodes),
        _table(runs, lambda run: run.iterations[_columns(run.iterations)[0]]),
        _table(runs, _batches),
        setups,
        settings,
        versions,
        partial,
        tuple(left_out),
    )


def _table(runs: Sequence[Run], rows: Any) -> pd.DataFrame:
    tables = [rows(run).assign(**run.labels) for run in runs]
    table = pd.concat(tables, ignore_index=True)
    table = table[[*_LABELS, *(column for column in table if column not in _LABELS)]]
    order = [*_LABELS, *(["frames"] if "age" in table else [])]
    return table.sort_values(order, kind="stable", ignore_index=True)


def _scores(run: Run) -> pd.DataFrame:
    row = {
        "final_score": run.final_score,
        "speed_score": run.speed_score,
        "frames": run.summary["frames"],
        "seconds": run.summary["seconds"],
        "exactness": run.exactness,
        "path": str(run.path),
    }
    return pd.DataFrame([row])


def _curve(run: Run) -> pd.DataFrame:
    frames, returns = run.learning_curve
    return pd.DataFrame({"frames": frames, "return": returns})


def _batches(run: Run) -> pd.DataFrame:
    _, by_age = _columns(run.iterations)
    tables = [
        run.iterations[["frames", *columns]].rename(columns=columns).assign(age=age)
        for age, columns in by_age.items()
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[table["active"].notna()]


def _columns(iterations: pd.DataFrame) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns of the iteration, and by age those of its batches with their names without age."""
    own: list[str] = []
    by_age: dict[int, dict[str, str]] = {}
    for column in iterations:
        if found := re.fullmatch(r"(.+)_(\d+)", str(column)):
            by_age.setdefault(int(found[2]), {})[str(column)] = found[1]
        else:
            own.append(str(column))
    return own, by_age


def _by_protocol(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each protocol, the paper's first."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config["protocol"] != "paper"):
        found.setdefault(run.config["protocol"], []).append(run)
    return found


def _settings(run: Run) -> dict[str, Any]:
    hidden = _SHOWN | _WITHOUT_EFFECT
    return {name: value for name, value in run.config.items() if name not in hidden}


def _shared_settings(runs: Sequence[Run]) -> dict[str, Any]:
    first = _settings(runs[0])
    for run in runs[1:]:
        own = _settings(run)
        for name in first.keys() | own.keys():
            ours, theirs = first.get(name, "not given"), own.get(name, "not given")
            if ours != theirs:
                raise _mixed(f"settings: {name}", ours, runs[0], theirs, run)
    return first


def _shared_versions(runs: Sequence[Run]) -> dict[str, str]:
    """Versions by package; a simulator that a run did not have installed is not compared."""
    found: dict[str, tuple[str, Run]] = {}
    for run in runs:
        for name, version in run.versions.items():
            known, where = found.setdefault(name, (version, run))
            if known != version:
                raise _mixed(f"versions: {name}", known, where, version, run)
    return {name: version for name, (version, _) in found.items()}


def _mixed(what: str, ours: Any, one: Run, theirs: Any, other: Run) -> RunError:
    return RunError(
        f"mixed {what} is {ours} in {one.path} and {theirs} in {other.path}; put them into folders "
        "of their own, and read each alone"
    )


def _refuse_duplicates(runs: Sequence[Run]) -> None:
    seen: dict[tuple[Any, ...], Path] = {}
    for run in runs:
        label = tuple(run.labels.values())
        if label in seen:
            raise RunError(
                f"{run.path} and {seen[label]} are both {label}: plot them apart, or remove one"
            )
        seen[label] = run.path


def _refuse_copies(runs: Sequence[Run]) -> None:
    """Refuses what stands under two names.

    Two runs never take the same time to the last digit. Two seeds or tasks never have equal
    iterations, nor equal episodes unless most returns are alike; from one seed two names of an
    algorithm, or two versions of a task, may act alike.
    """
    seen: dict[tuple[str, object], Run] = {}
    for run in runs:
        keys: list[tuple[str, object]] = [("seconds", run.summary["seconds"])]
        keys.append(("iterations", _digest(run.iterations)))
        if run.episodes["return"].nunique() > max(1, len(run.episodes) / 2):
            keys.append(("episodes", _digest(run.episodes)))
        for key in keys:
            other = seen.setdefault(key, run)
            another = _origin(run.config) != _origin(other.config)
            if other is not run and (another or key[0] == "seconds"):
                raise RunError(
                    f"{other.path} and {run.path} have the same {key[0]}, so one is a copy of the "
                    "other, or has a file of it; remove it, and make that run"
                )


def _origin(config: Mapping[str, Any]) -> tuple[str, int]:
    """The task of a run, whichever its version, and the seed."""
    return re.sub(r"-v\d+$", "", config["env_id"]), config["seed"]


def _digest(table: pd.DataFrame) -> bytes:
    return hashlib.sha256(pd.util.hash_pandas_object(table, index=False).to_numpy()).digest()


def _refuse_unequal_seeds(runs: pd.DataFrame) -> None:
    every = set(runs["seed"])
    for (task, setup), rows in runs.groupby(["task", "setup"]):
        if lacking := sorted(every - set(rows["seed"])):
            raise RunError(
                f"unequal seeds: {setup} on {task} has no seed {lacking} (it has "
                f"{rows['path'].iloc[0]}), which others have: {_WAY_OUT}"
            )


def _words(runs: pd.DataFrame) -> tuple[str, ...]:
    return tuple(
        f"{setup} on {task}, seed {', '.join(map(str, rows['seed']))}"
        for (setup, task), rows in runs.groupby(["setup", "task"])
    )
