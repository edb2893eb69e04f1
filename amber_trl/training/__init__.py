"""Schedules, the update step, episode records, the log and the run directory."""

from amber_trl.training._guard import NonFiniteError
from amber_trl.training.compilation import should_compile
from amber_trl.training.config import Range, check_fields
from amber_trl.training.episodes import Episode, EpisodeRecorder
from amber_trl.training.interrupts import StopOnInterrupt
from amber_trl.training.log import TrainingLog
from amber_trl.training.run_directory import RunDirectory
from amber_trl.training.schedules import LinearSchedule
from amber_trl.training.update import UpdateStep

__all__ = [
    "Episode",
    "EpisodeRecorder",
    "LinearSchedule",
    "NonFiniteError",
    "Range",
    "RunDirectory",
    "StopOnInterrupt",
    "TrainingLog",
    "UpdateStep",
    "check_fields",
    "should_compile",
]
