"""A training run: its directory, log, episodes, scores and policies."""

from amber_trl.runs.episodes import Episode, EpisodeRecorder
from amber_trl.runs.interrupts import StopOnInterrupt
from amber_trl.runs.log import TrainingLog
from amber_trl.runs.policies import Policy, find_policy, load_policy
from amber_trl.runs.policy import PolicyRecord
from amber_trl.runs.run_directory import RunDirectory
from amber_trl.runs.scores import final_score, learning_curve, speed_score

__all__ = [
    "Episode",
    "EpisodeRecorder",
    "Policy",
    "PolicyRecord",
    "RunDirectory",
    "StopOnInterrupt",
    "TrainingLog",
    "final_score",
    "find_policy",
    "learning_curve",
    "load_policy",
    "speed_score",
]
