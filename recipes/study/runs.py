"""One run of the study: what its directory says of it, and making it in this process."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from ppo_amber_config import resolve, saved_config
from ppo_amber_mujoco import train

from amber_trl._provenance import differences, package_versions
from amber_trl.checkpoints import list_checkpoints
from study.grid import Job, command_line

LOG = "log.txt"
"""What a run said on its standard output and error, attempt after attempt."""
_LOCK = "run.lock"
_BEGUN = "# begun "
_WAY_OUT = "remove that run"
_RESTORE = "restore it, or remove that run"
_TABLES = ("episodes.csv", "iterations.csv")
# What is read of a summary, and what it may be.
_SUMMARY: dict[str, tuple[Any, str]] = {
    "interrupted": (bool, "true or false"),
    "final_score": (int | float | None, "a number or null"),
    "speed_score": (int | float | None, "a number or null"),
    "episodes": (int, "a whole number"),
    "seconds": (int | float, "a number"),
}
# Options that say where and how a run is made, and not what it computes.
_INCIDENTAL = {"run_dir", "overwrite", "checkpoint_interval", "resume", "progress", "tensorboard"}
_INCIDENTAL |= {"num_threads"}

State = Literal["new", "interrupted", "finished", "damaged", "in use", "another"]


class OtherRunError(ValueError):
    """A directory holds a run of other options or versions than those asked for."""


class DamagedRunError(ValueError):
    """A file of a run is not as a run leaves it; the message names the file and the way out."""


def state(job: Job) -> State:
    """What has become of a run, by its files.

    Raises:
        DamagedRunError: if one of them cannot be used.
        OtherRunError: if its directory holds a run that was made with other options, or one to go on
            with that was begun under other versions.
    """
    directory = job.run_dir
    made = _read(directory / "config.json")
    if (directory / "iterations.csv.gz").exists():
        raise DamagedRunError(
            f"{directory} holds compressed tables, as a published run does: name another study "
            "directory to make runs in"
        )
    if made is None:
        if left := [name for name in ("summary.json", *_TABLES) if (directory / name).exists()]:
            raise DamagedRunError(f"{directory} has {left} and no config.json: {_RESTORE}")
        return "new"
    wanted = json.loads(json.dumps(asdict(resolve(job.config)), default=str))
    # What a run was compiled by is what came of the option.
    compiled = "on" if made.get("compiled") else "off"
    if lacking := sorted(wanted.keys() - made.keys()):
        raise DamagedRunError(f"{directory / 'config.json'} lacks {lacking}: {_RESTORE}")
    made |= {"compile": wanted["compile"] if wanted["compile"] == "auto" else compiled}
    for name in sorted(made.keys() & wanted.keys() - _INCIDENTAL - {"compiled"}):
        if made[name] != wanted[name] and str(made[name]) != str(wanted[name]):
            raise OtherRunError(
                f"{directory} holds a run with {name}={made[name]!r}, and {wanted[name]!r} is "
                "asked for: name another study directory, or remove that run"
            )
    found = summary(job)
    if found is None or found["interrupted"]:
        if can_resume(job):
            refuse_other_versions(job)
        return "interrupted"
    # Never to be made anew: its data are there, if not all.
    for table in _TABLES:
        if not (directory / table).exists():
            raise DamagedRunError(f"{directory / table} of a finished run is missing: {_RESTORE}")
    if frames(job) < job.total_frames:
        raise DamagedRunError(
            f"{directory / 'iterations.csv'} of a finished run has no whole row of frame "
            f"{job.total_frames}: {_RESTORE}"
        )
    rows = max(0, (directory / "episodes.csv").read_bytes().count(b"\n") - 1)
    if rows != found["episodes"]:
        raise DamagedRunError(
            f"{directory / 'episodes.csv'} of a finished run has {rows} whole rows, and summary.json "
            f"says {found['episodes']}: {_RESTORE}"
        )
    return "finished"


def refuse_other_versions(job: Job, *, shared: bool = False) -> None:
    """Refuses a run of other versions than those that are installed.

    Args:
        job: the run.
        shared: compare only packages that were there then and are now, as a report does.

    Raises:
        OtherRunError: if a version differs.
    """
    before, now = _read(job.run_dir / "versions.json"), package_versions()
    if before is None:
        return
    if shared:
        before = {name: version for name, version in before.items() if name in now}
        now = {name: version for name, version in now.items() if name in before}
    if changed := differences(before, now):
        raise OtherRunError(
            f"{job.run_dir} was made under other versions ({', '.join(changed)}): install those, "
            f"name another study directory, or {_WAY_OUT}"
        )


def summary(job: Job) -> dict[str, Any] | None:
    """What a run's ``summary.json`` says; None if there is none.

    Raises:
        DamagedRunError: if it does not say what every run's does.
    """
    path = job.run_dir / "summary.json"
    found = _read(path)
    if found is None:
        return None
    for name, (kinds, words) in _SUMMARY.items():
        if not isinstance(found.get(name, ...), kinds):
            said = repr(found[name]) if name in found else "not there"
            raise DamagedRunError(f"{path}: {name} is {said}, and must be {words}: {_WAY_OUT}")
    return found


def frames(job: Job, since: float = 0.0) -> int:
    """Frames that a run has logged so far, by the last row of its table.

    0 if the table is older than ``since`` (a time), or that row is damaged.
    """
    try:
        with (job.run_dir / "iterations.csv").open("rb") as table:
            if os.fstat(table.fileno()).st_mtime < since:
                return 0
            size = table.seek(0, os.SEEK_END)
            table.seek(max(0, size - 16384))
            lines = table.read().split(b"\n")[1:-1]  # whole lines; the first is the header at most
    except FileNotFoundError:
        return 0
    rows = [line for line in lines if line.strip()]
    last = rows[-1].partition(b",")[0] if rows else b""
    return int(last) if last.isdigit() else 0


def in_use(job: Job) -> bool:
    """Whether another process is making a run."""
    for name in (_LOCK, "timing.csv"):  # the study's, and that of any RunDirectory
        try:
            with (job.run_dir / name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except BlockingIOError:
            return True
    return False


def can_resume(job: Job) -> bool:
    """Whether an interrupted run has a checkpoint to go on from."""
    return bool(list_checkpoints(job.run_dir / "checkpoints"))


def attempts(job: Job) -> int:
    """How often a run was begun, by its log."""
    try:
        return (job.run_dir / LOG).read_text(errors="replace").count(_BEGUN)
    except FileNotFoundError:
        return 0


def make(job: Job) -> str | None:
    """Makes a run in this process, unless it is finished; what it says goes to its log.

    It goes on from its last checkpoint, and starts anew where it has none. One that another process
    is making is left to it.

    Returns:
        What went wrong, in a line, or None.
    """
    directory = job.run_dir
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _claimed(directory) as ours:
            if not ours or state(job) == "finished":
                return None
            with _logged(directory / LOG, job):
                anew = replace(job.config, overwrite=True)
                train(saved_config(directory) if can_resume(job) else anew)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        contents = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedRunError(
            f"{path} cannot be read ({error.strerror}): see to that, or name another study directory"
        ) from error
    except ValueError as error:
        raise DamagedRunError(f"{path} is no JSON ({error}): {_WAY_OUT}") from error
    if not isinstance(contents, dict):
        raise DamagedRunError(f"{path} holds no object: {_WAY_OUT}")
    return contents


@contextmanager
def _claimed(directory: Path) -> Iterator[bool]:
    """Keeps other processes out of a run directory, if none is at work in it.

    The system lets go when this one ends.
    """
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _logged(path: Path, job: Job) -> Iterator[None]:
    """Sends all that this process says to a file, whoever says it; an error's traceback too."""
    kept = os.dup(1), os.dup(2)
    with path.open("a", buffering=1) as log:
        command = command_line(job.config)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"{_BEGUN}{now}, process {os.getpid()} on {platform.node()}: {command}\n")
        try:
            _redirect(log.fileno(), log.fileno())
            yield
        except Exception:
            traceback.print_exc()
            raise
        finally:
            _redirect(*kept)
            for descriptor in kept:
                os.close(descriptor)


def _redirect(out: int, err: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(err, 2)
