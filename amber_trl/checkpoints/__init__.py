"""Checkpoints that survive kills and full disks."""

from amber_trl.checkpoints._files import (
    CheckpointError,
    FileRecord,
    Manifest,
    best_checkpoint,
    read_component,
    verify_checkpoint,
)
from amber_trl.checkpoints._listing import list_checkpoints
from amber_trl.checkpoints.checkpoints import Checkpoints, Restored
from amber_trl.checkpoints.verify import verify_run

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "FileRecord",
    "Manifest",
    "Restored",
    "best_checkpoint",
    "list_checkpoints",
    "read_component",
    "verify_checkpoint",
    "verify_run",
]
