"""Figures of what the ledger says: batches in use, and how far old data are from the policy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from amber_trl.evaluation import drawing
from amber_trl.evaluation.study import Selection, Study

_FRAMES = "frames (millions)"
_DEVIATION = "mean_abs_deviation"


def active_batches(study: Study, selection: Selection) -> Figure:
    """Number of batches in use over training, a panel per task.

    Args:
        study: that the selection is of.
        selection: the runs.

    Returns:
        Running means over at most ten iterations. Thick lines are over all seeds, with 95 % bootstrap
        intervals, thin lines are single seeds.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, Study, active_batches
        >>> run = {"protocol": "paper", "task": "Hopper-v5", "setup": "amber", "seed": 0}
        >>> runs = pd.DataFrame([run]).assign(path="runs/hopper")
        >>> logged = pd.DataFrame({"frames": [10, 20], "active_batches": [1, 2]}).assign(**run)
        >>> setups, settings = {"amber": Setup("amber", 8, 0.4, 0.25)}, {"paper": {"total_frames": 20}}
        >>> study = Study(runs, runs, runs, logged, logged, setups, settings, {})
        >>> figure = active_batches(study, Selection(("amber",), ("Hopper-v5",), runs))
        >>> figure.axes[0].get_title()
        'Hopper-v5'
    """
    longest = max(study.setups[name].num_batches for name in selection.setups)
    figure = _over_iterations(study, selection, "active_batches", "batches in use (running mean)")
    for axes in figure.axes:
        axes.set_ylim(0.5, longest + 0.5)
        axes.set_yticks([1, *range(2, longest + 1, 2)])
    return figure


def minibatch_ratios(study: Study, selection: Selection) -> Figure:
    """Average importance ratio of all minibatches of an iteration, a panel per task.

    The mean of ``1 + |1 - R|`` over the frames of a minibatch, ``R`` being the ratio of the policy
    in the middle of its updates to the one that acted, as in the paper's figure for ``M = 64`` and
    ``M = 64 L`` (Han & Sung, arXiv 1710.04423, section 4.2).

    Args:
        study: that the selection is of.
        selection: the runs.

    Returns:
        Running means over at most ten iterations. Thick lines are over all seeds, with 95 % bootstrap
        intervals, thin lines are single seeds.

    Raises:
        ValueError: if a run has not logged it.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, Study, minibatch_ratios
        >>> run = {"protocol": "paper", "task": "Hopper-v5", "setup": "amber", "seed": 0}
        >>> runs = pd.DataFrame([run]).assign(path="runs/hopper")
        >>> logged = pd.DataFrame({"frames": [10, 20], "mean_abs_deviation": [0.1, 0.2]}).assign(**run)
        >>> setups, settings = {"amber": Setup("amber", 8, 0.4, 0.25)}, {"paper": {"total_frames": 20}}
        >>> study = Study(runs, runs, runs, logged, logged, setups, settings, {})
        >>> figure = minibatch_ratios(study, Selection(("amber",), ("Hopper-v5",), runs))
        >>> figure.axes[0].get_title()
        'Hopper-v5'
    """
    if lacking := lacks_minibatch_ratio(study, selection):
        raise ValueError(f"no column {_DEVIATION} in iterations.csv of {lacking}: run them anew")
    ratio = study.iterations.assign(ratio=1 + study.iterations[_DEVIATION])
    return _over_iterations(study, selection, "ratio", "1 + |1 - R| (running mean)", ratio)


def lacks_minibatch_ratio(study: Study, selection: Selection) -> list[str]:
    """The runs of a selection that have not logged the average ratio of their minibatches.

    Args:
        study: that the selection is of.
        selection: the runs.

    Returns:
        Their directories.
    """
    rows = study.rows("iterations", selection)
    logged = rows[rows[_DEVIATION].notna()] if _DEVIATION in rows else rows.iloc[:0]
    there = selection.runs.merge(logged[["task", "setup", "seed"]].drop_duplicates())
    return sorted(set(selection.runs["path"]) - set(there["path"]))


def ratio_by_age(study: Study, selection: Selection) -> Figure:
    """Staleness of stored batches by batch age over training, a panel per task.

    Args:
        study: that the selection is of.
        selection: the runs, of one setup.

    Returns:
        ``R' - 1``, or another metric that the runs had, on a logarithmic axis: the median over
        seeds of running means over at most ten iterations, a line per age; dashed the drop
        factor, if the setup has one.

    Raises:
        ValueError: if the selection is of several setups.

    Examples:
        >>> import pandas as pd
        >>> from amber_trl.evaluation import Selection, Setup, Study, ratio_by_age
        >>> run = {"protocol": "paper", "task": "Hopper-v5", "setup": "amber", "seed": 0}
        >>> runs = pd.DataFrame([run]).assign(path="runs/hopper")
        >>> logged = pd.DataFrame({"frames": [10, 20], "age": 1, "staleness": [0.1, 0.2]}).assign(**run)
        >>> setups, settings = {"amber": Setup("amber", 8, 0.4, 0.25)}, {"paper": {"total_frames": 20}}
        >>> study = Study(runs, runs, runs, logged, logged, setups, settings, {})
        >>> figure = ratio_by_age(study, Selection(("amber",), ("Hopper-v5",), runs))
        >>> figure.axes[0].get_title()
        'Hopper-v5'
    """
    if len(selection.setups) != 1:
        raise ValueError(f"setups={selection.setups}: the figure is of one; select one")
    (setup,) = selection.setups
    figure, panels = drawing.panels(selection.tasks)
    batches = study.rows("batches", selection)
    shades = colormaps["viridis_r"](np.linspace(0.05, 1, int(batches["age"].max()) + 1))
    drop_factor = study.setups[setup].drop_factor
    for task, axes in panels.items():
        here = batches[(batches["task"] == task) & (batches["age"] > 0)]
        for age, rows in here.groupby("age"):
            frames, values = drawing.by_seed(rows, "staleness")
            values = drawing.smooth(np.where(np.isfinite(values), values, np.nan))
            middle = pd.DataFrame(values).median()
            axes.plot(frames, middle, color=shades[age], linewidth=1, label=f"age {age}")
        if drop_factor is not None:
            total = study.settings[selection.runs["protocol"].iloc[0]]["total_frames"] / 1e6
            line = np.linspace(0, total, 200)[:-1]
            annealed = drop_factor * (1 - line / total)
            axes.plot(
                line, annealed, color="black", linestyle="--", linewidth=1, label="drop factor"
            )
        axes.set_yscale("log")
    drawing.label(figure, _FRAMES, f"{staleness_words(study, selection)} (running mean)")
    return figure


def staleness_words(study: Study, selection: Selection) -> str:
    """What the runs of a selection measured as staleness."""
    settings = study.settings[selection.runs["protocol"].iloc[0]]
    metric = settings.get("staleness_metric", "mean_abs_deviation")
    return "R' - 1" if metric == "mean_abs_deviation" else f"staleness ({metric})"


def _over_iterations(
    study: Study, selection: Selection, column: str, y: str, table: pd.DataFrame | None = None
) -> Figure:
    figure, panels = drawing.panels(selection.tasks)
    colors = drawing.colors(selection.setups)
    table = study.iterations if table is None else table
    rows = table.merge(selection.runs[["protocol", "task", "setup", "seed"]])
    for task, axes in panels.items():
        for setup in selection.setups:
            cell = rows[(rows["task"] == task) & (rows["setup"] == setup)]
            frames, values = drawing.by_seed(cell, column)
            values = drawing.smooth(values)
            drawing.draw_curves(axes, frames, values, color=colors[setup], label=setup)
    drawing.label(figure, _FRAMES, y)
    return figure
