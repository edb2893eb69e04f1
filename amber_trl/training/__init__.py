"""Schedules, the update step, episode records, the log and the run directory."""

from amber_trl.training._checkpoint_files import (
    CheckpointError,
    FileRecord,
    Manifest,
    best_checkpoint,
    read_component,
    verify_checkpoint,
)
from amber_trl.training._checkpoint_listing import list_checkpoints
from amber_trl.training._guard import NonFiniteError
from amber_trl.training.checkpoints import Checkpoints, Restored
from amber_trl.training.collection import CollectionState
from amber_trl.training.compilation import should_compile
from amber_trl.training.config import Range, check_fields
from amber_trl.training.episodes import Episode, EpisodeRecorder
from amber_trl.training.interrupts import StopOnInterrupt
from amber_trl.training.log import TrainingLog
from amber_trl.training.policy import PolicyRecord
from amber_trl.training.run_directory import RunDirectory
from amber_trl.training.schedules import LinearSchedule
from amber_trl.training.update import UpdateStep
from amber_trl.training.verify import verify_run

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "CollectionState",
    "Episode",
    "EpisodeRecorder",
    "FileRecord",
    "LinearSchedule",
    "Manifest",
    "NonFiniteError",
    "PolicyRecord",
    "Range",
    "Restored",
    "RunDirectory",
    "StopOnInterrupt",
    "TrainingLog",
    "UpdateStep",
    "best_checkpoint",
    "check_fields",
    "list_checkpoints",
    "read_component",
    "should_compile",
    "verify_checkpoint",
    "verify_run",
]
