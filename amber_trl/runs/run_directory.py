"""The files that a training run leaves behind."""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from tensordict import TensorDictBase
from torch import Tensor

from amber_trl._provenance import package_versions
from amber_trl.runs._episodes import Episode
from amber_trl.runs._table import Cell, Table

_EPISODE_COLUMNS = ("frame", "return", "length", "terminated", "truncated")
_LEDGER_COLUMNS = (
    "importance_ratio",
    "staleness",
    "kl",
    "ess",
    "num_capped",
    "num_non_finite",
    "active",
    "reason",
)
_TABLES = ("episodes.csv", "iterations.csv", "timing.csv")
_FILES = (*_TABLES, "config.json", "versions.json", "policy.pt", "summary.json")


class RunDirectory:
    """Directory of one training run, in which :class:`TrainingRun` writes.

    It holds ``config.json`` and ``versions.json`` (written before training), ``episodes.csv``,
    ``iterations.csv`` and ``timing.csv`` (flushed every iteration, so that a kill loses at most
    one), ``policy.pt`` and ``summary.json`` (written at the end), and ``checkpoints``. Floats are
    written so that reading them back gives the same number, and the wall clock is in ``timing.csv``
    and ``summary.json`` only: equal runs leave byte-identical episodes and iterations.

    It is a context manager that closes its files, and it is locked while they are open. TorchRL's
    TensorBoard logger can be fed beside the tables.

    Args:
        path: the directory, created with its parents.
        overwrite: remove the files and checkpoints of an earlier run in it. Other files are never
            touched.
        resume: go on with the run in it.
        tensorboard: also log every iteration to ``path/tensorboard``.

    Raises:
        FileExistsError: if ``path`` already holds a run and neither ``overwrite`` nor ``resume``
            is set.
        FileNotFoundError: if ``resume`` is set and ``path`` lacks one of a run's tables.
        ValueError: if both are set.
        BlockingIOError: if another process, or another object of this one, has the run open.
        NotADirectoryError: if ``path`` is a file.
        ImportError: if ``tensorboard`` is asked for and not installed.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import RunDirectory
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with RunDirectory(f"{parent}/run") as directory:
        ...         directory.append_iteration({"frames": 256, "learning_rate": 0.1})
        ...     print((directory.path / "iterations.csv").read_text())
        frames,learning_rate
        256,0.1
        <BLANKLINE>
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        tensorboard: bool = False,
    ) -> None:
        if overwrite and resume:
            raise ValueError("overwrite=True and resume=True: choose one")
        self.path, self.resumed = Path(path), resume
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"run directory {self.path}: it is a file; name a directory")
        missing = [name for name in _TABLES if not (self.path / name).is_file()]
        if resume and missing:
            raise FileNotFoundError(
                f"run directory {self.path} has no {missing[0]}, so there is no run to resume: "
                "name the directory of a run that was interrupted"
            )
        if (self.path / "timing.csv").exists():
            with (self.path / "timing.csv").open() as file:
                self._lock(file)
        held = [] if resume else self._held()
        if held and not overwrite:
            raise FileExistsError(
                f"run directory {self.path} already holds a run ({held[0].name}): name another "
                "directory, go on with that run (resume=True, --resume in the main recipe), or "
                "overwrite it (overwrite=True, --overwrite in a recipe)"
            )
        logger = _tensorboard_logger(self.path) if tensorboard else None
        self.path.mkdir(parents=True, exist_ok=True)
        for item in held:
            shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        self._logger = logger
        self._episodes, self._iterations, self._timing = (
            Table(self.path / name) for name in _TABLES
        )
        self._lock(self._timing.file)
        if not resume:
            for table in self._tables:
                table.clear()
            self._episodes.start(*_EPISODE_COLUMNS)

    @property
    def checkpoints(self) -> Path:
        """Directory for the run's checkpoints; not created here."""
        return self.path / "checkpoints"

    def _lock(self, file: TextIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
        except BlockingIOError as error:
            raise BlockingIOError(
                f"run directory {self.path} is in use by another training: wait for its end, or "
                "name another directory"
            ) from error

    def _held(self) -> list[Path]:
        held = [self.path / name for name in _FILES if (self.path / name).exists()]
        held += sorted((self.path / "tensorboard").glob("events.out.tfevents.*"))
        held += sorted(self.path.glob("evaluation-*.json"))
        return held + [path for path in (self.checkpoints,) if path.exists()]

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

    def append_episodes(self, episodes: Iterable[Episode]) -> None:
        """Appends finished episodes, in the order given, to ``episodes.csv``."""
        self._episodes.append(*(dict(zip(_EPISODE_COLUMNS, e, strict=True)) for e in episodes))

    def append_iteration(
        self,
        values: Mapping[str, Any],
        *,
        ledger: TensorDictBase | None = None,
        num_batches: int = 1,
    ) -> None:
        """Appends one iteration to ``iterations.csv``, and to TensorBoard if that is on.

        Args:
            values: numbers or one-element tensors by column, ``frames`` (collected so far) first.
                The first call settles the columns. ``None`` leaves a cell empty.
            ledger: what ``MultiBatchReplayBuffer.refresh`` returned; its main columns are
                written once per batch age, as ``importance_ratio_0`` and so on.
            num_batches: ages to write, at least the ledger's; cells of batches that are not
                stored yet stay empty.
        """
        row = {n: v.item() if isinstance(v, Tensor) else v for n, v in values.items()}
        if ledger is not None:
            row |= _ledger_cells(ledger, num_batches)
        self._iterations.append(row)
        if self._logger is not None:
            for name, value in row.items():
                if value is not None and name != "frames":
                    self._logger.log_scalar(name, value, step=row["frames"])

    def append_timing(self, values: Mapping[str, Cell]) -> None:
        """Appends one iteration's wall-clock measurements to ``timing.csv``, ``frames`` first."""
        self._timing.append(values)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, with the versions added; NaN is written as ``null``."""
        self._write_json("summary.json", {**summary, "versions": package_versions()})

    def read_episodes(self) -> list[Episode]:
        """The episodes in ``episodes.csv``, as they were appended."""
        with self._episodes.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        return [
            Episode(int(frame), float(total), int(length), terminated == "1", truncated == "1")
            for frame, total, length, terminated, truncated in rows
        ]

    def sync(self) -> None:
        """Puts all rows on the disk, so that a checkpoint saved after it never has more of them."""
        for table in self._tables:
            table.sync()

    def rewind(self, frames: int) -> None:
        """Keeps the rows up to a checkpoint, so that none is missing or there twice.

        Removes ``policy.pt`` and ``summary.json`` too, which an earlier end of the run left.

        Args:
            frames: frames of the checkpoint. TensorBoard drops what came later as well.

        Raises:
            ValueError: if ``iterations.csv`` has no row of that frame.
        """
        if (last := self._iterations.rewind(frames)) != frames:
            raise ValueError(
                f"{self._iterations.path} ends at frame {last}, before the checkpoint at {frames}: "
                "rows are missing; restore the file, or start the run again"
            )
        self._episodes.rewind(frames)
        self._timing.rewind(frames)
        for name in ("policy.pt", "summary.json"):
            (self.path / name).unlink(missing_ok=True)
        if self._logger is not None:
            writer = self._logger.experiment
            writer.purge_step = frames + 1
            writer.close()  # it opens another file, which says so

    @property
    def _tables(self) -> tuple[Table, ...]:
        return (self._episodes, self._iterations, self._timing)

    def close(self) -> None:
        """Closes all files; what was appended stays."""
        for table in self._tables:
            table.close()
        if self._logger is not None:
            self._logger.experiment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_json(self, name: str, values: Mapping[str, Any]) -> None:
        temporary = self.path / f"{name}.part"
        temporary.write_text(json.dumps(_plain(values), indent=2, allow_nan=False) + "\n")
        temporary.replace(self.path / name)


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


def _ledger_cells(ledger: TensorDictBase, num_batches: int) -> dict[str, Any]:
    if len(ledger) > num_batches:
        raise ValueError(
            f"ledger of {len(ledger)} batches given with num_batches={num_batches}: "
            "pass the num_batches of the buffer"
        )
    cells: dict[str, Any] = {}
    for name in _LEDGER_COLUMNS:
        column = ledger[name].tolist()
        column += [None] * (num_batches - len(column))
        cells.update((f"{name}_{age}", value) for age, value in enumerate(column))
    return cells


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _tensorboard_logger(path: Path) -> Any:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "tensorboard=True, but the tensorboard package is not installed: "
            'install it with pip install "amber_trl[tensorboard]", or leave the option out'
        ) from error
    from torchrl.record.loggers import TensorboardLogger

    return TensorboardLogger(exp_name="tensorboard", log_dir=str(path))
