"""The text of the results page: what was run, the scores, and the conclusions that the runs allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from study.grid import PAPER, PARTS, jobs
from study.markdown import (
    Cell,
    by_setup,
    interval,
    keys,
    listed,
    markdown,
    number,
    paper,
    probability,
    ranges,
    short,
)
from study.read import Selection, Study
from study.references import PAPER_SETTINGS
from study.setups import Setup, by_minibatch, main_setups, pairs
from study.tables import (
    METRICS,
    aggregate_table,
    average_normalized_score_table,
    brief_table,
    improvement_table,
    minibatch_ratio_table,
    reuse_table,
    score_table,
    tasks_apart,
)

Tables = dict[str, pd.DataFrame]

_FEW = 5  # seeds below which an interval is only a range
_MEANING = {
    "final": "The final score is the mean return of the last 100 training episodes.",
    "speed": (
        "The average return over training, which the paper calls the speed score, measures sample "
        "efficiency: it is the average over training of the mean return of the last 100 episodes, or "
        "the area under the learning curve over the number of frames."
    ),
}


def paragraphs(study: Study, protocol: str, tables: Tables) -> Iterator[str]:
    """Everything a page says about a protocol, as Markdown; adds its tables to ``tables``."""
    setups = study.setups_of(protocol)
    yield from what_was_run(study, protocol)
    each = [one for name in setups if (one := study.select(protocol, [name])) is not None]
    yield from scores(each, setups, tables)
    if not study.departures(protocol):
        yield from agreement(tables)
    yield from reuse(study, protocol, tables)
    sized = {name for names in by_minibatch(setups).values() for name in names}
    selection = study.select(protocol, [name for name in setups if name in sized])
    if selection is not None:
        yield from minibatch_ratios(selection, tables)
    names = main_setups(setups)
    if (main := study.select(protocol, names)) is None:
        yield f"No comparison: no task is common to all of {', '.join(names)}."
    else:
        yield from aggregates(main, tables)
    yield from comparisons(study, protocol, pairs(setups), setups, tables)
    if protocol != "paper":
        yield from against_the_paper_s_protocol(study, protocol, names, tables)
    runs = study.runs[study.runs["protocol"] == protocol]
    tasks = set(main.tasks) if main else set()
    known = [name for name, setup in setups.items() if setup.paper_family]
    whole = [name for name in known if tasks <= set(runs.loc[runs["setup"] == name, "task"])]
    if main and len(whole) > 2 and (all_setups := study.select(protocol, whole)) is not None:
        yield from average_normalized(all_setups, setups, tables)


def of_the_paper(study: Study) -> Iterator[str]:
    """The paper's figures and tables of results, and how many of the runs that repeat them exist."""
    whole = study.runs[study.runs["frames"] >= PAPER_SETTINGS["total_frames"]]
    runs = whole[["protocol", "task", "setup", "seed"]].itertuples(index=False)
    made = {"{}/{}/{}-seed{}".format(*run) for run in runs}
    rows = []
    for item, part in ((item, PARTS[name]) for item, names in PAPER.items() for name in names):
        wanted = {job.name for job in jobs(Path(), part, {})}
        count, setups = len(wanted & made), ", ".join(part.setups)
        row = {"paper": item, "question": part.question, "setups": setups, "made": count}
        rows.append({**row, "runs": f"{count} of {len(wanted)}"})
    if any(row["made"] for row in rows):
        yield "## The paper's figures and tables"
        yield (
            "Runs finished, of those planned; further seeds of the same setups are not counted. Figure 1 and "
            "Tables 1 and 2 show no results."
        )
        yield markdown(pd.DataFrame(rows), keys("paper", "question", "setups", "runs"))


