"""The files of a training run."""

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
from amber_trl.checkpoints.checkpoint_file import PART, write_whole
from amber_trl.runs._episodes import COLUMNS
from amber_trl.runs._files import Table
from amber_trl.runs._loggers import LEFT, LoggerName, check_logger, open_logger

TableName = Literal["episodes", "iterations", "timing"]

_TABLES: tuple[TableName, ...] = ("episodes", "iterations", "timing")
_WHOLE = ("config.json", "versions.json", "policy.pt", "summary.json", "evaluation-*.json")
_LEFT = (
    *(f"{name}.csv" for name in _TABLES),
    *(f"{name}{end}" for name in _WHOLE for end in ("", PART)),
    "checkpoints",
    *LEFT,
)
"""A run's files, as patterns. Nothing else is ever removed."""


class RunDirectory:
    r"""Directory of one training run, to which :class:`TrainingRun` writes.

    The tables ``episodes.csv``, ``iterations.csv`` and ``timing.csv`` are flushed every iteration, so
    that a kill loses at most one. Floats are written such that reading them back gives the same number.
    Wall-clock times are only in ``timing.csv`` and ``summary.json``, so equal runs write byte-identical
    episodes and iterations.

    It is a context manager that closes its files, and is locked while they are open.

    Args:
        path: the directory, created with its parents.
        overwrite: remove an earlier run's files and checkpoints in it. Other files are never
            touched.
        resume: continue the run in it.
        logger: a logger in addition to the tables; ``"csv"``: the tables only. ``"tensorboard"``
            writes to ``path/tensorboard``. ``"wandb"`` and ``"mlflow"`` are configured by their own
            environment variables, such as ``WANDB_PROJECT``, ``WANDB_MODE=offline`` or
            ``MLFLOW_TRACKING_URI``, without which MLflow writes ``path/mlflow.db``.

    Raises:
        FileExistsError: if ``path`` is a file, or already holds a run and neither ``overwrite`` nor
            ``resume`` is set.
        FileNotFoundError: if ``resume`` is set and ``path`` lacks one of a run's tables.
        ValueError: if both are set, or ``logger`` is unknown.
        BlockingIOError: if another process, or another object in this one, has the run open.
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
                table.path.unlink()  # so that no run exists yet
            raise
        if self._logger is not None:
            self._closing.enter_context(self._logger.experiment)

    @property
    def checkpoints(self) -> Path:
        """Directory for the run's checkpoints, not created here."""
        return self.path / "checkpoints"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes ``config.json``, and ``versions.json`` beside it.

        Args:
            config: the effective configuration: plain values by name. Infinity is written as the
                string ``"inf"``, which ``float`` reads back, and a path as a string.
        """
        self._write_json("config.json", config)
        self._write_json("versions.json", package_versions())

    def config_text(self) -> str:
        """The contents of ``config.json``; empty before it is written."""
        path = self.path / "config.json"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, with the versions added; NaN is written as ``null``."""
        self._write_json("summary.json", {**summary, "versions": package_versions()})

    def append(self, table: TableName, *rows: Mapping[str, Any]) -> None:
        """Appends rows to a table: numbers by column, frames so far first, None for an empty cell.

        The first row determines the columns.
        """
        self._tables[table].append(*rows)

    def log(self, frames: int, values: Mapping[str, Any]) -> None:
        """Passes an iteration's numbers to the logger by name; None is left out.

        A resumed run repeats iterations that were logged before it was stopped. Those are left out, so
        that each is logged once.
        """
        if self._logger is not None and frames > self._logged:
            numbers = {name: float(value) for name, value in values.items() if value is not None}
            self._logger.log_metrics(numbers, step=frames)
            self._logger.flush()

    def rows(self, table: TableName) -> list[list[str]]:
        """The cells of each row of a table, as text."""
        return self._tables[table].rows()

    def sync(self) -> None:
        """Flushes all rows to the disk, so that a later checkpoint never refers to missing rows."""
        for table in self._tables.values():
            table.sync()

    def rewind(self, frames: int, *, last_row: int | None = None) -> None:
        """Keeps the rows up to a checkpoint, so that none is missing or duplicated.

        Also removes ``policy.pt`` and ``summary.json``, written when the run ended earlier.

        Args:
            frames: frames of the checkpoint.
            last_row: frame of the last row of ``iterations.csv`` at that time, if it is earlier than
                ``frames``.

        Raises:
            ValueError: if ``iterations.csv`` has no such row.
        """
        # This table's row is written after the logger gets the iteration.
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
        """Closes all files; appended rows are kept."""
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
                f"run directory {self.path} is in use by another training: wait for it to end, or "
                "name another directory"
            ) from error

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        text = json.dumps(_plain(values), indent=2, allow_nan=False)
        write_whole(self.path / name, f"{text}\n".encode())


def read_config(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The contents of a run's ``config.json``.

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
    """A value in a form that JSON can represent."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
