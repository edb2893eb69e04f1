"""Reads back a run's files, and stops a run."""

import csv
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amber_trl.checkpoints import list_checkpoints, read_component
from amber_trl.runs import TrainingRun


def read_rows(run_dir: Path, table: str = "iterations") -> list[dict[str, str]]:
    """The rows of a table."""
    with (run_dir / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_tables(run_dir: Path) -> list[bytes]:
    """The tables that equal runs write byte for byte alike."""
    return [(run_dir / name).read_bytes() for name in ("episodes.csv", "iterations.csv")]


def last_state(run_dir: Path, component: str) -> Any:
    """A component of the last checkpoint."""
    return read_component(list_checkpoints(run_dir / "checkpoints")[-1], component)


@contextmanager
def stopping(frames: int = 0, number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Sends a signal in the iteration in which a run reaches ``frames``."""
    record = TrainingRun.record

    def stop(run: TrainingRun, *args: Any, **kwargs: Any) -> None:
        record(run, *args, **kwargs)
        if run.frames >= frames:
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "record", stop)
        yield
