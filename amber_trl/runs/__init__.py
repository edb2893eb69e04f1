"""A training run: its directory, episodes, scores and policies, and the class that drives it."""

from amber_trl._checks import import_named
from amber_trl.runs._loggers import LoggerName
from amber_trl.runs.initialization import initialize_from
from amber_trl.runs.interrupts import StopOnInterrupt
from amber_trl.runs.named_actor import named_actor
from amber_trl.runs.policies import Policy, find_policy, load_policy
from amber_trl.runs.run_directory import RunDirectory, read_config
from amber_trl.runs.scores import final_score, learning_curve, speed_score
from amber_trl.runs.training_run import TrainingRun

__all__ = [
    "LoggerName",
    "Policy",
    "RunDirectory",
    "StopOnInterrupt",
    "TrainingRun",
    "final_score",
    "find_policy",
    "import_named",
    "initialize_from",
    "learning_curve",
    "load_policy",
    "named_actor",
    "read_config",
    "speed_score",
]
