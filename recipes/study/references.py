"""The paper's numbers, and constants that make the scores of different tasks comparable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

_FOLDER = Path(__file__).parent / "data"

PAPER_SETTINGS: Mapping[str, Any] = {
    "num_envs": 1,
    "time_limits": "terminal",
    "total_frames": 1_000_000,
    "frames_per_batch": 2048,
    "epochs": 10,
    "minibatch_size": 64,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "critic_coeff": 1.0,
    "entropy_coeff": 0.0,
    "max_grad_norm": None,
    "normalize_advantage": "batch",
    "staleness_metric": "mean_abs_deviation",
    "hidden_sizes": [64, 64],
}
"""Settings under which scores can be compared with the paper's, by their names in ``config.json``."""


def paper_task_scores() -> pd.DataFrame:
    """The paper's tables of final and speed scores (Han & Sung, arXiv 1710.04423).

    Returns:
        Columns ``metric`` (``final``, ``speed``), ``task`` (its name in the paper), ``setup``, and
        ``mean`` and ``std`` over ten seeds. One million frames; PPO with clip range 0.3, MBER and
        AMBER with 0.4, AMBER with drop factor 0.25.
    """
    return pd.read_csv(_FOLDER / "paper_task_scores.csv")


def paper_average_normalized_scores() -> pd.DataFrame:
    """The paper's tables of average normalised scores over its 35 setups (arXiv 1710.04423).

    Returns:
        Columns ``metric``, ``setup``, ``clip_epsilon``, ``drop_factor`` (NaN except for AMBER) and
        ``average_normalized_score``.
    """
    return pd.read_csv(_FOLDER / "paper_average_normalized_scores.csv")


def reference_returns() -> pd.DataFrame:
    """Two fixed constants per task for normalising scores.

    Returns:
        By ``env_id``: ``random_return`` (actions uniform in the action space; mean over
        ``random_episodes`` episodes, with ``random_standard_error``), ``reference_return`` (the
        paper's final score of PPO, mean over ``reference_seeds`` seeds, with ``reference_std`` over
        them), ``source`` of both, and ``clear``: whether the two differ by at least twice
        ``reference_std``. If they do not, a normalised score says more about the seed than about the
        setup, and the task is listed separately.
    """
    table = pd.read_csv(_FOLDER / "references.csv").set_index("env_id")
    gap = table["reference_return"] - table["random_return"]
    return table.assign(clear=gap >= 2 * table["reference_std"])
