"""Evaluates and films a run's policy, and draws figures of training runs.

Figures need matplotlib (the extra ``study``), videos imageio-ffmpeg (the extra ``video``).
"""

from amber_trl.evaluation.evaluate import evaluate_run
from amber_trl.evaluation.logged_runs import LoggedRun, by_setup, find_runs, read_run
from amber_trl.evaluation.playing import Played, play
from amber_trl.evaluation.plots import plot_runs
from amber_trl.evaluation.video import record_episode

__all__ = [
    "LoggedRun",
    "Played",
    "by_setup",
    "evaluate_run",
    "find_runs",
    "play",
    "plot_runs",
    "read_run",
    "record_episode",
]
