"""Reads the study's runs, and chooses those that can be compared."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl.evaluation import LoggedRun, find_runs, read_run
from amber_trl.evaluation.logged_runs import INCIDENTAL
from amber_trl.runs import final_score, speed_score
from study.references import PAPER_SETTINGS
from study.setups import OWN, Setup, defaults

_NO_OPTIONS = INCIDENTAL | {"env_id", "seed", "protocol", "setup"}  # not in a setup's name


class RunError(ValueError):
    """A run, or a set of runs, cannot be evaluated; the message names the run."""


class UnfinishedRunError(RunError):
    """A run has not ended, was stopped early, or has no score."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained to the end, with files that agree with each other."""

    logged: LoggedRun
    setup: Setup
    summary: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def protocol(self) -> str:
        """Its protocol; runs of a recipe without protocols count under the default one."""
        return str(self.logged.config.get("protocol", "default"))

    @property
    def row(self) -> dict[str, Any]:
        """The run's row in a table of runs."""
        config, summary = self.logged.config, self.summary
        return {
            "protocol": self.protocol,
            "task": self.logged.task,
            "setup": self.setup.name,
            "seed": config.get("seed", 0),
            "final_score": summary["final_score"],
            "speed_score": summary["speed_score"],
            "frames": summary["frames"],
            "seconds": summary["seconds"],
            "exactness": summary.get("exactness", "not recorded"),
            "path": str(self.logged.path).rstrip("/"),
        }


