"""The figures of a results page that a protocol's runs allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from amber_trl.evaluation import _drawing as drawing
from amber_trl.evaluation._figures import (
    RunsBySetup,
    batches_in_use,
    iteration_means,
    learning_curves,
    staleness_by_age,
)
from study.grid import PARTS
from study.read import Selection, Study
from study.references import paper_average_normalized_scores
from study.setups import Setup, by_minibatch, main_setups, swept
from study.tables import METRICS, average_normalized_score_table, score_table

_GREY = "#666666"
_BANDS = "Thick lines: mean over seeds with its 95 % bootstrap interval; thin lines: seeds."
_SMOOTHED = "Running means over ten iterations."


class Picture(NamedTuple):
    """A figure that can be drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def pictures(study: Study, protocol: str) -> Iterator[Picture]:
    """The figures that a protocol's runs allow, in page order."""
    setups = study.setups_of(protocol)
    main = main_setups(setups)
    yield from _main(study, protocol, main)
    yield from _by_part(study, protocol, main)
    yield from _reuse(study, protocol)
    for words, sized in by_minibatch(setups).items():
        # Section 4.2 of the paper: the mean of 1 + |1 - R| over the frames of a minibatch.
        logged = _logged(study, protocol, sized)
        draw = partial(iteration_means, logged, "mean_abs_deviation", "1 + |1 - R|", offset=1)
        caption = f"Average importance ratio of minibatches of {words}. {_BANDS} {_SMOOTHED}"
        yield Picture(f"minibatch-ratios-{words.replace(' ', '-')}", caption, draw)
    for parameter, words in (("clip_epsilon", "clip range"), ("drop_factor", "drop factor")):
        names: list[str] = []
        for family in sorted(
            swept(list(setups), setups, parameter).values(), key=len, reverse=True
        ):
            if study.select(protocol, [*names, *family]):  # it has tasks in common with the others
                names += family
        # With two setups, average normalised scores are always 1 and -1.
        if len(names) > 2 and (one := study.select(protocol, names)):
            caption = (
                f"Average normalised score over the {words}. Left: here, relative to "
                f"{', '.join(names)}. Right: the paper's, relative to its 35 setups."
            )
            draw = partial(scores_over, one, setups, parameter)
            yield Picture(f"scores-over-{words.replace(' ', '-')}", caption, draw)


def _main(study: Study, protocol: str, main: list[str]) -> Iterator[Picture]:
    caption = f"Return over training. {_BANDS}"
    yield Picture(
        "learning-curves", caption, partial(learning_curves, _logged(study, protocol, main))
    )
    if one := study.select(protocol, main):
        which = " on the tasks that all of them have" if one.left_out else ""
        for metric, words in METRICS.items():
            draw = partial(scores_by_seed, one, study.setups, metric)
            caption = f"{words.capitalize()} of every run of {' and '.join(one.setups)}{which}."
            yield Picture(f"{metric}-scores", caption, draw)


def _by_part(study: Study, protocol: str, main: list[str]) -> Iterator[Picture]:
    """The setups of each part of the study, and then those of no part, beside the main ones."""
    setups = study.setups_of(protocol)
    tasks = {name: {run.task for run in runs} for name, runs in study.logged_of(protocol).items()}
    of_protocol = {name: part for name, part in PARTS.items() if part.protocol == protocol}
    parts = {
        name: [one for one in part.setups if tasks.get(one, set()) & {*part.tasks}]
        for name, part in of_protocol.items()
    }
    known = {name for part in of_protocol.values() for name in part.setups}
    parts["by-setup"] = [name for name in setups if name not in known]
    drawn = [main]
    for part, own in parts.items():
        names = list(dict.fromkeys([*main, *own]))
        if names in drawn:
            continue
        drawn.append(names)
        logged = _logged(study, protocol, names)
        words = PARTS[part].question if part in PARTS else f"{', '.join(names)}."
        caption = f"{words} Return over training. {_BANDS}"
        yield Picture(f"learning-curves-{part}", caption, partial(learning_curves, logged))
        amber = {name: logged[name] for name in names if setups[name].method == "amber"}
        if len(amber) > 1:
            caption = f"Batches in use. {_BANDS} {_SMOOTHED}"
            yield Picture(f"active-batches-{part}", caption, partial(batches_in_use, amber))


def _logged(study: Study, protocol: str, names: Sequence[str]) -> RunsBySetup:
    """Comparable runs of some setups, or all of them if they have no task in common."""
    if whole := study.select(protocol, names):
        return whole.logged
    every = study.logged_of(protocol)
    return {name: every[name] for name in names}