def what_was_run(study: Study, protocol: str) -> Iterator[str]:
    """Settings, versions, and the seeds of each task and setup."""
    versions = ", ".join(f"{name} {number}" for name, number in study.versions[protocol].items())
    yield f"{_settings(study, protocol)}Versions: {versions}."
    if departures := study.departures(protocol):
        yield (
            f"These settings differ from the paper's: {', '.join(departures)}. Its numbers are shown "
            "for orientation only."
        )
    runs = study.runs[study.runs["protocol"] == protocol]
    yield f"Seeds of the {len(runs)} runs:"
    every, rows = runs["task"].nunique(), []
    for setup in study.setups_of(protocol):
        seeds = runs[runs["setup"] == setup].groupby("task")["seed"].agg(ranges)
        for numbers, tasks in seeds.groupby(seeds).groups.items():
            where = f"all {every}" if len(tasks) == every > 1 else ", ".join(tasks)
            rows.append({"setup": setup, "seeds": numbers, "tasks": where})
    yield markdown(pd.DataFrame(rows), keys("setup", "seeds", "tasks"))
    if len(other := runs[runs["exactness"] == "approximate"]):
        names = (f"{run.setup} on {run.task}, seed {run.seed}" for run in other.itertuples())
        yield f"These runs were resumed, but not bit for bit: {'; '.join(names)}."
    if len(other := runs[runs["exactness"] == "not recorded"]):
        yield (
            f"{len(other)} runs (`not recorded` in `tables/runs.csv`) were made before resuming was "
            "recorded: it is unknown whether they were resumed."
        )


def scores(
    selections: Sequence[Selection], setups: Mapping[str, Setup], tables: Tables
) -> Iterator[str]:
    """Scores of each task and setup, beside the paper's."""
    for metric in METRICS:
        table = pd.concat([score_table(one, setups, metric) for one in selections])
        table = table.sort_values("task", kind="stable", ignore_index=True)
        tables[f"{metric}-scores"] = table
        yield f"### {METRICS[metric].capitalize()}"
        yield f"{_MEANING[metric]} Mean over seeds [95 % interval]; paper: mean ± deviation."
        columns = {"here": partial(interval, name="mean"), "paper": paper}
        yield markdown(table, keys("task", "setup", "seeds") | columns)


def agreement(tables: Tables) -> Iterator[str]:
    """Which scores differ from the paper's."""
    both = pd.concat(
        [tables[f"{metric}-scores"].assign(score=words) for metric, words in METRICS.items()]
    )
    cells = both[both["difference_low"].notna() & (both["seeds"] >= _FEW)]
    yield "### Agreement with the paper"
    if cells.empty:
        yield f"No score that the paper reports was measured with {_FEW} seeds or more."
        return
    apart = cells[(cells["difference_low"] > 0) | (cells["difference_high"] < 0)]
    yield (
        f"{len(cells)} mean scores of {_FEW} seeds or more can be compared with the paper's. "
        f"{len(apart)} differ: Welch's 95 % interval of the difference excludes 0. By chance, this "
        "happens to one score in twenty. The interval assumes Gaussian scores, so it is too narrow if "
        "some seeds learn a task and others do not."
    )
    if len(apart):
        difference = partial(interval, name="difference", prefix="difference_")
        columns = {"here": lambda cell: short(cell["mean"]), "paper": paper}
        columns["difference"] = difference
        yield markdown(apart, keys("task", "setup", "score") | columns)


def reuse(study: Study, protocol: str, tables: Tables) -> Iterator[str]:
    """How much the setups that drop batches used older batches."""
    table = reuse_table(study, protocol)
    if table.empty:
        return
    tables["batches-in-use"] = table
    yield "### Batches in use"
    yield (
        "The number of batches in use (mean over training and seeds), the share of iterations with "
        "more than one in the first third of the training and in the rest, and the last frame at which "
        "any seed used more than one. After that frame a setup learns from the newest batch alone, as PPO "
        "with its clip range would."
    )
    columns = {
        "batches": lambda cell: f"{cell['active_batches']:.2f}",
        "first third": lambda cell: f"{100 * cell['first_third']:.0f} %",
        "rest": lambda cell: f"{100 * cell['rest']:.0f} %",
        "last frame": lambda cell: f"{cell['last_frame']:,}",
    }
    yield markdown(table, keys("task", "setup") | columns)


