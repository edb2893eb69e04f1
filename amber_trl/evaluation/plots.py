"""Figures of training runs: returns, batches in use, and the staleness of old batches."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from amber_trl.evaluation import _drawing as drawing
from amber_trl.evaluation._drawing import Curve
from amber_trl.evaluation.logged_runs import LoggedRun, by_setup, find_runs, read_run

_LOG = logging.getLogger(__name__)

RunsBySetup = Mapping[str, Sequence[LoggedRun]]
"""Runs by the name of their setup, as :func:`by_setup` groups them."""


def learning_curves(runs: RunsBySetup) -> Figure:
    """Draws the return over training, with one panel per task.

    Args:
        runs: by the name of their setup; a setup's runs on a task differ only in their seed.

    Returns:
        The mean return of the last 100 episodes. Thin lines are seeds. Thick lines are their mean,
        with its 95 % bootstrap interval at each point.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun, learning_curves
        >>> episodes = {"frame": [10.0], "return": [3.0]}
        >>> run = LoggedRun(Path(), {"env_id": "Hopper-v5"}, episodes, {"frames": [8.0, 16.0]})
        >>> learning_curves({"ppo": [run]}).axes[0].get_title()
        'Hopper-v5'
    """
    figure = _over_training(runs, lambda run: run.learning_curve)
    drawing.label(figure, "return (mean of the last 100 episodes)")
    return figure


def iteration_means(runs: RunsBySetup, column: str, words: str, offset: float = 0.0) -> Figure:
    """Draws a column of ``iterations.csv`` over training, with one panel per task.

    Args:
        runs: by the name of their setup, as in :func:`learning_curves`.
        column: its name.
        words: what the axis says.
        offset: added to the column.

    Returns:
        Running means over ten iterations (fewer in short runs), drawn as in :func:`learning_curves`.

    Raises:
        KeyError: if a run did not log the column.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun, iteration_means
        >>> logged = {"frames": [8.0, 16.0], "kl_approx": [0.1, 0.2]}
        >>> run = LoggedRun(Path(), {"env_id": "Hopper-v5"}, {}, logged)
        >>> iteration_means({"ppo": [run]}, "kl_approx", "KL divergence").get_supylabel()
        'KL divergence (running mean)'
    """
    figure = _over_training(
        runs,
        lambda run: (run.iterations["frames"], drawing.smooth(run.iterations[column]) + offset),
    )
    drawing.label(figure, f"{words} (running mean)")
    return figure


def batches_in_use(runs: RunsBySetup) -> Figure:
    """Draws the number of batches in use over training; see :func:`iteration_means`.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun, batches_in_use
        >>> logged = {"frames": [8.0, 16.0], "active_batches": [1.0, 2.0]}
        >>> run = LoggedRun(Path(), {"env_id": "Hopper-v5"}, {}, logged)
        >>> batches_in_use({"amber": [run]}).get_supylabel()
        'batches in use (running mean)'
    """
    figure = iteration_means(runs, "active_batches", "batches in use")
    longest = max(np.max(run.iterations["active_batches"]) for own in runs.values() for run in own)
    for axes in figure.axes:
        axes.set_ylim(0.5, longest + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def staleness_by_age(runs: Sequence[LoggedRun]) -> Figure:
    """Draws how stale the stored batches of each age are over training, with one panel per task.

    Args:
        runs: of one setup.

    Returns:
        The median over seeds of running means over ten iterations, with one line per batch age, on a
        logarithmic axis. The dashed line is the drop factor: batches below it are used.

    Examples:
        >>> from pathlib import Path
        >>> from amber_trl.evaluation import LoggedRun, staleness_by_age
        >>> logged = {"frames": [8.0, 16.0], "staleness_0": [0.1, 0.1], "staleness_1": [0.1, 0.2]}
        >>> run = LoggedRun(Path(), {"env_id": "Hopper-v5"}, {}, logged)
        >>> [line.get_label() for line in staleness_by_age([run]).axes[0].lines]
        ['age 1']
    """
    columns = {name for run in runs for name in run.iterations}
    ages = sorted(int(name[10:]) for name in columns if re.fullmatch(r"staleness_[1-9]\d*", name))
    shades = dict(zip(ages, drawing.shades(len(ages)), strict=True))
    figure, panels = drawing.panels(_tasks(runs))
    for task, axes in panels.items():
        here = [run.iterations for run in runs if run.config["env_id"] == task]
        for age in ages:
            column = f"staleness_{age}"
            logged = [table for table in here if column in table]
            if logged:
                curves = [(table["frames"], drawing.smooth(table[column])) for table in logged]
                frames, values = drawing.aligned(curves)
                axes.plot(
                    frames,
                    drawing.median(values),
                    color=shades[age],
                    linewidth=1,
                    label=f"age {age}",
                )
        for table in here[:1]:
            if "drop_factor" in table:
                line: dict[str, Any] = {"color": "black", "linewidth": 1, "label": "drop factor"}
                axes.plot(table["frames"], table["drop_factor"], "--", **line)
        axes.set_yscale("log")
    drawing.label(figure, "staleness of stored batches (running mean)")
    return figure


def plot_runs(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> list[Path]:
    """Draws the figures that some training runs allow, finished or not, and of any recipe.

    Runs that differ in any option are setups of their own: see :func:`by_setup`.

    Args:
        paths: run directories, or folders or zip archives that hold some.
        out: folder for the figures; it is made if it is not there.

    Returns:
        The PNG files. They are ``learning-curves.png``, and for runs that store several batches
        ``batches-in-use.png`` and, for each setup, ``staleness-by-age-SETUP.png``.

    Raises:
        FileNotFoundError: if a path does not exist, or holds no run.
        ValueError: if a file cannot be read, or no run has finished an iteration.
        OSError: if ``out`` cannot be written.

    Examples:
        >>> from amber_trl.evaluation import plot_runs
        >>> plot_runs(["runs/halfcheetah"], "figures")  # doctest: +SKIP
    """
    read = [read_run(path) for path in find_runs(paths)]
    for run in read:
        if not run.frames:
            _LOG.warning("left out, since it has not finished an iteration: %s", run.path)
    runs = by_setup([run for run in read if run.frames])
    if not runs:
        raise ValueError(f"no run in {[str(path) for path in paths]} has finished an iteration")
    with style.context("default", after_reset=True):  # whatever the user's settings are
        return list(_drawn(runs, Path(out)))


def _drawn(runs: RunsBySetup, out: Path) -> Iterator[Path]:
    yield drawing.save(learning_curves(runs), out / "learning-curves.png")
    reusing = {name: own for name, own in runs.items() if "staleness_1" in own[0].iterations}
    if reusing:
        yield drawing.save(batches_in_use(reusing), out / "batches-in-use.png")
    for name, own in reusing.items():
        words = re.sub(r"[^\w.=-]+", "_", name)
        yield drawing.save(staleness_by_age(own), out / f"staleness-by-age-{words}.png")


def _over_training(runs: RunsBySetup, curve: Callable[[LoggedRun], Curve]) -> Figure:
    figure, panels = drawing.panels(_tasks(run for own in runs.values() for run in own))
    colors = drawing.colors(list(runs))
    for name, own in runs.items():
        for task, axes in panels.items():
            if curves := [curve(run) for run in own if run.config["env_id"] == task]:
                drawing.draw_curves(axes, curves, colors[name], name)
    return figure


def _tasks(runs: Iterable[LoggedRun]) -> list[str]:
    return sorted({run.config["env_id"] for run in runs})
