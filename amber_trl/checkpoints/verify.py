"""Looking through the checkpoints of a run."""

from __future__ import annotations

import os
from pathlib import Path

from amber_trl.checkpoints._files import CheckpointError, verify_checkpoint
from amber_trl.checkpoints._listing import list_checkpoints, order

CHECKPOINTS = "checkpoints"
"""Where a run directory keeps its checkpoints."""


def verify_run(run_dir: str | os.PathLike[str]) -> list[tuple[Path, str | None]]:
    """Checks every file of every checkpoint of a run, or of one checkpoint, against its manifest.

    Args:
        run_dir: run directory, its directory of checkpoints, or one checkpoint.

    Returns:
        Each checkpoint, oldest first, and what is wrong with it; None where nothing is.

    Raises:
        FileNotFoundError: there is no checkpoint to check.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, verify_run
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     component = {"actor": torch.nn.Linear(2, 1)}
        ...     path = Checkpoints(f"{run_dir}/checkpoints", component).save(2048, score=None)
        ...     (path / "manifest.json").unlink()
        ...     [(path, problem)] = verify_run(run_dir)
        >>> problem
        'checkpoint file ...manifest.json is missing'
    """
    if not Path(run_dir).is_dir():
        raise FileNotFoundError(
            f"run_dir={os.fspath(run_dir)!r} is no directory: name that of a run"
        )
    paths = list_checkpoints(checkpoint_directory(run_dir))
    if not paths and _is_checkpoint(Path(run_dir)):
        paths = [Path(run_dir)]
    if not paths:
        raise FileNotFoundError(
            f"run_dir={os.fspath(run_dir)!r} holds no checkpoint: name the directory of a run that "
            "saved one, or a checkpoint"
        )
    return [(path, _problem(path)) for path in paths]


def checkpoint_directory(run_dir: str | os.PathLike[str]) -> Path:
    """Where the checkpoints of a run lie; a directory of checkpoints stands for itself."""
    inside = Path(run_dir) / CHECKPOINTS
    return inside if inside.is_dir() else Path(run_dir)


def _is_checkpoint(path: Path) -> bool:
    """Whether it has a checkpoint's name, or a manifest under another name."""
    return path.is_dir() and (
        order(path.resolve()) is not None or (path / "manifest.json").is_file()
    )


def _problem(path: Path) -> str | None:
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    return None