def _reuse(study: Study, protocol: str) -> Iterator[Picture]:
    setups = study.setups_of(protocol)
    amber = [name for name, setup in setups.items() if setup.method == "amber"]
    if one := study.select(protocol, amber[:1]):
        draw = partial(batches_in_use, one.logged)
        yield Picture("active-batches", f"Batches in use. {_BANDS} {_SMOOTHED}", draw)
    for name in (*amber[:1], "mber_l8"):
        if one := study.select(protocol, [name]):
            caption = (
                "How far stored batches are from the current policy, by age, for "
                f"`{name}`: R' - 1, median over seeds. AMBER uses the batches below the dashed line. "
                + _SMOOTHED
            )
            draw = partial(staleness_by_age, one.logged[name])
            yield Picture(f"ratio-by-age-{name}", caption, draw)


def scores_by_seed(selection: Selection, setups: Mapping[str, Setup], metric: str) -> Figure:
    """Draws the score of every run, with one panel per task.

    Dots are seeds. Beside them are their mean with its 95 % bootstrap interval and, in grey, the
    paper's mean with its standard deviation over seeds.
    """
    figure, panels = drawing.panels(selection.tasks)
    colors = drawing.colors(selection.setups)
    table = score_table(selection, setups, metric).set_index(["task", "setup"])
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.2, "capsize": 2}
    for task, axes in panels.items():
        for place, setup in enumerate(selection.setups):
            scores, color = selection.scores(setup, metric)[task], colors[setup]
            row = table.loc[task, setup]
            spread = np.linspace(-0.08, 0.08, len(scores)) * (len(scores) > 1)
            axes.scatter(place - 0.2 + spread, scores, s=9, color=color, alpha=0.8, label="a run")
            ends = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
            style |= {"fmt": "s", "color": color, "label": "mean and 95 % interval"}
            axes.errorbar(place + 0.05, row["mean"], ends, **style)
            if not np.isnan(row["paper_mean"]):
                words = "paper (a million frames, one environment): mean, deviation"
                style |= {"fmt": "D", "color": _GREY, "label": words}
                axes.errorbar(place + 0.28, row["paper_mean"], row["paper_std"], **style)
        axes.set_xticks(range(len(selection.setups)), selection.setups)
        axes.set_xlim(-0.5, len(selection.setups) - 0.5)
        if len("".join(selection.setups)) > 40:
            axes.tick_params(axis="x", rotation=90)
    drawing.label(figure, METRICS[metric], x="")
    return figure


def scores_over(selection: Selection, setups: Mapping[str, Setup], parameter: str) -> Figure:
    """Draws the average normalised score against ``clip_epsilon`` or ``drop_factor``.

    One row per score. On the left are the study's scores, relative to the setups of the selection,
    with 95 % bootstrap intervals; on the right are the paper's, relative to its own 35 setups.
    """
    titles = [f"{words}, {whose}" for words in METRICS.values() for whose in ("here", "paper")]
    figure, panels = drawing.panels(titles, height=2.2, columns=2)
    families: Mapping[str, Sequence[str]] = swept(selection.setups, setups, parameter)
    colors = drawing.colors(list(families))
    paper = paper_average_normalized_scores()
    for metric, words in METRICS.items():
        ours = average_normalized_score_table(selection, setups, metric).set_index("setup")
        for place, (family, names) in enumerate(families.items()):
            style: dict[str, Any] = {"color": colors[family], "label": family}
            style |= {"marker": "o", "markersize": 4}
            beside = 0.005 * (place - (len(families) - 1) / 2)  # so that intervals do not overlap
            x = [setups[name][parameter] + beside for name in names]
            y = ours.loc[list(names)]
            ends = [y["score"] - y["low"], y["high"] - y["score"]]
            panels[f"{words}, here"].errorbar(x, y["score"], ends, capsize=2, **style)
            theirs = paper[(paper["metric"] == metric) & (paper["setup"] == family)]
            if parameter == "clip_epsilon" and family == "amber":  # its drop factor varies too
                theirs = theirs[theirs["drop_factor"] == 0.25]
            x, scores = theirs[parameter], theirs["average_normalized_score"]
            panels[f"{words}, paper"].plot(x, scores, **style)
    x_words = {"clip_epsilon": "clip range", "drop_factor": "batch drop factor"}[parameter]
    drawing.label(figure, "average normalised score", x=f"{x_words} at the start")
    return figure