def read_finished_run(path: Path | zipfile.Path) -> FinishedRun:
    """Reads a run directory, and checks that it is finished and that its files agree.

    Raises:
        UnfinishedRunError: if the run has no summary, was interrupted, has fewer frames than its
            configuration asks for, or no finished episode.
        RunError: if a file cannot be read, or the scores in ``summary.json`` do not match
            ``episodes.csv``.
    """
    if not (path / "summary.json").exists():
        raise UnfinishedRunError(f"{path} has no summary.json, so it has not finished")
    try:
        run = read_run(path)
        summary, versions = (
            json.loads((path / f"{name}.json").read_text()) for name in ("summary", "versions")
        )
        setup = Setup.from_config(run.config)
        asked, stated = run.config.get("total_frames") or 0, summary["frames"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read as a run of the study: {error!r}") from error
    if summary["interrupted"] or min(run.frames, stated) < asked:
        raise UnfinishedRunError(f"{path} has {run.frames} of {asked} frames")
    ends, returns = run.episodes["frame"].astype(int), run.episodes["return"]
    if not len(ends):
        raise UnfinishedRunError(f"{path} has no finished episode, so it has no score")
    found = {
        "episodes": len(ends),
        "frames": run.frames,
        "final_score": final_score(ends, returns),
        "speed_score": speed_score(ends, returns, int(run.iterations["frames"][0]), run.frames),
    }
    for name, value in found.items():
        if not np.isclose(value, summary[name], rtol=1e-9, atol=0):
            raise RunError(
                f"{path}: summary.json says {name}={summary[name]}, and the tables give {value}: "
                "restore its files, or remove the run"
            )
    return FinishedRun(run, setup, summary, versions)


@dataclass(frozen=True)
class Selection:
    """Comparable runs of some setups: all of their runs on the tasks that all of them have.

    Attributes:
        setups: names of the setups.
        tasks: tasks, sorted.
        runs: their rows of the study's table ``runs``.
        logged: what they logged, by setup.
        left_out: the tasks that some of the setups lack, as text.
    """

    setups: tuple[str, ...]
    tasks: tuple[str, ...]
    runs: pd.DataFrame
    logged: Mapping[str, Sequence[LoggedRun]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def scores(self, setup: str, metric: str) -> dict[str, NDArray[np.float64]]:
        """Final or speed scores of a setup by task, ``[seeds]`` in the order of seeds."""
        rows = self.runs[self.runs["setup"] == setup]
        column = f"{metric}_score"
        return {task: rows.loc[rows["task"] == task, column].to_numpy() for task in self.tasks}


@dataclass(frozen=True)
class Study:
    """All runs of a study.

    Attributes:
        runs: one row per run, with ``protocol``, ``task``, ``setup``, ``seed``, ``final_score``,
            ``speed_score``, ``frames``, ``seconds``, ``exactness`` and ``path``.
        logged: what the runs logged, by row of ``runs``.
        setups: the setups by name, in the order in which tables show them.
        versions: the versions that all runs of a protocol share, by protocol.
        left_out: the unfinished runs, as text.
    """

    runs: pd.DataFrame
    logged: Sequence[LoggedRun]
    setups: Mapping[str, Setup]
    versions: Mapping[str, Mapping[str, str]]
    left_out: tuple[str, ...] = ()

    def setups_of(self, protocol: str) -> dict[str, Setup]:
        """The setups with runs under a protocol, in order."""
        there = set(self.runs.loc[self.runs["protocol"] == protocol, "setup"])
        return {name: setup for name, setup in self.setups.items() if name in there}

    def values(self, protocol: str, option: str) -> list[Any]:
        """The values of an option in the runs of a protocol, sorted."""
        configs = [run.config for own in self.logged_of(protocol).values() for run in own]
        return sorted({config[option] for config in configs if option in config})

    def departures(self, protocol: str) -> list[str]:
        """How other options of the paper's setups differ from the paper, as text."""
        found: dict[str, set[str]] = {}
        tasks: set[str] = set()
        of_paper = [n for n, setup in self.setups_of(protocol).items() if setup.paper_name]
        for run in (run for name in of_paper for run in self.logged_of(protocol)[name]):
            tasks.add(run.task)
            here = {**defaults(run.config), **run.config}
            usual = defaults({**run.config, "protocol": "paper"})
            for option, paper in {**usual, **PAPER_SETTINGS}.items():
                if option not in _NO_OPTIONS.union(OWN) and here[option] != paper:
                    words = f"{option} {here[option]} (the paper: {paper})"
                    found.setdefault(words, set()).add(run.task)
        return [
            words if own == tasks else f"{words} on {', '.join(sorted(own))}"
            for words, own in found.items()
        ]

    def logged_of(self, protocol: str) -> dict[str, list[LoggedRun]]:
        """What all runs of a protocol logged, by setup."""
        found: dict[str, list[LoggedRun]] = {name: [] for name in self.setups_of(protocol)}
        for row in self.runs.index[self.runs["protocol"] == protocol]:
            found[self.runs["setup"][row]].append(self.logged[row])
        return found

    def select(self, protocol: str, setups: Sequence[str]) -> Selection | None:
        """All runs of some setups on the tasks that all of them have; None without such a task.

        Seeds need not agree: runs with the same seed are not paired, and leaving some of them out would
        make a result depend on which.
        """
        if not setups:
            return None
        runs = self.runs[(self.runs["protocol"] == protocol) & self.runs["setup"].isin(setups)]
        tasks_of = {name: set(runs["task"][runs["setup"] == name]) for name in setups}
        common = set.intersection(*tasks_of.values())
        if not common:
            return None
        every = sorted(set(runs["task"]))
        left_out = [
            f"tasks without {name}: {', '.join(task for task in every if task not in own)}"
            for name, own in tasks_of.items()
            if len(own) < len(every)
        ]
        runs = runs[runs["task"].isin(common)]
        logged = {
            name: [self.logged[row] for row in runs.index[runs["setup"] == name]] for name in setups
        }
        return Selection(tuple(setups), tuple(sorted(common)), runs, logged, tuple(left_out))


def read_study(paths: Iterable[str | os.PathLike[str]]) -> Study:
    """Reads all runs in folders and zip archives, at any depth; unfinished ones are left out.

    Raises:
        FileNotFoundError: if a path has no run under it.
        RunError: if no run is finished, the files of a run disagree, two runs have the same task,
            setup and seed, or the runs of a protocol differ in a version.
    """
    runs: list[FinishedRun] = []
    left_out: list[str] = []
    for path in find_runs(paths):
        try:
            runs.append(read_finished_run(path))
        except UnfinishedRunError as error:
            left_out.append(str(error))
    if not runs:
        raise RunError(f"no finished run: {'; '.join(left_out)}")
    runs = _with_setups(runs)
    labels = ["protocol", "task", "setup", "seed"]
    table = pd.DataFrame([run.row for run in runs]).sort_values(labels, kind="stable")
    if len(twice := table[table.duplicated(labels, keep=False)]):
        one, other = twice["path"][:2]
        raise RunError(f"{one} and {other} are the same task, setup and seed: remove one of them")
    protocols = sorted(set(table["protocol"]), key=lambda name: (name != "paper", name))
    by_protocol = {name: [run for run in runs if run.protocol == name] for name in protocols}
    return Study(
        table.reset_index(drop=True),
        [runs[row].logged for row in table.index],
        {run.setup.name: run.setup for run in sorted(runs, key=lambda run: run.setup.rank)},
        {name: _shared_versions(own) for name, own in by_protocol.items()},
        tuple(left_out),
    )


def _with_setups(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs, with setup names that include any other options that differ between them.

    It compares all runs of the main recipe under one protocol, and those of each other recipe.
    """
    alike: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        alike.setdefault(_recipe(run), []).append(run.logged)
    differing = {recipe: _differing(own) for recipe, own in alike.items()}
    return [
        replace(run, setup=Setup.from_config(run.logged.config, differing[_recipe(run)]))
        for run in runs
    ]


def _recipe(run: FinishedRun) -> tuple[str, ...]:
    return (run.protocol,) if defaults(run.logged.config) else (run.protocol, run.setup.method)


def _differing(runs: Sequence[LoggedRun]) -> list[str]:
    """The options that differ among the runs of any one task."""
    configs = [(run.task, {**defaults(run.config), **run.config}) for run in runs]
    return [
        name
        for name in dict.fromkeys(name for _, config in configs for name in config)
        if name not in _NO_OPTIONS
        and len({(task, str(config.get(name))) for task, config in configs})
        > len({task for task, _ in configs})
    ]


def _shared_versions(runs: Iterable[FinishedRun]) -> dict[str, str]:
    """The versions that all runs share; a version that a run does not record may be any."""
    found: dict[str, tuple[str, FinishedRun]] = {}
    for run in runs:
        for name, version in run.versions.items():
            known, where = found.setdefault(name, (version, run))
            if known != version:
                raise RunError(
                    f"{name} is {known} in {where.logged.path} and {version} in {run.logged.path}: "
                    "a page compares runs of equal versions; put them into folders of their own"
                )
    return {name: version for name, (version, _) in found.items()}
