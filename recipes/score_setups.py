"""Score setups by the rule that chooses the default (docs/default_search.md).

    python recipes/score_setups.py docs/data/default_search

Prints a Markdown table with each setup's relative score on each task, and their mean, the score. The
relative score is `(x - r) / (p - r)`: `x` is the setup's mean of the average return over training, `p`
that of published PPO over the same seeds, and `r` the return of random actions. A setup with missing
runs on a task has no score. Needs pandas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import tyro
from study.read import RunError, read_study
from study.references import reference_returns
from tyro.conf import Positional


def relative_scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Relative scores by setup and task, with their mean in the column ``score``, best first.

    Args:
        runs: one row per run, with ``task``, ``setup``, ``seed`` and ``speed_score``.

    Raises:
        ValueError: if a task has no run of ``ppo`` with a seed that another setup has.
    """
    scores = runs.pivot(index=["task", "seed"], columns="setup", values="speed_score")
    published = scores.get("ppo", pd.Series(float("nan"), scores.index))
    if missing := list(scores.index[published.isna()]):
        raise ValueError(f"task and seed of {missing} have no run of ppo to compare with")
    means = scores.groupby("task").agg(lambda column: column.mean(skipna=False))
    random = reference_returns()["random_return"].reindex(means.index)
    relative = means.sub(random, axis=0).div(means["ppo"] - random, axis=0).T
    relative["score"] = relative.mean(axis=1, skipna=False)
    return relative.sort_values("score", ascending=False)


def main(study: Positional[Path]) -> None:
    """Runs the command line.

    Args:
        study: folder with runs of one protocol, as written or archived by reproduce_paper.py.
    """
    try:
        table = relative_scores(read_study([study]).runs)
    except (RunError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    lines = [["setup", *table.columns], ["---", *["--:"] * table.shape[1]]]
    for setup, row in table.iterrows():
        lines.append([f"`{setup}`", *("" if pd.isna(x) else f"{x:.2f}" for x in row)])
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
