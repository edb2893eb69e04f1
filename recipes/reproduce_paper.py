"""Make the runs of the AMBER paper (Han & Sung, arXiv 1710.04423): tasks x setups x seeds.

    python recipes/reproduce_paper.py --dry-run                       # list the runs, done or not
    python recipes/reproduce_paper.py                                 # the main comparison
    python recipes/reproduce_paper.py --parts control episodic --seeds 0 1 2
    python recipes/reproduce_paper.py --setups ppo amber_drop0.1 --tasks Pendulum-v1 --seeds 0
    python recipes/reproduce_paper.py --archive docs/data/study       # publish the finished runs

Each run is a process of its recipe, in STUDY/PROTOCOL/ENV_ID/SETUP-seedSEED; its output goes to
log.txt there. The command can be repeated at any time: finished runs are left alone, and interrupted
ones are resumed from their last checkpoint, or restarted if they have none. A run that fails is
reported with its log, and the others continue. A run whose process is killed is tried again.
Ctrl-C or SIGTERM stops the runs after their current iteration. If this process itself is killed, its
runs continue to their end. Exit codes: 0 all finished, 1 some failed, 130 interrupted.

A setup is ppo, mber or amber, followed by its changes: _l4 (batches stored), _clip0.2 (clip range),
_drop0.1 (batch drop factor), _lr4e-5 (step size), _m64 (minibatches stay at 64 frames) or _episodic
(contiguous minibatches), as in mber_l8_clip0.2_m64. Other setups are trpo and acer, the comparators of
the paper's appendix, with recipes of their own. `recipes/study/grid.py` lists the parts of the study,
and --dry-run counts their runs. A million frames took 1.4 to 36 minutes on one core of a busy
machine, depending on task and setup; _m64 takes up to L times as long.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from ranges import Range, check_fields
from study import pools, runs
from study.archive import archive, is_archived
from study.grid import PARTS, Job, Protocol, changed, jobs
from tqdm import tqdm

from amber_trl._terminal import say as _say


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which runs to make, and where. Where the default is None, the parentheses say what applies."""

    study: Path = Path("study")
    """Directory of all runs."""
    parts: tuple[str, ...] | None = None
    """Parts of the study, made in this order (main; all with --dry-run or
    --archive)."""
    tasks: tuple[str, ...] | None = None
    """Gymnasium ids, instead of each part's own."""
    setups: tuple[str, ...] | None = None
    """Names of setups, instead of each part's own."""
    base: str = "amber"
    """Setup that the part screen_one changes."""
    protocol: Protocol | None = None
    """default or paper, instead of each part's own."""
    seeds: Annotated[tuple[int, ...] | None, Range(0, 2**31 - 1)] = None
    """Seeds, instead of each part's own."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames per run (1 000 000; smoke: 2560)."""
    smoke: bool = False
    """Short runs that run everything but learn nothing."""
    compile: Literal["auto", "on", "off"] = "auto"
    """on, off or auto, as in the main recipe."""
    checkpoint_interval: Annotated[int | None, Range(1)] = 50
    """Iterations between checkpoints (None: only one, when a run ends or is stopped)."""
    workers: Annotated[int | None, Range(1)] = None
    """Runs at a time, each on one thread (as many as there are available cores)."""
    retries: Annotated[int, Range(0)] = 2
    """Further attempts at a run whose process is killed."""
    ray_address: str | None = None
    """Run on the Ray cluster at this address, such as auto or HOST:6379 (extra `ray`); local starts a
    cluster on this machine. Every node needs the checkout and the study at the same paths."""
    dry_run: bool = False
    """List the runs, their states and their commands without starting any."""
    archive: Path | None = None
    """Add the finished runs to the zip files in this directory, to publish them, without starting any.
    With --dry-run, list which runs are in them."""


def grid(config: Config) -> dict[str, list[Job]]:
    """The runs to make, by part."""
    check_fields(config)
    if config.ray_address is not None and config.workers is not None:
        raise ValueError(
            f"workers={config.workers} with ray_address={config.ray_address!r}, where Ray decides "
            "how many runs to make at a time: leave out one of the two"
        )
    looks = (config.dry_run or config.archive is not None) and config.setups is None
    names = config.parts or (tuple(PARTS) if looks else ("main",))
    if unknown := sorted(set(names) - set(PARTS)):
        raise ValueError(f"parts={unknown}: choose from {list(PARTS)}")
    given = {name: getattr(config, name) for name in ("tasks", "setups", "seeds", "protocol")}
    given = {name: value for name, value in given.items() if value is not None}
    shared = ("smoke", "compile", "total_frames", "checkpoint_interval")
    options = {name: getattr(config, name) for name in shared}
    options = {name: value for name, value in options.items() if value != getattr(Config, name)}
    parts = {name: changed(replace(PARTS[name], **given), config.base) for name in names}
    return {name: jobs(config.study, part, options) for name, part in parts.items()}


