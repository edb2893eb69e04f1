"""The paper's numbers, and constants that make scores of different tasks comparable."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import pandas as pd

_CLEAR = 2.0

PAPER_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
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
)
"""Settings under which scores can be held to the paper's, by their names in ``config.json``."""


def paper_task_scores() -> pd.DataFrame:
    """The paper's tables of final and speed scores (Han & Sung, arXiv 1710.04423).

    Returns:
        Columns ``metric`` (``final``, ``speed``), ``task`` (its name in the paper), ``setup``,
        and over ten seeds ``mean`` and ``std``. One million frames; PPO with clip range 0.3,
        MBER and AMBER with 0.4, AMBER with drop factor 0.25.

    Examples:
        >>> from amber_trl.evaluation import paper_task_scores
        >>> paper_task_scores().query("task == 'Pendulum' and setup == 'amber'")["mean"].tolist()
        [-155.0, -272.0]
    """
    return _read("paper_task_scores.csv")


def paper_average_normalized_scores() -> pd.DataFrame:
    """The paper's tables of average normalised scores over its 35 setups (arXiv 1710.04423).

    Returns:
        Columns ``metric``, ``setup``, ``clip_epsilon``, ``drop_factor`` (NaN but for AMBER) and
        ``average_normalized_score``.

    Examples:
        >>> from amber_trl.evaluation import paper_average_normalized_scores
        >>> len(paper_average_normalized_scores().query("metric == 'final'"))
        35
    """
    return _read("paper_average_normalized_scores.csv")


def reference_returns() -> pd.DataFrame:
    """Two fixed constants per task, to normalise scores with.

    Returns:
        By ``env_id``: ``random_return`` (actions uniform in the action space; mean over
        ``random_episodes`` episodes, with ``random_standard_error``), ``reference_return`` (the
        paper's final score of PPO, mean over ``reference_seeds`` seeds, with ``reference_std``
        over them), ``source`` of both, and ``clear``: whether the two differ by at least twice
        ``reference_std``. Where they do not, a normalised score says more of the seed than of the
        setup, and the task is listed apart.

    Examples:
        >>> from amber_trl.evaluation import reference_returns
        >>> reference_returns().loc["Hopper-v5", "reference_return"]
        np.float64(2185.0)
    """
    table = _read("references.csv").set_index("env_id")
    gap = table["reference_return"] - table["random_return"]
    return table.assign(clear=gap >= _CLEAR * table["reference_std"])


def _read(name: str) -> pd.DataFrame:
    return _read_once(name).copy()


@cache
def _read_once(name: str) -> pd.DataFrame:
    with (files("amber_trl.evaluation") / "data" / name).open() as file:
        return pd.read_csv(file)
