"""Make the runs of the AMBER paper: tasks x setups x seeds, each by the main recipe's code.

    python recipes/reproduce_paper.py --dry-run                       # list the runs
    python recipes/reproduce_paper.py --study study                   # the main comparison
    python recipes/reproduce_paper.py --study study --parts main default mber --seeds 0 1 2
    python recipes/reproduce_paper.py --setups ppo amber-drop0.1 --tasks Pendulum-v1 --seeds 0
    python recipes/reproduce_paper.py --study study --archive docs/data/study

Each run has its directory, STUDY/PROTOCOL/ENV_ID/SETUP-seedSEED, with a log.txt beside what the
main recipe leaves. The command can be given again and again: finished runs are left alone,
interrupted ones start anew. A run that fails is reported with its log, and the others go on.
Ctrl-C ends the runs after their iteration; exit code 130. Exit code 1: some runs failed.

Setups (Han & Sung, arXiv 1710.04423): ppo, mber_l2, mber_l4, mber_l6, mber_l8, mber_episodic
(contiguous minibatches, L = 2), amber; then, where it differs, -clipEPSILON, -dropFACTOR,
-lrRATE and -m64 (minibatches that stay at 64 frames), as in mber_l8-clip0.2-m64. Parts:

  main       ppo and amber on the twelve tasks, one environment     120 runs with five seeds
  default    the same with eight environments                       120
  mber       mber_l2 on the twelve tasks                             60
  episodic   uniform and contiguous minibatches, three tasks         30
  minibatch  M = 64 and M = 64 L, clip range 0.2, one task           40
  humanoid   ppo and amber at the step size 4e-5, two tasks          20
  length     mber_l2 to mber_l8 on the twelve tasks                 240
  drop       amber with drop factors 0.1 to 0.3                     300
  clip       ppo and mber_l2 to mber_l8 with clip ranges 0.2 to 0.7 1800

A million frames take 2 to 15 minutes on one core, by task and setup, and -m64 L times as long.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import tyro
from ppo_amber_mujoco import resolve
from study import runs
from study.grid import PARTS, Job, Protocol, command_line, jobs
from study.pools import THREADS, LocalPool, Pool
from tqdm import tqdm

from amber_trl.envs import make_env
from amber_trl.training import Range, StopOnInterrupt, check_fields


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which runs to make, and where. Where a default is None, the text says what it stands for."""

    study: Path = Path("study")
    """Directory of all runs."""
    parts: tuple[str, ...] = ("main",)
    """Parts of the study, in the order in which they are made."""
    tasks: tuple[str, ...] | None = None
    """Gymnasium ids, instead of each part's own."""
    setups: tuple[str, ...] | None = None
    """Names of setups, instead of each part's own."""
    protocol: Protocol | None = None
    """default or paper, instead of each part's own."""
    seeds: Annotated[tuple[int, ...], Range(0, 2**31 - 1)] = (0, 1, 2, 3, 4)
    """Seeds of every task and setup."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames of every run (1 000 000; smoke: 2560)."""
    smoke: bool = False
    """Short runs that exercise everything, and learn nothing."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update step, as in the main recipe."""
    workers: Annotated[int | None, Range(1)] = None
    """Runs at a time, each a process on one thread (as many as there are cores to use)."""
    retries: Annotated[int, Range(0)] = 2
    """Further attempts at a run whose process was killed."""
    dry_run: bool = False
    """List the runs, what has become of them and their commands; make none."""


def grid(config: Config) -> list[Job]:
    """The runs to make; refuses what cannot be, by name, before any is made."""
    check_fields(config)
    if unknown := sorted(set(config.parts) - set(PARTS)):
        raise ValueError(f"parts {unknown} are none: choose from {list(PARTS)}")
    given = {"tasks": config.tasks, "setups": config.setups, "protocol": config.protocol}
    given = {name: value for name, value in given.items() if value is not None}
    parts = [replace(PARTS[name], **given) for name in config.parts]
    common: dict[str, Any] = {"smoke": config.smoke, "compile": config.compile}
    found = jobs(config.study, parts, config.seeds, common | {"total_frames": config.total_frames})
    for job in found:
        resolve(job.config)
    for task in dict.fromkeys(job.config.env_id for job in found):
        make_env(task, 1).close()
    return found


