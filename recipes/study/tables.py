"""Tables of a study, with the paper's numbers next to its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from ppo_amber_config import DROPPING

from amber_trl.envs import TASKS
from study.read import Selection, Study
from study.references import paper_average_normalized_scores, paper_task_scores, reference_returns
from study.setups import Setup
from study.statistics import (
    Estimate,
    Scores,
    average_normalized_scores,
    bootstrap,
    gaussian_improvement,
    interquartile_mean,
    mean_score,
    normalize,
    probability_of_improvement,
    welch_difference,
)

METRICS = {"final": "final score", "speed": "average return over training"}
"""The two scores, by the argument ``metric``, in words; the paper calls the second one speed."""

_PAPER_SEEDS = 10
_UNKNOWN = (np.nan, np.nan)


def score_table(selection: Selection, setups: Mapping[str, Setup], metric: str) -> pd.DataFrame:
    """Mean score of each task and setup, next to the paper's.

    Returns:
        A row per task and setup with ``seeds`` (their number), ``mean`` with a 95 % bootstrap interval
        ``low``, ``high``, the lowest and highest seed ``worst``, ``best``, the paper's ``paper_mean``
        and ``paper_std`` over ten seeds, and ``mean - paper_mean`` with Welch's 95 % interval:
        ``difference``, ``difference_low``, ``difference_high``. Numbers missing from the paper are NaN.
    """
    rows = []
    for setup in selection.setups:
        paper = _paper_scores(setups[setup], metric)
        for task, scores in selection.scores(setup, metric).items():
            estimate = bootstrap(mean_score, {task: scores})
            theirs, std = paper.get(_paper_task(task), _UNKNOWN)
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
            size = len(scores)
            to_paper = welch_difference(estimate.value, spread, size, theirs, std, _PAPER_SEEDS)
            rows.append(
                {"task": task, "setup": setup, "seeds": size}
                | _cells("mean", estimate)
                | {"worst": scores.min(), "best": scores.max()}
                | {"paper_mean": theirs, "paper_std": std}
                | _cells("difference", to_paper, "difference_")
            )
    return pd.DataFrame(rows).sort_values("task", kind="stable", ignore_index=True)


def improvement_table(
    selection: Selection, setups: Mapping[str, Setup], better: str, than: str, metric: str
) -> pd.DataFrame:
    """The gain of the setup ``better`` over the setup ``than``, by task and averaged over tasks.

    Returns:
        A row per task and, if there are several, a last row ``all tasks``. In each, ``seeds`` is the
        smaller number of seeds of the two, followed by the ``difference`` of the means with its 95 %
        bootstrap interval ``low``, ``high`` (NaN in the last row, as tasks have different scales), the
        ``probability`` that a run of ``better`` scores above one of ``than``, with its interval
        ``probability_low``, ``probability_high`` (NaN if resampling cannot change it, for example if all
        runs of one are above all of the other), and the paper's ``paper_difference`` and
        ``paper_probability``, from its means and deviations.
    """
    ours, theirs = selection.scores(better, metric), selection.scores(than, metric)
    papers = [_paper_scores(setups[name], metric) for name in (better, than)]
    rows: list[dict[str, Any]] = []
    cells = []
    for task in selection.tasks:
        one, other = {task: ours[task]}, {task: theirs[task]}
        cell = [number for paper in papers for number in paper.get(_paper_task(task), _UNKNOWN)]
        cells.append(cell)
        rows.append(
            {"task": task, "seeds": min(len(ours[task]), len(theirs[task]))}
            | _cells("difference", bootstrap(_difference, one, other))
            | _cells("probability", _probability(one, other), "probability_")
            | {"paper_difference": cell[0] - cell[2]}
            | {"paper_probability": gaussian_improvement(*cell)}
        )
    if len(rows) > 1:
        rows.append(
            {"task": "all tasks", "seeds": min(row["seeds"] for row in rows)}
            | _cells("probability", _probability(ours, theirs), "probability_")
            | {"paper_probability": gaussian_improvement(*np.transpose(cells))}
        )
    return pd.DataFrame(rows)


def brief_table(
    selection: Selection, setups: Mapping[str, Setup], better: str, than: str
) -> pd.DataFrame:
    """The gain of a setup over another by both metrics.

    Returns:
        A row per task with ``seeds``, ``setup``, ``minus`` (the other setup) and, for each metric, the
        difference of the means under the metric's name, with its 95 % bootstrap interval, such as
        ``final_low``, ``final_high``.
    """
    found = {m: improvement_table(selection, setups, better, than, m) for m in METRICS}
    table = found["final"][["task", "seeds"]].assign(setup=better, minus=than)
    for metric, own in found.items():
        names = [metric, f"{metric}_low", f"{metric}_high"]
        table[names] = own[["difference", "low", "high"]]
    return table[table["task"] != "all tasks"]


def reuse_table(study: Study, protocol: str) -> pd.DataFrame:
    """How much each setup that drops batches used older batches, by task.

    Returns:
        A row per task and setup with ``seeds`` (their number), the mean of ``active_batches`` over
        training and seeds, the share of iterations with several batches in use in the ``first_third`` of
        the frames and in the ``rest``, and the ``last_frame`` of the last such iteration in any seed (0
        if there is none).
    """
    rows = []
    for row, logged in zip(study.runs.to_dict("records"), study.logged, strict=True):
        drops = any(logged.config.get(name) is not None for name in DROPPING)
        if row["protocol"] == protocol and drops and "active_batches" in logged.iterations:
            active, frames = logged.iterations["active_batches"], logged.iterations["frames"]
            several, early = pd.Series(active > 1), 3 * frames <= frames.max(initial=0)
            shares = several[early].mean(), several[~early].mean()
            names = (row[name] for name in ("task", "setup", "seed"))
            rows.append((*names, active.mean(), *shares, int(frames[several].max(initial=0))))
    columns = ["task", "setup", "seed", "active_batches", "first_third", "rest", "last_frame"]
    return (
        pd.DataFrame(rows, columns=columns)
        .groupby(["task", "setup"], as_index=False)
        .agg(
            seeds=("seed", "size"),
            active_batches=("active_batches", "mean"),
            first_third=("first_third", "mean"),
            rest=("rest", "mean"),
            last_frame=("last_frame", "max"),
        )
    )


def minibatch_ratio_table(selection: Selection) -> pd.DataFrame:
    """How far the frames of minibatches are from the policy that learns from them.

    Returns:
        A row per task and setup with ``seeds`` (their number) and the mean ``ratio`` over frames, updates
        and iterations, 1 + |1 - R| (section 4.2 of the paper), with its 95 % bootstrap interval ``low``,
        ``high``.
    """
    rows = []
    for task, setup in itertools.product(selection.tasks, selection.setups):
        own = [run.iterations for run in selection.logged[setup] if run.task == task]
        ratios = np.array([1 + np.mean(run["mean_abs_deviation"]) for run in own])
        row = {"task": task, "setup": setup, "seeds": len(ratios)}
        rows.append(row | _cells("ratio", bootstrap(mean_score, {task: ratios})))
    return pd.DataFrame(rows)


def aggregate_table(selection: Selection, metric: str) -> pd.DataFrame:
    """Inter-quartile mean of each setup's normalised scores, over tasks and seeds.

    Scores are normalised so that a random policy is 0 and the reference return 1; see
    :func:`reference_returns`. The tasks of :func:`tasks_apart` are left out.

    Returns:
        A row per setup with its ``interquartile_mean`` and its 95 % bootstrap interval ``low``, ``high``;
        empty if no task is left.
    """
    references, apart = reference_returns(), tasks_apart(selection.tasks)
    low, high = references["random_return"], references["reference_return"]
    rows = []
    for setup in selection.setups:
        scores = {t: s for t, s in selection.scores(setup, metric).items() if t not in apart}
        if scores:
            normalized = normalize(scores, low.to_dict(), high.to_dict())
            estimate = bootstrap(interquartile_mean, normalized)
            rows.append({"setup": setup} | _cells("interquartile_mean", estimate))
    return pd.DataFrame(rows)


def tasks_apart(tasks: Iterable[str]) -> dict[str, str]:
    """Tasks without a normalised score, with the reason."""
    clear = reference_returns()["clear"]
    reasons = {}
    for task in tasks:
        if task not in clear:
            reasons[task] = "it has no reference returns"
        elif not clear[task]:
            reasons[task] = (
                "the random and the reference return differ by less than twice the deviation of "
                "the reference over seeds"
            )
    return reasons


def average_normalized_score_table(
    selection: Selection, setups: Mapping[str, Setup], metric: str
) -> pd.DataFrame:
    """Average normalised score of each setup, relative to the setups of the selection.

    Returns:
        A row per setup with its ``score``, the 95 % bootstrap interval ``low``, ``high``, and
        ``paper_score``, which is relative to the paper's 35 setups.
    """
    scores = [selection.scores(name, metric) for name in selection.setups]
    rows = []
    for place, name in enumerate(selection.setups):
        estimate = bootstrap(partial(_normalized, place), *scores, replicates=4_000)
        paper = _paper_normalized(setups[name], metric)
        rows.append({"setup": name} | _cells("score", estimate) | {"paper_score": paper})
    return pd.DataFrame(rows)


def _cells(name: str, estimate: Estimate, prefix: str = "") -> dict[str, float]:
    return {name: estimate.value, f"{prefix}low": estimate.low, f"{prefix}high": estimate.high}


def _probability(ours: Scores, theirs: Scores) -> Estimate:
    found = bootstrap(probability_of_improvement, ours, theirs)
    return found if found.low < found.high else Estimate(found.value, np.nan, np.nan)


def _difference(ours: Scores, theirs: Scores) -> NDArray[np.float64]:
    return mean_score(ours) - mean_score(theirs)


def _normalized(place: int, *scores: Scores) -> NDArray[np.float64]:
    return average_normalized_scores(scores)[place]


def _paper_task(task: str) -> str | None:
    return TASKS[task].paper_name if task in TASKS else None


def _paper_scores(setup: Setup, metric: str) -> dict[str | None, tuple[float, float]]:
    """The paper's mean and deviation, by the paper's name of the task."""
    table = paper_task_scores()
    rows = table[(table["metric"] == metric) & (table["setup"] == setup.paper_name)]
    return {row.task: (row.mean, row.std) for row in rows.itertuples()}


def _paper_normalized(setup: Setup, metric: str) -> float:
    table = paper_average_normalized_scores()
    rows = table[
        (table["metric"] == metric)
        & (table["setup"] == setup.paper_family)
        & (table["clip_epsilon"] == setup["clip_epsilon"])
        & (table["drop_factor"].isna() | (table["drop_factor"] == setup["drop_factor"]))
    ]
    return float(rows["average_normalized_score"].iloc[0]) if len(rows) else np.nan
