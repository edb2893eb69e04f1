"""Schedules, the update step, episode records and the run directory."""

from amber_trl.training.episodes import Episode, EpisodeRecorder
from amber_trl.training.interrupts import StopOnInterrupt
from amber_trl.training.run_directory import RunDirectory
from amber_trl.training.schedules import LinearSchedule
from amber_trl.training.update import UpdateStep

__all__ = [
    "Episode",
    "EpisodeRecorder",
    "LinearSchedule",
    "RunDirectory",
    "StopOnInterrupt",
    "UpdateStep",
]
