"""Checkpoints that survive kills, damage and full disks."""

from amber_trl.checkpoints.checkpoint_file import CheckpointError, read_component
from amber_trl.checkpoints.checkpoints import (
    Checkpoints,
    best_checkpoint,
    list_checkpoints,
    verify_run,
)

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "best_checkpoint",
    "list_checkpoints",
    "read_component",
    "verify_run",
]
