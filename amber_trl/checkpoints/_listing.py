"""Which checkpoints a directory holds, by their names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"(\d{12,})(?:-(\d+))?")


def order(path: Path) -> tuple[int, int] | None:
    """Frames and repetition that a checkpoint's name stands for; None for another name."""
    found = _NAME.fullmatch(path.name)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def list_checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a directory, oldest first; whether they are whole is not looked at.

    Args:
        directory: as given to :class:`Checkpoints`; it need not exist.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, list_checkpoints
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     for frames in (2048, 4096, 6144):
        ...         _ = checkpoints.save(frames, score=None)
        ...     [path.name for path in list_checkpoints(directory)]
        ['000000004096', '000000006144']
    """
    directory = Path(directory)
    if not directory.is_dir():
        return []
    found = {path: place for path in directory.iterdir() if (place := order(path)) is not None}
    return sorted(found, key=found.__getitem__)


def best_of(scores: Mapping[Path, float | None]) -> Path | None:
    """The checkpoint of the highest score, of equals the last; None if none has a score."""
    best: Path | None = None
    highest = -math.inf
    for path, score in scores.items():
        if score is not None and score >= highest:
            best, highest = path, score
    return best
