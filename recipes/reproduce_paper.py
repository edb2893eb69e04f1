"""Make the runs of the AMBER paper: tasks x setups x seeds, each by the main recipe's code.

    python recipes/reproduce_paper.py --dry-run                       # list the runs
    python recipes/reproduce_paper.py --study study                   # the main comparison
    python recipes/reproduce_paper.py --study study --parts main default mber --seeds 0 1 2
    python recipes/reproduce_paper.py --setups ppo amber_drop0.1 --tasks Pendulum-v1 --seeds 0
    python recipes/reproduce_paper.py --study study --archive docs/data/study

Each run has its directory, STUDY/PROTOCOL/ENV_ID/SETUP-seedSEED, with a log.txt beside what the
main recipe leaves. The command can be given again and again: finished runs are left alone,
interrupted ones go on from their last checkpoint, or start anew where they have none. A run that
fails is reported with its log, one with a damaged file with that file, and the others go on; one
that another process is making is left to it. One whose process is killed is tried again.
Ctrl-C or SIGTERM ends the runs after their iteration. Exit codes: 0 all finished, 1 some not (failed,
damaged, in use), 130 interrupted; with --dry-run or --archive 0, or 1 if some are damaged or of other
options. Should this process itself be killed, its runs go on to their end.

A setup is ppo, mber (two batches) or amber (eight), and after it what differs: _l4 (batches),
_clip0.2 (clip range), _drop0.1 (batch drop factor), _lr4e-5 (step size), _m64 (minibatches that
stay at 64 frames), _episodic (contiguous minibatches), as in mber_l8_clip0.2_m64. The parts of
the study of Han & Sung (arXiv 1710.04423):

  main       ppo and amber on the twelve tasks, one environment     120 runs with five seeds
  control    ppo with amber's clip range, on the same tasks          60
  default    the main part with eight environments                  120
  mber       mber_l2 on the twelve tasks                             60
  episodic   uniform and contiguous minibatches, three tasks         30
  minibatch  M = 64 and M = 64 L, clip range 0.2, one task           40
  humanoid   ppo and amber at the step size 4e-5, two tasks          20
  length     mber_l2 to mber_l8 on the twelve tasks                 240
  drop       amber with drop factors 0.1 to 0.3                     300
  clip       ppo and mber_l2 to mber_l8 with clip ranges 0.2 to 0.7 1800

A million frames took 4 to 36 minutes on one core of a busy machine, by task and setup; _m64 takes
up to L times as long.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import tyro
from ranges import Range, check_fields
from study import runs
from study.archive import archive
from study.grid import PARTS, Job, Protocol, command_line, jobs
from study.pools import THREADS, LocalPool, Pool
from tqdm import tqdm

from amber_trl.envs import make_env
from amber_trl.runs import StopOnInterrupt


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
    """on, off or auto, as in the main recipe."""
    checkpoint_interval: Annotated[int | None, Range(1)] = None
    """Iterations between checkpoints (None: only one, when a run ends or is asked to stop)."""
    workers: Annotated[int | None, Range(1)] = None
    """Runs at a time, each a process on one thread (as many as there are cores to use)."""
    retries: Annotated[int, Range(0)] = 2
    """Further attempts at a run whose process was killed."""
    ray_address: str | None = None
    """Make the runs on the Ray cluster at this address, such as auto or HOST:6379 (extra `ray`);
    local starts one on this machine. Every node needs checkout and study at the same paths."""
    dry_run: bool = False
    """List the runs, what has become of them and their commands; make none."""
    archive: Path | None = None
    """Copy the finished runs of the grid here as small compressed files, to publish; make none.
    Each is read first as a report reads it (extra `study`)."""


def grid(config: Config) -> list[Job]:
    """The runs to make; refuses what cannot be, by name, before any is made."""
    check_fields(config)
    if config.dry_run and config.archive is not None:
        raise ValueError(f"dry_run=True with archive={config.archive}: leave out one of the two")
    if config.study.exists() and not config.study.is_dir():
        raise ValueError(f"study={config.study} is a file: name a directory, or one to be made")
    if config.ray_address is not None and config.workers is not None:
        raise ValueError(
            f"workers={config.workers} with ray_address={config.ray_address!r}, where Ray decides "
            "how many runs are made at a time: leave out one of the two"
        )
    if config.archive is not None:
        _check_apart(config.study, config.archive)
    if unknown := sorted(set(config.parts) - set(PARTS)):
        raise ValueError(f"parts {unknown} are none: choose from {list(PARTS)}")
    for name in ("parts", "tasks", "setups", "seeds"):
        if getattr(config, name) == ():
            raise ValueError(f"{name} is empty: name at least one, or leave the option out")
    own = {name: getattr(config, name) for name in ("tasks", "setups", "protocol")}
    own = {name: value for name, value in own.items() if value is not None}
    parts = [replace(PARTS[name], **own) for name in config.parts]
    shared = ("smoke", "compile", "total_frames", "checkpoint_interval")
    common = {name: getattr(config, name) for name in shared}
    found = jobs(config.study, parts, config.seeds, common)
    for task in dict.fromkeys(job.config.env_id for job in found):
        make_env(task, 1).close()
    return found


def _check_apart(study: Path, archive: Path) -> None:
    one, other = study.resolve(), archive.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise ValueError(
            f"archive={archive} with study={study}: neither may be in the other, as a report would "
            "find every run twice; name an archive beside the study"
        )


def make_pool(config: Config) -> Pool:
    """What makes the runs, several at a time."""
    os.environ.update(THREADS)
    if config.ray_address is None:
        return LocalPool(config.workers or len(os.sched_getaffinity(0)), config.retries)
    from study.on_ray import RayPool

    return RayPool(config.ray_address, config.retries)


class Progress:
    """A line for every end of a run, with the time that the others will take; a bar as well."""

    def __init__(self, todo: list[Job], finished: int) -> None:
        self._todo = {job.name: job for job in todo}
        self._count = finished + len(todo)
        self._started = time.time()
        # Frames that a run logged earlier count if it goes on from them.
        self._since = {j.name: 0.0 if runs.can_resume(j) else self._started for j in todo}
        self._at_first = self._left()
        total = sum(job.total_frames for job in todo)
        options: dict[str, Any] = {"total": total, "initial": total - self._at_first}
        self._bar = tqdm(unit="frame", disable=None, smoothing=0, **options)

    def tick(self) -> None:
        """Moves the bar to where the runs are."""
        if not self._bar.disable:
            self._bar.n = self._bar.total - self._left()
            self._bar.refresh()

    def line(self, job: Job, word: str, text: str) -> None:
        """Says what became of a run, which is its end unless it will be tried again."""
        if word != "again":
            del self._todo[job.name]
        head = f"[{self._count - len(self._todo)}/{self._count}] {word:11s} {job.name}"
        tqdm.write(f"{head}: {text}; {self._time_left()}", file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def _left(self) -> int:
        return sum(
            max(0, job.total_frames - runs.frames(job, self._since[job.name]))
            for job in self._todo.values()
        )

    def _time_left(self) -> str:
        left, seconds = self._left(), time.time() - self._started
        if (made := self._at_first - left) <= 0:
            return "time left unknown"
        return f"about {tqdm.format_interval(seconds * left / made)} left"


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
        became, text = "again" if again else "failed", f"{problem}; see {job.run_dir / runs.LOG}"
    elif runs.in_use(job):
        became, text = "in use", "another process makes it"
    elif (became := runs.state(job)) == "finished":
        text = _result(runs.summary(job) or {})
    else:
        text = f"stopped at {runs.frames(job)} frames"
    progress.line(job, became, text)
    return became


def _result(summary: Mapping[str, Any]) -> str:
    scores = []
    for name in ("final", "speed"):
        score = summary[f"{name}_score"]
        scores.append(f"{name} -" if score is None else f"{name} {score:.6g}")
    return f"{', '.join(scores)}, in {tqdm.format_interval(summary['seconds'])}"


def main() -> int:
    """Command line; returns the exit code."""
    config = tyro.cli(Config, description=__doc__)
    try:
        found = grid(config)
        states = {job.name: _state(job, config) for job in found}
        todo = [job for job in found if states[job.name] in ("new", "interrupted")]
        if todo and config.archive is None:
            _check_versions(found, states, config)
        if _only_looks(config) or not todo:
            return _only_look(config, found, states)
        pool = make_pool(config)
    except (ValueError, TypeError, OSError, ImportError, gymnasium.error.Error) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        return 130
    _say(f"{len(found)} runs in {config.study}: {_words(states)}")
    progress = Progress(todo, finished=len(found) - len(todo))
    try:
        became = make(todo, pool, progress)
    except KeyboardInterrupt:
        return 130
    finally:
        progress.close()
    for name, word in became.items():
        if word == "failed":
            _say(f"failed: {name}, see {config.study / name / runs.LOG}")
    _say(_words(became))
    if "failed" in became.values():
        return 1
    if not {"finished", "in use"}.issuperset(became.values()):
        return 130
    return _exit_code(config, states | became)


def _state(job: Job, config: Config) -> runs.State:
    try:
        return "in use" if runs.in_use(job) else runs.state(job)
    except runs.DamagedRunError as error:
        _say(f"damaged: {job.name}: {error}")
        return "damaged"
    except runs.OtherRunError as error:
        return _another(job, config, error)


def _check_versions(found: list[Job], states: dict[str, runs.State], config: Config) -> None:
    """Refuses to add runs to finished ones of other versions, which no report would take."""
    for job in found:
        if states[job.name] == "finished":
            try:
                runs.refuse_other_versions(job, shared=True)
            except runs.OtherRunError as error:
                states[job.name] = _another(job, config, error)


def _another(job: Job, config: Config, error: runs.OtherRunError) -> runs.State:
    # A grid of runs that partly are of other options is not begun, but can be looked at.
    if not _only_looks(config):
        raise error
    _say(f"another: {job.name}: {error}")
    return "another"


def _only_look(config: Config, found: list[Job], states: dict[str, runs.State]) -> int:
    if config.dry_run:
        for job in found:
            _say(f"{states[job.name]:11s} {job.name}: {command_line(job.config)}")
    elif config.archive is not None:
        size = sum(_archive(j, config.archive, states) for j in found)
        for name, word in states.items():
            if word != "finished":
                _say(f"left out, as it is {word}: {name}")
        if size:
            _say(f"{size / 1e6:.1f} MB of finished runs in {config.archive}")
    _say(f"{len(found)} runs in {config.study}: {_words(states)}")
    return _exit_code(config, states)


def _only_looks(config: Config) -> bool:
    return config.dry_run or config.archive is not None


def _exit_code(config: Config, states: Mapping[str, str]) -> int:
    bad = {"damaged", "another"} if _only_looks(config) else {"damaged", "in use"}
    return 0 if bad.isdisjoint(states.values()) else 1


def _archive(job: Job, directory: Path, states: dict[str, runs.State]) -> int:
    if states[job.name] != "finished":
        return 0
    # Needs the extra study, which making runs does not.
    from amber_trl.evaluation import UnfinishedRunError, read_run

    try:
        read_run(job.run_dir)
        return archive(job, directory)
    except UnfinishedRunError as error:  # finished, and without a score
        _say(f"left out: {error}")
        return 0
    except (OSError, ValueError) as error:
        file = error.filename if isinstance(error, OSError) else job.run_dir
        if file is None or not Path(file).is_relative_to(job.run_dir):
            raise  # nothing is wrong with the run
        _say(f"damaged: {job.name}: {error}")
        states[job.name] = "damaged"
        return 0


def _words(states: Mapping[str, str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(states.values()).items())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
