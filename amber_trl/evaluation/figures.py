"""Figures of a study: learning curves, scores of every seed, and scores over a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from amber_trl.evaluation import drawing
from amber_trl.evaluation.comparisons import swept
from amber_trl.evaluation.references import paper_average_normalized_scores
from amber_trl.evaluation.setups import Setup
from amber_trl.evaluation.study import Selection, Study
from amber_trl.evaluation.tables import METRICS, average_normalized_score_table, score_table

_FRAMES = "frames (millions)"


def learning_curves(study: Study, selection: Selection) -> Figure:
    """Return of the last 100 episodes over training, a panel per task.

    Args:
        study: that the selection is of.
        selection: the runs.

    Returns:
        Thick lines are means over seeds with 95 % bootstrap intervals, thin lines single seeds.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Study, learning_curves
        >>> run = {"protocol": "paper", "task": "a", "setup": "ppo", "seed": 0}
        >>> runs = pd.DataFrame([run])
        >>> curve = pd.DataFrame({"frames": [10, 20], "return": [1.0, 2.0]}).assign(**run)
        >>> study = Study(runs, curve, runs, runs, runs, {}, {}, {})
        >>> figure = learning_curves(study, Selection(("ppo",), ("a",), runs))
        >>> [axes.get_title() for axes in figure.axes]
        ['a']
    """
    figure, panels = drawing.panels(selection.tasks)
    colors = drawing.colors(selection.setups)
    curves = study.rows("curves", selection)
    for task, axes in panels.items():
        for setup in selection.setups:
            cell = curves[(curves["task"] == task) & (curves["setup"] == setup)]
            frames, values = drawing.by_seed(cell, "return")
            drawing.draw_curves(axes, frames, values, color=colors[setup], label=setup)
    drawing.label(figure, _FRAMES, "return (mean of the last 100 episodes)")
    return figure


def scores_by_seed(selection: Selection, setups: Mapping[str, Setup], metric: str) -> Figure:
    """Score of every run, a panel per task.

    Args:
        selection: the runs.
        setups: the setups by name.
        metric: ``final`` or ``speed``.

    Returns:
        Dots are seeds; beside them their mean with its 95 % bootstrap interval, and in grey the
        paper's mean with its standard deviation over seeds.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, scores_by_seed
        >>> runs = pd.DataFrame({"task": "Hopper-v5", "setup": "ppo", "final_score": [2e3, 2.2e3]})
        >>> selection = Selection(("ppo",), ("Hopper-v5",), runs)
        >>> figure = scores_by_seed(selection, {"ppo": Setup("ppo", 1, 0.3)}, "final")
        >>> figure.get_supylabel()
        'final score (return)'
    """
    figure, panels = drawing.panels(selection.tasks)
    colors = drawing.colors(selection.setups)
    table = score_table(selection, setups, metric)
    for task, axes in panels.items():
        for place, setup in enumerate(selection.setups):
            scores, color = selection.scores(setup, metric)[task], colors[setup]
            (row,) = table[(table["task"] == task) & (table["setup"] == setup)].itertuples()
            spread = np.linspace(-0.08, 0.08, len(scores)) * (len(scores) > 1)
            axes.scatter(place - 0.2 + spread, scores, s=9, color=color, alpha=0.8, label="a run")
            style: dict[str, Any] = {"markersize": 4, "linewidth": 1.2, "capsize": 2}
            ends = [[row.mean - row.low], [row.high - row.mean]]
            name = "mean and 95 % interval"
            axes.errorbar(place + 0.05, row.mean, ends, fmt="s", color=color, label=name, **style)
            if not np.isnan(row.paper_mean):
                grey, name = (
                    drawing.PAPER_COLOR,
                    "paper (a million frames, one environment): mean, deviation",
                )
                x, y, ends = place + 0.28, row.paper_mean, row.paper_std
                axes.errorbar(x, y, ends, fmt="D", color=grey, label=name, **style)
        axes.set_xticks(range(len(selection.setups)), selection.setups)
        axes.set_xlim(-0.5, len(selection.setups) - 0.5)
    drawing.label(figure, "", f"{metric} score (return)")
    return figure


def scores_over(selection: Selection, setups: Mapping[str, Setup], parameter: str) -> Figure:
    """Average normalised score over the clip range or the drop factor, beside the paper's.

    Args:
        selection: the runs; the scores are relative to its setups.
        setups: the setups by name.
        parameter: ``clip_epsilon`` or ``drop_factor``.

    Returns:
        Two rows, final and speed; left the study's, with 95 % bootstrap intervals, right the
        paper's, which are relative to its own 35 setups.

    Raises:
        ValueError: if the parameter is none of the two, or no setup differs in it alone.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, scores_over
        >>> setups = {setup.name: setup for setup in (Setup("ppo", 1, 0.2), Setup("ppo", 1, 0.3))}
        >>> scores = {"setup": list(setups), "final_score": [1.0, 2.0], "speed_score": [1.0, 2.0]}
        >>> runs = pd.DataFrame({"task": "Hopper-v5", **scores})
        >>> selection = Selection(tuple(setups), ("Hopper-v5",), runs)
        >>> figure = scores_over(selection, setups, "clip_epsilon")
        >>> figure.axes[0].get_title()
        'final, here'
    """
    if parameter not in ("clip_epsilon", "drop_factor"):
        raise ValueError(f"parameter={parameter!r}: choose clip_epsilon or drop_factor")
    families = swept(selection.setups, setups, parameter)
    if not families:
        raise ValueError(f"no two of {list(selection.setups)} differ in {parameter} alone")
    titles = [f"{metric}, {whose}" for metric in METRICS for whose in ("here", "paper")]
    figure, panels = drawing.panels(titles, height=2.2, columns=2)
    colors = drawing.colors(list(families))
    paper = paper_average_normalized_scores()
    for metric in METRICS:
        ours = average_normalized_score_table(selection, setups, metric).set_index("setup")
        for place, (family, names) in enumerate(families.items()):
            style: dict[str, Any] = {
                "color": colors[family],
                "label": family,
                "marker": "o",
                "markersize": 4,
            }
            beside = 0.005 * (place - (len(families) - 1) / 2)  # so that intervals do not overlap
            x = [getattr(setups[name], parameter) + beside for name in names]
            y = ours.loc[names]
            ends = [y["score"] - y["low"], y["high"] - y["score"]]
            panels[f"{metric}, here"].errorbar(x, y["score"], ends, capsize=2, **style)
            theirs = paper[(paper["metric"] == metric) & (paper["setup"] == family)]
            panels[f"{metric}, paper"].plot(
                theirs[parameter], theirs["average_normalized_score"], **style
            )
    words = {"clip_epsilon": "clip range", "drop_factor": "batch drop factor"}[parameter]
    drawing.label(figure, f"{words} at the start", "average normalised score")
    return figure