def minibatch_ratios(selection: Selection, tables: Tables) -> Iterator[str]:
    """How far minibatches of 64 frames, and of 64 for each batch, are from the current policy."""
    tables["minibatch-ratios"] = table = minibatch_ratio_table(selection)
    yield "### Importance ratios of minibatches"
    yield (
        "The paper's Figure 2 as numbers: the mean of 1 + |1 - R|, where R is a frame's importance ratio, over "
        "all minibatches, which have 64 frames per batch in use, or 64 frames (`m64`). Mean over seeds [95 % "
        "interval]."
    )
    columns = {"average ratio": partial(interval, name="ratio", decimals=3)}
    yield markdown(table, keys("task", "setup", "seeds") | columns)
    yield from _left_out(selection)


def aggregates(selection: Selection, tables: Tables) -> Iterator[str]:
    """Inter-quartile means of normalised scores, and the tasks that are left out."""
    yield "### Over all tasks"
    apart = tasks_apart(selection.tasks)
    inside = [task for task in selection.tasks if task not in apart]
    if inside:
        found = {metric: aggregate_table(selection, metric) for metric in METRICS}
        tables.update({f"{m}-interquartile-mean": table for m, table in found.items()})
        yield (
            "Inter-quartile mean over tasks and seeds of normalised scores: 0 is a random policy, "
            f"1 the paper's final score of PPO. Tasks: {', '.join(inside)}."
        )
        yield by_setup(found, {"": partial(interval, name="interquartile_mean", decimals=2)})
        seeds = selection.runs[selection.runs["task"].isin(inside)].groupby("task").size()
        if seeds.nunique() > 1:
            yield "Every run counts alike, so tasks with more seeds weigh more."
    for task, reason in apart.items():
        yield f"Without {task}: {reason}."
    yield from _left_out(selection)


def comparisons(
    study: Study,
    protocol: str,
    found: Iterable[tuple[str, str]],
    setups: Mapping[str, Setup],
    tables: Tables,
) -> Iterator[str]:
    """The gain of the first setup of each pair over the second; in one table where there are few seeds."""
    brief = []
    for better, than in found:
        if (pair := study.select(protocol, [better, than])) is None:
            continue
        seeds = pair.runs.groupby(["task", "setup"]).size().groupby("task").min()
        if seeds.max() >= _FEW or _enough(seeds):
            yield f"### `{better}` against `{than}`"
            yield from _left_out(pair)
            yield from improvement(pair, setups, better, than, tables)
        else:
            brief.append(brief_table(pair, setups, better, than))
    if brief:
        kind = "" if protocol in study.versions else f"-{protocol}"
        tables[f"few-seeds{kind}"] = table = pd.concat(brief)
        yield "### Comparisons with few seeds"
        yield (
            "The score of a setup minus that of the other one [95 % interval], with the smaller number of their "
            "seeds. So few seeds allow no conclusion."
        )
        columns = keys("setup") | {"other one": "minus"} | keys("task", "seeds")
        columns |= {METRICS[m]: partial(interval, name=m, prefix=f"{m}_") for m in METRICS}
        yield markdown(table, columns)


def improvement(
    selection: Selection, setups: Mapping[str, Setup], better: str, than: str, tables: Tables
) -> Iterator[str]:
    """The gain of one setup over another, and the conclusions that the intervals allow."""
    for metric in METRICS:
        table = improvement_table(selection, setups, better, than, metric)
        tables[f"{better}-over-{than}-{metric}"] = table
        yield f"**{METRICS[metric].capitalize()}**, `{better}` minus `{than}`:"
        columns = {
            "difference": partial(interval, name="difference"),
            "P": probability,
            "difference, paper": lambda cell: short(cell["paper_difference"]),
            "P, paper": lambda cell: number(cell["paper_probability"]),
        }
        if table["paper_probability"].isna().all():
            del columns["difference, paper"], columns["P, paper"]
        yield markdown(table, keys("task") | columns)
        yield conclusion(table, better, than, metric)


