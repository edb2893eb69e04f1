"""Scores of a training run, its policy played, and statistics, tables and figures of a study.

Tables, figures and statistics need the extra ``study`` (``pip install "amber_trl[study]"``), videos
the extra ``video``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amber_trl.evaluation.setups import Setup

if TYPE_CHECKING:
    from amber_trl.evaluation.evaluate import evaluate_run
    from amber_trl.evaluation.figures import learning_curves, scores_by_seed, scores_over
    from amber_trl.evaluation.ledger_figures import active_batches, minibatch_ratios, ratio_by_age
    from amber_trl.evaluation.playing import Played, play
    from amber_trl.evaluation.references import (
        paper_average_normalized_scores,
        paper_task_scores,
        reference_returns,
    )
    from amber_trl.evaluation.report import plot_runs, write_report
    from amber_trl.evaluation.run_files import RunError, UnfinishedRunError
    from amber_trl.evaluation.runs import Run, find_runs, read_run
    from amber_trl.evaluation.statistics import (
        Estimate,
        average_normalized_scores,
        bootstrap,
        bootstrap_band,
        gaussian_improvement,
        interquartile_mean,
        mean_score,
        normalize,
        probability_of_improvement,
        welch_difference,
    )
    from amber_trl.evaluation.study import Selection, Study, read_study
    from amber_trl.evaluation.tables import (
        aggregate_table,
        average_normalized_score_table,
        improvement_table,
        markdown,
        reuse_table,
        score_table,
        tasks_apart,
    )
    from amber_trl.evaluation.video import record_episode

# Imported on first use, so that training needs neither pandas nor matplotlib.
_MODULES = {
    "evaluate": ("evaluate_run",),
    "playing": ("Played", "play"),
    "figures": ("learning_curves", "scores_by_seed", "scores_over"),
    "ledger_figures": ("active_batches", "minibatch_ratios", "ratio_by_age"),
    "report": ("plot_runs", "write_report"),
    "references": ("paper_average_normalized_scores", "paper_task_scores", "reference_returns"),
    "run_files": ("RunError", "UnfinishedRunError"),
    "runs": ("Run", "find_runs", "read_run"),
    "statistics": (
        "Estimate",
        "average_normalized_scores",
        "bootstrap",
        "bootstrap_band",
        "gaussian_improvement",
        "interquartile_mean",
        "mean_score",
        "normalize",
        "probability_of_improvement",
        "welch_difference",
    ),
    "study": ("Selection", "Study", "read_study"),
    "tables": (
        "aggregate_table",
        "average_normalized_score_table",
        "improvement_table",
        "markdown",
        "reuse_table",
        "score_table",
        "tasks_apart",
    ),
    "video": ("record_episode",),
}
_EXTRA = ("matplotlib", "pandas", "scipy")

__all__ = [
    "Estimate",
    "Played",
    "Run",
    "RunError",
    "Selection",
    "Setup",
    "Study",
    "UnfinishedRunError",
    "active_batches",
    "aggregate_table",
    "average_normalized_score_table",
    "average_normalized_scores",
    "bootstrap",
    "bootstrap_band",
    "evaluate_run",
    "find_runs",
    "gaussian_improvement",
    "improvement_table",
    "interquartile_mean",
    "learning_curves",
    "markdown",
    "mean_score",
    "minibatch_ratios",
    "normalize",
    "paper_average_normalized_scores",
    "paper_task_scores",
    "play",
    "plot_runs",
    "probability_of_improvement",
    "ratio_by_age",
    "read_run",
    "read_study",
    "record_episode",
    "reference_returns",
    "reuse_table",
    "score_table",
    "scores_by_seed",
    "scores_over",
    "tasks_apart",
    "welch_difference",
    "write_report",
]


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(_imported(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _imported(module: str) -> Any:
    try:
        return import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise ImportError(
            f"amber_trl.evaluation.{module} needs {error.name}, which is not installed: "
            'pip install "amber_trl[study]"'
        ) from error