def show(config: Config, parts: Mapping[str, list[Job]]) -> None:
    """Lists the runs with their states and what is left to do; counts them by part."""
    done: dict[str, str] = {}
    for job in _each_once(parts):
        done[job.name] = runs.state(job)
        if config.archive is not None and is_archived(job, config.archive):
            done[job.name] = "archived"
        command = runs.command_line(job) if done[job.name] in ("new", "interrupted") else ""
        _say(f"{done[job.name]:11s} {job.name} {command}".rstrip())
    for name, found in parts.items():
        counts = _counts(done[job.name] for job in {job.name: job for job in found}.values())
        _say(f"{name:10s} {PARTS[name].question} {counts}")


def publish(found: Iterable[Job], directory: Path) -> int:
    """Adds the finished runs to an archive, after reading each as the report would.

    Returns:
        The exit code: 1 if no run was archived.
    """
    try:
        from study.read import RunError, read_finished_run
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}: pip install pandas") from error

    done: dict[str, str] = {}
    for job in found:
        done[job.name] = runs.state(job)
        if done[job.name] == "other":
            _say(f"left out    {job.run_dir} has {', '.join(runs.other_options(job))}")
        elif done[job.name] == "finished":
            try:
                read_finished_run(job.run_dir)
            except RunError as error:
                done[job.name] = "left out"
                _say(f"left out    {error}")
            else:
                archive(job, directory)
                done[job.name] = "archived"
    _say(f"{_counts(done.values())} in {directory}")
    return 0 if "archived" in done.values() else 1


def make(config: Config, found: list[Job]) -> int:
    """Makes the unfinished runs; returns the exit code."""
    became: dict[str, str] = {job.name: runs.state(job) for job in found}
    for job in found:
        if became[job.name] == "other":
            raise ValueError(
                f"{job.run_dir} holds a run with {', '.join(runs.other_options(job))}: name "
                "another study directory, or remove that run"
            )
    _say(f"{len(found)} runs in {config.study}: {_counts(became.values())}")
    todo = [job for job in found if became[job.name] != "finished"]
    if config.ray_address is None:
        attempts = pools.make(todo, config.workers or len(os.sched_getaffinity(0)), config.retries)
    else:
        from study import on_ray

        attempts = on_ray.make(todo, config.ray_address, config.retries)
    started, ended = time.monotonic(), 0
    with closing(attempts):
        for attempt in attempts:
            job, problem = attempt.job, attempt.problem
            if problem is None:
                became[job.name], text = runs.state(job), _result(job)
            else:
                became[job.name] = "again" if attempt.again else "failed"
                text = f"{problem}; see {job.run_dir / runs.LOG}"
            ended += not attempt.again
            left = (time.monotonic() - started) / max(1, ended) * (len(todo) - ended)
            _say(
                f"[{ended}/{len(todo)}] {became[job.name]:11s} {job.name}: {text}; "
                f"about {tqdm.format_interval(left)} left"
            )
    _say(_counts(became.values()))
    if "failed" in became.values():
        return 1
    return 0 if set(became.values()) <= {"finished"} else 130


def main() -> int:
    """Runs the command line; returns the exit code."""
    config = tyro.cli(Config, description=__doc__)
    try:
        parts = grid(config)
        if config.dry_run:
            show(config, parts)
        elif config.archive is not None:
            return publish(_each_once(parts), config.archive)
        else:
            return make(config, _each_once(parts))
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        return 130
    return 0


def _each_once(parts: Mapping[str, list[Job]]) -> list[Job]:
    return list({job.name: job for found in parts.values() for job in found}.values())


def _result(job: Job) -> str:
    summary = runs.read_summary(job)
    if summary is None:
        return "stopped without saving"
    if summary["interrupted"]:
        return f"stopped after {summary['frames']} frames"
    taken = tqdm.format_interval(summary["seconds"])
    final, average = summary["final_score"], summary["speed_score"]
    return f"final score {final}, average return over training {average}, in {taken}"


def _counts(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(states).items())


if __name__ == "__main__":
    sys.exit(main())