def against_the_paper_s_protocol(
    study: Study, protocol: str, names: Iterable[str], tables: Tables
) -> Iterator[str]:
    """The gain of some setups under a protocol over the same setups under the paper's."""
    named = study.runs["protocol"] + " " + study.runs["setup"]
    both = replace(study, runs=study.runs.assign(protocol="across", setup=named))
    found = [(f"{protocol} {name}", f"paper {name}") for name in names]
    # The paper has no runs under other protocols.
    unknown = {name: Setup("") for pair in found for name in pair}
    yield from comparisons(both, "across", found, unknown, tables)


def conclusion(table: pd.DataFrame, better: str, than: str, metric: str) -> str:
    """The conclusions that an improvement table allows, as text."""
    together = table["task"] == "all tasks"
    few = not _enough(table.loc[~together, "seeds"])
    sentences = [
        _over_tasks(row, better, than, metric, few) for row in table[together].to_dict("records")
    ]
    enough = table[~together & (table["seeds"] >= _FEW)]
    if len(enough):
        gains = enough.loc[enough["low"] > 0, "task"].tolist()
        losses = enough.loc[enough["high"] < 0, "task"].tolist()
        sentences.append(
            f"On single tasks of {_FEW} seeds or more, the interval of the difference puts `{better}` "
            f"above on {listed(gains)} and below on {listed(losses)}."
        )
    return " ".join(sentences)


def _enough(seeds: pd.Series) -> bool:
    """Whether so many seeds, by task, allow a conclusion over all tasks."""
    return int((seeds - 1).sum()) >= 2 * (_FEW - 1)


def _over_tasks(cell: Cell, better: str, than: str, metric: str, few: bool) -> str:
    low, high = cell["probability_low"], cell["probability_high"]
    if few:
        verdict = "So few seeds allow no conclusion."
    elif low > 0.5:
        verdict = f"The interval is above one half: `{better}` is better on these tasks."
    elif high < 0.5:
        verdict = f"The interval is below one half: `{than}` is better on these tasks."
    elif math.isnan(low):
        verdict = "No resampling of the seeds changes it, so it has no interval."
    else:
        verdict = "The interval contains one half: these runs do not show which is better."
    return (
        f"Averaged over tasks, a run of `{better}` has the higher {METRICS[metric]} with probability "
        f"{probability(cell)}. {verdict}"
    )


def average_normalized(
    selection: Selection, setups: Mapping[str, Setup], tables: Tables
) -> Iterator[str]:
    """Average normalised scores, with the list of setups to which they are relative."""
    yield "### Average normalised score"
    yield (
        f"Over the {len(selection.setups)} setups {', '.join(selection.setups)} and the tasks "
        f"{', '.join(selection.tasks)}. On each task, the setups' mean scores are standardised (mean 0, "
        "deviation 1); this is their average over tasks. It is relative to this list of setups; the paper's "
        "is relative to its own 35."
    )
    found = {m: average_normalized_score_table(selection, setups, m) for m in METRICS}
    tables.update({f"{m}-average-normalized-score": table for m, table in found.items()})
    here = partial(interval, name="score", decimals=2)
    yield by_setup(found, {"": here, ", paper": lambda cell: number(cell["paper_score"])})
    yield from _left_out(selection)


def _settings(study: Study, protocol: str) -> str:
    """How the runs of a protocol were made, according to their configurations."""
    options = ("num_envs", "time_limits", "total_frames", "frames_per_batch")
    envs, limits, frames, sizes = (_or(study.values(protocol, option)) for option in options)
    lengths = (frames and f"{frames} frames", sizes and f"in batches of {sizes}")
    parts = (
        envs and f"{envs} environment{'' if envs == '1' else 's'}",
        limits and f"time limits {limits.replace('bootstrap', 'bootstrapped')}",
        " ".join(filter(None, lengths)),
    )
    return f"{', '.join(filter(None, parts))}. " if any(parts) else ""


def _or(values: Sequence[Any]) -> str:
    """Values as text, such as ``512, 1,024 or 2,048``; empty if there are none."""
    words = [value if isinstance(value, str) else f"{value:,}" for value in values]
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _left_out(selection: Selection) -> Iterator[str]:
    if selection.left_out:
        yield f"Left out: {'; '.join(selection.left_out)}."
