"""Score setups by the rule with which the default was chosen (docs/default_search.md).

    python recipes/score_setups.py docs/data/default_search --seeds 100 101
    python recipes/score_setups.py docs/data/default_search --ppo docs/tables/runs.csv

Prints a table in Markdown: of each setup its relative score on each task, and their mean, the score.
The relative score is `(x - r) / (p - r)`: `x` is the setup's mean of the average return over training,
`p` that of PPO as published, and `r` the return of random actions. A setup that lacks a seed on a task has
no relative score there and no score; one that lacks a seed on every task is named, not shown. Needs pandas.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import tyro
from study.read import RunError, read_study
from study.references import reference_returns
from tyro.conf import Positional


def relative_scores(runs: pd.DataFrame, published: pd.Series | None = None) -> pd.DataFrame:
    """Relative scores by setup and task, with their mean in the column ``score``, best first.

    Args:
        runs: a row per run, with ``task``, ``setup``, ``seed`` and ``speed_score``.
        published: ``p`` by task; by default the mean of the runs of ``ppo``.

    Raises:
        ValueError: if a task has no ``p`` or no ``r``, or no seed of a run of ``ppo`` is
            another setup's too.
    """
    scores = runs.pivot(index=["task", "seed"], columns="setup", values="speed_score")
    means = scores.groupby("task").mean(skipna=False)
    if published is None:
        published = means.get("ppo", pd.Series(float("nan"), means.index))
    published = published.reindex(means.index)
    if missing := list(means.index[published.isna()]):
        raise ValueError(
            f"{missing}: runs of ppo are missing, to which the other setups are compared"
        )
    random = reference_returns()["random_return"].reindex(means.index)
    if missing := list(means.index[random.isna()]):
        raise ValueError(
            f"tasks={missing}: the return of random actions is not known: leave them out"
        )
    relative = means.sub(random, axis=0).div(published - random, axis=0).T
    relative["score"] = relative.mean(axis=1, skipna=False)
    return relative.sort_values("score", ascending=False)


def main(
    study: Positional[Path],
    seeds: tuple[int, ...] | None = None,
    tasks: tuple[str, ...] | None = None,
    ppo: Path | None = None,
) -> None:
    """Prints the table.

    Args:
        study: folder with runs of one protocol, as reproduce_paper.py writes or archives them.
        seeds: seeds to score, instead of all.
        tasks: tasks to score, instead of all.
        ppo: table of published runs, whose runs of ppo under the paper's protocol give p.
    """
    try:
        read = read_study([study])
        runs, published = read.runs, None
        if len(protocols := sorted(set(runs["protocol"]))) > 1:
            raise ValueError(
                f"{study} has runs of protocols {protocols}: name a folder with one of them"
            )
        chosen: dict[str, tuple[int | str, ...] | None] = {"seed": seeds, "task": tasks}
        for column, wanted in chosen.items():
            if unknown := set(wanted or ()) - set(runs[column]):
                raise ValueError(f"{column}s={[*unknown]}: no run has them")
            runs = runs[runs[column].isin(wanted)] if wanted else runs
        if ppo is not None:
            known = pd.read_csv(ppo)
            if lacks := {"protocol", "task", "setup", "speed_score"} - {*known}:
                raise ValueError(f"ppo={ppo} has no {sorted(lacks)}: name a report's runs.csv")
            known = known[(known["protocol"] == "paper") & (known["setup"] == "ppo")]
            published = known.groupby("task")["speed_score"].mean()
        every = relative_scores(runs, published)
        table = every.dropna(how="all")
        if table.empty:
            raise ValueError("no setup has all these seeds on any of these tasks: nothing to score")
    except (RunError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    lacking = every.index.difference(table.index)
    own = runs[runs["setup"].isin(lacking)].groupby("setup")["seed"].agg(lambda s: sorted({*s}))
    few = [f"{setup} has seeds {seeds}, but not all on any task" for setup, seeds in own.items()]
    for words in [*read.left_out, *few]:
        sys.stderr.write(f"left out: {words}\n")
    lines = [["setup", *table.columns], ["---", *["--:"] * table.shape[1]]]
    for setup, row in table.iterrows():
        lines.append([f"`{setup}`", *("" if pd.isna(x) else f"{x:.2f}" for x in row)])
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