class Progress:
    """A line for every end of a run, with the time that the others will take."""

    def __init__(self, todo: list[Job], finished: int) -> None:
        self._todo, self._ended = todo, finished
        self._count = finished + len(todo)
        self._started = time.time()
        self._total = sum(resolve(job.config).total_frames for job in todo)
        self._bar = tqdm(total=self._total, unit="frame", disable=None, smoothing=0)
        self._given_up: set[str] = set()

    def tick(self) -> None:
        """Moves the bar to the frames that all runs have logged."""
        if not self._bar.disable:
            self._bar.n = self._frames()
            self._bar.refresh()

    def line(self, job: Job, word: str, text: str, *, over: bool = True) -> None:
        """Says what became of a run, and whether that is its end."""
        self._ended += over
        if over and word != "finished":
            self._given_up.add(job.name)
        head = f"[{self._ended}/{self._count}] {word:11s} {job.name}"
        tqdm.write(f"{head}: {text}; {self._left()} left", file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def _frames(self) -> int:
        return sum(
            resolve(job.config).total_frames
            if job.name in self._given_up
            else runs.frames(job, self._started)
            for job in self._todo
        )

    def _left(self) -> str:
        frames, seconds = self._frames(), time.time() - self._started
        if not frames:
            return "unknown time"
        return f"about {tqdm.format_interval(seconds * max(self._total / frames - 1, 0))}"


def make(todo: list[Job], pool: Pool, progress: Progress) -> dict[str, str]:
    """Makes the runs; returns what became of each, by name."""
    became: dict[str, str] = {}
    asked = False
    with StopOnInterrupt() as stop, closing(pool.run(todo)) as ends:
        for ended in ends:
            if ended is not None:
                became[ended.job.name] = _report(ended.job, ended.problem, ended.again, progress)
            if stop.requested and not asked:
                asked = True
                pool.stop()
            progress.tick()
    return {job.name: became.get(job.name, "not started") for job in todo}


def _report(job: Job, problem: str | None, again: bool, progress: Progress) -> str:
    if problem is not None:
        text = f"{problem}; see {job.config.run_dir}/{runs.LOG}"
        progress.line(job, "again" if again else "failed", text, over=not again)
        return "failed"
    became = runs.state(job)
    said = runs.summary(job)
    text = "by request"
    if became == "finished":
        scores = f"final {said['final_score']:.6g}, speed {said['speed_score']:.6g}"
        text = f"{scores}, {tqdm.format_interval(said['seconds'])}"
    progress.line(job, became, text)
    return became


def main() -> int:
    """Command line; returns the exit code."""
    config = tyro.cli(Config, description=__doc__)
    try:
        found = grid(config)
        states = {job.name: runs.state(job) for job in found}
    except (ValueError, TypeError, OSError, ImportError, gymnasium.error.Error) as error:
        sys.exit(f"error: {error}")
    if config.dry_run:
        for job in found:
            command = " ".join(command_line(job.config))
            sys.stdout.write(f"{states[job.name]:11s} {job.name}: {command}\n")
    tally = Counter(states.values())
    sys.stdout.write(f"{len(found)} runs in {config.study}: {_words(tally)}\n")
    sys.stdout.flush()
    todo = [job for job in found if states[job.name] != "finished"]
    if config.dry_run or not todo:
        return 0
    os.environ.update(THREADS)
    pool = LocalPool(config.workers or len(os.sched_getaffinity(0)), config.retries)
    progress = Progress(todo, finished=tally["finished"])
    try:
        became = make(todo, pool, progress)
    except KeyboardInterrupt:
        return 130
    finally:
        progress.close()
    for name, word in became.items():
        if word == "failed":
            sys.stdout.write(f"failed: {name}, see {config.study / name / runs.LOG}\n")
    sys.stdout.write(f"{_words(Counter(became.values()))}\n")
    if "failed" in became.values():
        return 1
    return 0 if set(became.values()) == {"finished"} else 130


def _words(tally: Counter[Any]) -> str:
    return ", ".join(f"{count} {word}" for word, count in tally.items())


if __name__ == "__main__":
    sys.exit(main())
