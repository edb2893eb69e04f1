"""Tables of a study, with the paper's numbers beside its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl.envs import TASKS
from amber_trl.evaluation.references import (
    paper_average_normalized_scores,
    paper_task_scores,
    reference_returns,
)
from amber_trl.evaluation.setups import Setup
from amber_trl.evaluation.statistics import (
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
from amber_trl.evaluation.study import Selection, Study

METRICS = ("final", "speed")
_PAPER_SEEDS = 10


def score_table(selection: Selection, setups: Mapping[str, Setup], metric: str) -> pd.DataFrame:
    """Mean score of each task and setup, beside the paper's.

    Args:
        selection: the runs.
        setups: the setups by name.
        metric: ``final`` or ``speed``.

    Returns:
        A row per task and setup with ``seeds`` (their number), ``mean`` with a 95 % bootstrap
        interval ``low``, ``high``, the lowest and highest seed ``worst``, ``best``, the paper's
        ``paper_mean`` and ``paper_std`` over ten seeds, and ``mean - paper_mean`` with Welch's
        95 % interval: ``difference``, ``difference_low``, ``difference_high``. What the paper
        does not have is NaN.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, score_table
        >>> runs = pd.DataFrame({"task": "Hopper-v5", "setup": "ppo", "final_score": [2e3, 2.2e3]})
        >>> setups = {"ppo": Setup("ppo", 1, 0.3)}
        >>> table = score_table(Selection(("ppo",), ("Hopper-v5",), runs), setups, "final")
        >>> table[["mean", "paper_mean"]].values.tolist()
        [[2100.0, 2185.0]]
    """
    rows = []
    for setup in selection.setups:
        paper = _paper_scores(setups[setup], metric)
        for task, scores in selection.scores(setup, metric).items():
            estimate = bootstrap(mean_score, {task: scores})
            theirs, std = paper.get(_paper_task(task), (np.nan, np.nan))
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
            to_paper = welch_difference(
                estimate.value, spread, len(scores), theirs, std, _PAPER_SEEDS
            )
            rows.append(
                {"task": task, "setup": setup, "seeds": len(scores)}
                | _cells("mean", estimate)
                | {"worst": scores.min(), "best": scores.max()}
                | {"paper_mean": theirs, "paper_std": std}
                | _cells("difference", to_paper, "difference_")
            )
    order = {task: place for place, task in enumerate(selection.tasks)}
    return pd.DataFrame(rows).sort_values(
        "task", key=lambda tasks: tasks.map(order), kind="stable", ignore_index=True
    )


def improvement_table(
    selection: Selection, setups: Mapping[str, Setup], better: str, than: str, metric: str
) -> pd.DataFrame:
    """What one setup gains over another on each task, and in the mean over tasks.

    Args:
        selection: the runs, of both.
        setups: the setups by name.
        better: name of the one.
        than: name of the other.
        metric: ``final`` or ``speed``.

    Returns:
        A row per task and, if they are several, a last one, ``all tasks``. In each, ``seeds`` is
        the fewest of the two; then come the ``difference`` of the means with its 95 % bootstrap
        interval ``low``, ``high`` (NaN in the last row, as tasks have their own scales), the
        ``probability`` that a run of ``better`` scores above one of ``than``, with its interval
        ``probability_low``, ``probability_high`` (NaN where resampling cannot change it, as where
        all runs of one are above all of the other), and the same of the paper, from its means and
        deviations: ``paper_difference``, ``paper_probability``.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, improvement_table
        >>> setups = {"ppo": Setup("ppo", 1, 0.3), "amber": Setup("amber", 8, 0.4, 0.25)}
        >>> scores = {"setup": ["ppo", "amber", "amber"], "final_score": [1.0, 0.5, 2.5]}
        >>> runs = pd.DataFrame({"task": "Hopper-v5", **scores})
        >>> selection = Selection(("ppo", "amber"), ("Hopper-v5",), runs)
        >>> table = improvement_table(selection, setups, "amber", "ppo", "final")
        >>> table[["task", "difference", "probability"]].values.tolist()
        [['Hopper-v5', 0.5, 0.5]]
    """
    ours, theirs = selection.scores(better, metric), selection.scores(than, metric)
    papers = [_paper_scores(setups[name], metric) for name in (better, than)]
    rows: list[dict[str, Any]] = []
    known = []
    for task in selection.tasks:
        one, other = {task: ours[task]}, {task: theirs[task]}
        name = _paper_task(task)
        cell = [*papers[0].get(name, (np.nan,) * 2), *papers[1].get(name, (np.nan,) * 2)]
        if not np.isnan(cell).any():
            known.append(cell)
        seeds = min(len(ours[task]), len(theirs[task]))
        rows.append(
            {"task": task, "seeds": seeds}
            | _cells("difference", bootstrap(_difference, one, other))
            | _cells("probability", _probability(one, other), "probability_")
            | {"paper_difference": cell[0] - cell[2], "paper_probability": _implied([cell])}
        )
    if len(rows) > 1:
        whole = len(known) == len(rows)
        rows.append(
            {"task": "all tasks", "seeds": min(row["seeds"] for row in rows)}
            | _cells("probability", _probability(ours, theirs), "probability_")
            | {"paper_probability": _implied(known) if whole else np.nan}
        )
    return pd.DataFrame(rows)


def reuse_table(study: Study, protocol: str) -> pd.DataFrame:
    """How much each setup that drops batches used of the older ones, by task.

    Args:
        study: all runs.
        protocol: which of them.

    Returns:
        A row per task and setup with ``seeds`` (their number), the mean of ``active_batches`` over
        training and seeds, the ``share`` of all iterations in which there were several, and the
        ``last_frame`` of the last of those in any seed (0 if there is none).

    Examples:
        >>> from amber_trl.evaluation import read_study, reuse_table
        >>> study = read_study(["docs/data/study/paper/Pendulum-v1"])  # doctest: +SKIP
        >>> reuse_table(study, "paper")["active_batches"].tolist()  # doctest: +SKIP
        [7.13...]
    """
    names = [name for name, setup in study.setups_of(protocol).items() if setup.method == "amber"]
    table = study.iterations[study.iterations["protocol"] == protocol]
    table = table[table["setup"].isin(names)]
    several = table["active_batches"] > 1
    table = table.assign(share=several, last_frame=table["frames"].where(several, 0))
    by_run = table.groupby(["task", "setup", "seed"], as_index=False)
    runs = by_run.agg({"active_batches": "mean", "share": "mean", "last_frame": "max"})
    by_cell = runs.groupby(["task", "setup"], as_index=False)
    return by_cell.agg(
        seeds=("seed", "size"),
        active_batches=("active_batches", "mean"),
        share=("share", "mean"),
        last_frame=("last_frame", "max"),
    )


def aggregate_table(selection: Selection, metric: str) -> pd.DataFrame:
    """Inter-quartile mean of each setup's normalised scores, over tasks and seeds.

    Scores are normalised so that 0 is a random policy and 1 the reference return, see
    :func:`reference_returns`; tasks whose two constants do not differ clearly, or that have none,
    stay out: :func:`tasks_apart` names them.

    Args:
        selection: the runs.
        metric: ``final`` or ``speed``.

    Returns:
        A row per setup with its ``interquartile_mean`` and the 95 % bootstrap interval of that,
        ``low``, ``high``; empty if no task is left.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, aggregate_table
        >>> runs = pd.DataFrame({"task": "Hopper-v5", "setup": "ppo", "final_score": [2185.0] * 2})
        >>> aggregate_table(Selection(("ppo",), ("Hopper-v5",), runs), "final").values.tolist()
        [['ppo', 1.0, 1.0, 1.0]]
    """
    references, apart = reference_returns(), tasks_apart(selection.tasks)
    rows = []
    for setup in selection.setups:
        scores = {t: s for t, s in selection.scores(setup, metric).items() if t not in apart}
        if scores:
            low, high = references["random_return"], references["reference_return"]
            normalized = normalize(scores, low.to_dict(), high.to_dict())
            estimate = bootstrap(interquartile_mean, normalized)
            rows.append({"setup": setup} | _cells("interquartile_mean", estimate))
    return pd.DataFrame(rows)


def tasks_apart(tasks: Iterable[str]) -> dict[str, str]:
    """Tasks that no normalised score is given for, and why.

    Args:
        tasks: Gymnasium ids.

    Returns:
        The reason by task.

    Examples:
        >>> from amber_trl.evaluation import tasks_apart
        >>> tasks_apart(["Hopper-v5", "CartPole-v1"])
        {'CartPole-v1': 'it has no reference returns'}
    """
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

    Args:
        selection: the runs, of at least two setups.
        setups: the setups by name.
        metric: ``final`` or ``speed``.

    Returns:
        A row per setup with its ``score``, the 95 % bootstrap interval ``low``, ``high``, and
        ``paper_score``, which is relative to the paper's 35 setups.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, average_normalized_score_table
        >>> setups = {"ppo": Setup("ppo", 1, 0.3), "amber": Setup("amber", 8, 0.4, 0.25)}
        >>> scores = {"setup": ["ppo", "amber"], "final_score": [1.0, 3.0]}
        >>> runs = pd.DataFrame({"task": "Hopper-v5", **scores})
        >>> selection = Selection(("ppo", "amber"), ("Hopper-v5",), runs)
        >>> table = average_normalized_score_table(selection, setups, "final")
        >>> table[["setup", "score", "paper_score"]].values.tolist()
        [['ppo', -1.0, 0.176], ['amber', 1.0, 0.939]]
    """
    names = selection.setups
    scores = [selection.scores(name, metric) for name in names]
    rows = []
    for place, name in enumerate(names):
        estimate = bootstrap(partial(_normalized, place), *scores, replicates=4_000)
        paper = _paper_normalized(setups[name], metric)
        rows.append({"setup": name} | _cells("score", estimate) | {"paper_score": paper})
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """A table of words as Markdown.

    Args:
        table: its cells are written as ``str`` gives them, its column names as headings.

    Returns:
        The lines, without a last line break.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import markdown
        >>> print(markdown(pd.DataFrame({"task": ["a"], "score": ["1.5"]})))
        | task | score |
        |---|---|
        | a | 1.5 |
    """
    lines = [list(table.columns), *table.astype(object).to_numpy().tolist()]
    rows = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(table.columns), *rows[1:]])


