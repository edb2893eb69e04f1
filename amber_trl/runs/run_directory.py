"""The files that a training run leaves behind."""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

from amber_trl._provenance import package_versions
from amber_trl.checkpoints import list_checkpoints
from amber_trl.runs._episodes import COLUMNS
from amber_trl.runs._files import Table, write_whole
from amber_trl.runs._loggers import LEFT, LoggerName, check_logger, open_logger

TableName = Literal["episodes", "iterations", "timing"]

_TABLES: tuple[TableName, ...] = ("episodes", "iterations", "timing")
_LEFT = (
    *(f"{name}.csv" for name in _TABLES),
    "config.json",
    "versions.json",
    "policy.pt",
    "summary.json",
    "checkpoints",
    "evaluation-*.json",
    *LEFT,
)
"""What a run leaves, as patterns. Nothing else is ever removed."""


class RunDirectory:
    r"""Directory of one training run, in which :class:`TrainingRun` writes.

    Its tables ``episodes.csv``, ``iterations.csv`` and ``timing.csv`` are flushed every iteration,
    so that a kill loses at most one. Floats are written so that reading them back gives the same
    number, and the wall clock is in ``timing.csv`` and ``summary.json`` only: equal runs leave
    byte-identical episodes and iterations.

    It is a context manager that closes its files, and it is locked while they are open.

    Args:
        path: the directory, created with its parents.
        overwrite: remove the files and checkpoints of an earlier run in it. Other files are never
            touched.
        resume: go on with the run in it.
        logger: where iterations go besides the tables: ``"csv"`` is nowhere. ``"tensorboard"`` is
            ``path/tensorboard``. ``"wandb"`` and ``"mlflow"`` are set up by their own environment
            variables, such as ``WANDB_PROJECT``, ``WANDB_MODE=offline`` or ``MLFLOW_TRACKING_URI``,
            without which MLflow writes ``path/mlflow.db``.

    Raises:
        FileExistsError: if ``path`` is a file, or already holds a run and neither ``overwrite`` nor
            ``resume`` is set.
        FileNotFoundError: if ``resume`` is set and ``path`` lacks one of a run's tables.
        ValueError: if both are set, or ``logger`` is unknown.
        BlockingIOError: if another process, or another object of this one, has the run open.
        ImportError: if the package of the ``logger`` is not installed.
        RuntimeError: if the logger cannot start, for example without a login.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import RunDirectory
        >>> with tempfile.TemporaryDirectory() as parent, RunDirectory(f"{parent}/run") as run:
        ...     run.append("iterations", {"frames": 256, "learning_rate": 0.1})
        ...     (run.path / "iterations.csv").read_text()
        'frames,learning_rate\n256,0.1\n'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        logger: LoggerName = "csv",
    ) -> None:
        check_logger(logger)
        if overwrite and resume:
            raise ValueError("overwrite=True and resume=True: choose one")
        self.path, self.resumed = Path(path), resume
        held = [file for pattern in _LEFT for file in self.path.glob(pattern)]
        missing = [f"{n}.csv" for n in _TABLES if self.path / f"{n}.csv" not in held]
        if resume and missing:
            raise FileNotFoundError(
                f"run directory {self.path} has no {missing[0]}, so there is no run to resume: "
                "name the directory of a run that was interrupted"
            )
        if held and not (overwrite or resume):
            resumable = " resume it (--resume)," if list_checkpoints(self.checkpoints) else ""
            raise FileExistsError(
                f"run directory {self.path} already holds a run ({held[0].name}):{resumable} "
                "overwrite it (--overwrite), or name another directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._tables = {name: Table(self.path / f"{name}.csv") for name in _TABLES}
        self._lock()
        if not resume:
            for table in self._tables.values():
                table.file.truncate(0)
            for item in set(held) - {table.path for table in self._tables.values()}:
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
            self._tables["episodes"].start(*COLUMNS)
        self._closing = ExitStack()
        for table in self._tables.values():
            self._closing.enter_context(table.file)
        self._logged = 0  # frames of the last iteration that the logger has
        try:
            self._logger = open_logger(logger, self.path)
        except RuntimeError:
            self._closing.close()
            for table in self._tables.values() if not resume else ():
                table.path.unlink()  # so that there is no run yet
            raise
        if self._logger is not None:
            self._closing.enter_context(self._logger.experiment)

    @property
    def checkpoints(self) -> Path:
        """Directory for the run's checkpoints; not created here."""
        return self.path / "checkpoints"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes ``config.json``, and ``versions.json`` beside it.

        Args:
            config: the effective configuration, plain values by name. Infinity is written as the
                string ``"inf"``, which ``float`` reads back, and a path as a string.
        """
        self._write_json("config.json", config)
        self._write_json("versions.json", package_versions())

    def config_text(self) -> str:
        """What ``config.json`` holds; empty before it is written."""
        path = self.path / "config.json"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, with the versions added; NaN is written as ``null``."""
        self._write_json("summary.json", {**summary, "versions": package_versions()})

    def append(self, table: TableName, *rows: Mapping[str, Any]) -> None:
        """Appends rows to a table: numbers by column, the frames so far first, None if empty.

        The first row settles the columns.
        """
        self._tables[table].append(*rows)

    def log(self, frames: int, values: Mapping[str, Any]) -> None:
        """Gives the logger an iteration's numbers by name; None is left out.

        A resumed run repeats iterations that were logged before it was stopped. These are left out,
        so each is there once.
        """
        if self._logger is not None and frames > self._logged:
            numbers = {name: float(value) for name, value in values.items() if value is not None}
            self._logger.log_metrics(numbers, step=frames)
            self._logger.flush()

    def rows(self, table: TableName) -> list[list[str]]:
        """The cells of each row of a table, as text."""
        return self._tables[table].rows()

    def sync(self) -> None:
        """Puts all rows on the disk, so that a checkpoint saved after it never has more of them."""
        for table in self._tables.values():
            table.sync()

    def rewind(self, frames: int, *, last_row: int | None = None) -> None:
        """Keeps the rows up to a checkpoint, so that none is missing or there twice.

        Removes ``policy.pt`` and ``summary.json`` too, which an earlier end of the run left.

        Args:
            frames: frames of the checkpoint.
            last_row: frame of the row of ``iterations.csv`` that was the last one then, if it is an
                earlier one.

        Raises:
            ValueError: if ``iterations.csv`` has no such row.
        """
        # This table's row is written after the logger has the iteration.
        whole = (int(row[0]) for row in self.rows("timing") if row and row[0].isdigit())
        self._logged = max(whole, default=0)
        last = {name: table.rewind(frames) for name, table in self._tables.items()}["iterations"]
        if last != (frames if last_row is None else last_row):
            raise ValueError(
                f"{self.path}/iterations.csv ends at frame {last}, before the checkpoint at "
                f"{frames}: rows are missing; restore the file, or start the run again"
            )
        for name in ("policy.pt", "summary.json"):
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes all files; what was appended stays."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._tables["timing"].file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            for table in self._tables.values():
                table.file.close()
            raise BlockingIOError(
                f"run directory {self.path} is in use by another training: wait for its end, or "
                "name another directory"
            ) from error

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        text = json.dumps(_plain(values), indent=2, allow_nan=False)
        write_whole(self.path / name, f"{text}\n".encode())


def read_config(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """What a run's ``config.json`` holds.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import RunDirectory, read_config
        >>> with tempfile.TemporaryDirectory() as parent, RunDirectory(f"{parent}/run") as run:
        ...     run.write_config({"drop_factor": float("inf"), "hidden_sizes": (64, 64)})
        ...     read_config(run.path)
        {'drop_factor': 'inf', 'hidden_sizes': [64, 64]}
    """
    path = Path(run_dir, "config.json")
    if not path.is_file():
        found = "there is no config.json in it" if path.parent.is_dir() else "no such directory"
        raise FileNotFoundError(f"run_dir={str(run_dir)!r}: {found}; name the directory of a run")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not hold a configuration ({error}): restore it") from error


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
