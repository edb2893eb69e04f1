"""Waiting until what was written is on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync_tree(path: Path) -> None:
    """Returns when every file and directory below ``path``, and itself, is on the disk."""
    for folder, _, files in os.walk(path, topdown=False):
        for file in files:
            sync(Path(folder, file))
        sync(Path(folder))


def sync(path: Path) -> None:
    """Returns when a file's content, or a directory's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