def _cells(name: str, estimate: Estimate, prefix: str = "") -> dict[str, float]:
    return {name: estimate.value, f"{prefix}low": estimate.low, f"{prefix}high": estimate.high}


def _probability(ours: Scores, theirs: Scores) -> Estimate:
    found = bootstrap(probability_of_improvement, ours, theirs)
    return found if found.low < found.high else Estimate(found.value, np.nan, np.nan)


def _difference(
    ours: dict[str, NDArray[np.float64]], theirs: dict[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    return mean_score(ours) - mean_score(theirs)


def _normalized(place: int, *scores: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    named = {str(number): setup for number, setup in enumerate(scores)}
    return average_normalized_scores(named)[str(place)]


def _implied(cells: Sequence[Sequence[float]]) -> float:
    return gaussian_improvement(*np.array(cells, dtype=float).T) if len(cells) else np.nan


def _paper_task(task: str) -> str | None:
    return TASKS[task].paper_name if task in TASKS else None


def _paper_scores(setup: Setup, metric: str) -> dict[str | None, tuple[float, float]]:
    """The paper's mean and deviation by its name of the task."""
    table = paper_task_scores()
    rows = table[(table["metric"] == metric) & (table["setup"] == setup.paper_name)]
    return {row.task: (row.mean, row.std) for row in rows.itertuples()}


def _paper_normalized(setup: Setup, metric: str) -> float:
    table = paper_average_normalized_scores()
    rows = table[
        (table["metric"] == metric)
        & (table["setup"] == setup.paper_family)
        & (table["clip_epsilon"] == setup.clip_epsilon)
        & (table["drop_factor"].isna() | (table["drop_factor"] == setup.drop_factor))
    ]
    return float(rows["average_normalized_score"].iloc[0]) if len(rows) else np.nan
