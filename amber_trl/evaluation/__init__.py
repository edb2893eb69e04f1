"""A run's policy played and filmed, and figures of training runs.

Figures need the extra ``study`` (``pip install "amber_trl[study]"``), videos the extra ``video``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amber_trl.evaluation.evaluate import evaluate_run
from amber_trl.evaluation.logged_runs import LoggedRun, by_setup, find_runs, read_run
from amber_trl.evaluation.playing import Played, play
from amber_trl.evaluation.video import record_episode

if TYPE_CHECKING:
    from amber_trl.evaluation.plots import (
        batches_in_use,
        iteration_means,
        learning_curves,
        plot_runs,
        staleness_by_age,
    )

__all__ = [
    "LoggedRun",
    "Played",
    "batches_in_use",
    "by_setup",
    "evaluate_run",
    "find_runs",
    "iteration_means",
    "learning_curves",
    "play",
    "plot_runs",
    "read_run",
    "record_episode",
    "staleness_by_age",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> Any:
        """Imports the figures on first use, so that nothing else needs matplotlib."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from amber_trl.evaluation import plots
        except ModuleNotFoundError as error:
            raise ImportError(
                f'figures need {error.name}, which is not installed: pip install "amber_trl[study]"'
            ) from error
        return getattr(plots, name)


def __dir__() -> list[str]:
    return __all__
