"""One run of the study: its state, the command that makes it, and its process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from amber_trl.checkpoints import list_checkpoints
from amber_trl.evaluation.logged_runs import INCIDENTAL
from study.grid import Job

LOG = "log.txt"
"""The output of a run's attempts, one after the other."""
THREADS = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Environment variables for a process that makes a run on one core."""
STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a run that was asked to stop and saved a checkpoint."""
_ROOT = Path(__file__).parents[2]

State = Literal["new", "interrupted", "finished", "other"]


def state(job: Job) -> State:
    """The state of a run, judged by its files; "other" if its directory holds another run."""
    if not (job.run_dir / "config.json").exists():
        return "new"
    if other_options(job):
        return "other"
    summary = read_summary(job)
    return "interrupted" if summary is None or summary["interrupted"] else "finished"


def other_options(job: Job) -> list[str]:
    """The options in which the run in the directory differs from the requested one, as text."""
    made = json.loads((job.run_dir / "config.json").read_text())
    wanted = json.loads(json.dumps(asdict(job.config), default=str))
    return [
        f"{name}={made[name]!r} instead of {wanted[name]!r}"
        for name in wanted
        if name in made and name not in INCIDENTAL and str(made[name]) != str(wanted[name])
    ]


def read_summary(job: Job) -> dict[str, Any] | None:
    """The contents of the run's ``summary.json``; None if there is none."""
    path = job.run_dir / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def arguments(job: Job) -> list[str]:
    """The recipe's arguments that start a run, or resume it if it has a checkpoint."""
    if list_checkpoints(job.run_dir / "checkpoints"):
        return ["--resume", str(job.run_dir), "--no-progress"]
    words = []
    for name, value in (job.options | {"progress": False, "run_dir": job.run_dir}).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    begun = (job.run_dir / "config.json").exists()  # but killed before its first checkpoint
    return [*words, "--overwrite"] if begun else words


def command_line(job: Job) -> str:
    """The command that starts or resumes a run, as it would be typed."""
    return shlex.join(["python", job.recipe, *arguments(job)])


def start(job: Job) -> subprocess.Popen[bytes]:
    """Starts or resumes a run in a process and session of its own, with its output in its log."""
    job.run_dir.mkdir(parents=True, exist_ok=True)
    with (job.run_dir / LOG).open("ab") as log:
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {command_line(job)}\n".encode())
        log.flush()
        return subprocess.Popen(
            [sys.executable, str(_ROOT / job.recipe), *arguments(job)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | THREADS,
            start_new_session=True,  # a terminal's Ctrl-C then reaches this process only
        )


def problem(job: Job, code: int) -> str | None:
    """What went wrong in a run, from its exit code, in one line; None if nothing did."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code in (0, *STOPPED):
        return None
    said = (job.run_dir / LOG).read_text(errors="replace").splitlines()
    return said[-1]
