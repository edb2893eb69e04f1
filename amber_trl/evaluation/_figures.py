"""Figures of training runs, with one panel per task: returns, batches in use, and staleness.

Runs are grouped by the name of their setup; a setup's runs on a task differ only in their seed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from amber_trl.evaluation import _drawing as drawing
from amber_trl.evaluation.logged_runs import LoggedRun

RunsBySetup = Mapping[str, Sequence[LoggedRun]]


def draw(runs: RunsBySetup, out: Path) -> Iterator[Path]:
    """Writes all figures that the runs allow, and yields the files."""
    with style.context("default", after_reset=True):  # independent of the user's settings
        yield drawing.save(learning_curves(runs), out / "learning-curves.png")
        storing = {
            name: [r for r in own if "staleness_1" in r.iterations] for name, own in runs.items()
        }
        if reusing := {name: own for name, own in storing.items() if own}:
            yield drawing.save(batches_in_use(reusing), out / "batches-in-use.png")
        for name, own in reusing.items():
            words = re.sub(r"[^\w.=-]+", "_", name)
            yield drawing.save(staleness_by_age(own), out / f"staleness-by-age-{words}.png")


def learning_curves(runs: RunsBySetup) -> Figure:
    """The mean return of the last 100 episodes and, as dashed lines with dots, of evaluations."""
    return _over_training(
        runs,
        "return (mean of the last 100 episodes)",
        lambda run: run.learning_curve,
        dots=_evaluations,
    )


def iteration_means(runs: RunsBySetup, column: str, words: str, offset: float = 0.0) -> Figure:
    """Running means of a column of ``iterations.csv``, plus ``offset``."""
    return _over_training(
        runs,
        f"{words} (running mean)",
        lambda run: (run.iterations["frames"], drawing.smooth(run.iterations[column]) + offset),
    )


def batches_in_use(runs: RunsBySetup) -> Figure:
    """Running means of the number of batches in use."""
    figure = iteration_means(runs, "active_batches", "batches in use")
    longest = max(np.max(run.iterations["active_batches"]) for own in runs.values() for run in own)
    for axes in figure.axes:
        axes.set_ylim(0.5, longest + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def staleness_by_age(runs: Sequence[LoggedRun]) -> Figure:
    """Staleness of one setup's stored batches, with one line per age, on a logarithmic axis.

    Lines are medians over seeds of running means. The dashed line is the drop factor: batches below it
    are used.
    """
    columns = {name for run in runs for name in run.iterations}
    ages = sorted(int(name[10:]) for name in columns if re.fullmatch(r"staleness_[1-9]\d*", name))
    shades = drawing.shades(len(ages))
    figure, panels = drawing.panels(_tasks(runs))
    for task, axes in panels.items():
        here = [run.iterations for run in runs if run.task == task]
        for age, shade in zip(ages, shades, strict=True):
            column = f"staleness_{age}"
            curves = [(t["frames"], drawing.smooth(t[column])) for t in here if column in t]
            if curves:
                frames, values = drawing.aligned(curves)
                middle = np.ma.median(np.ma.masked_invalid(values), axis=0)  # type: ignore[no-untyped-call]
                axes.plot(frames, middle, color=shade, linewidth=1, label=f"age {age}")
        if "drop_factor" in (first := here[0]):
            x, y = first["frames"], first["drop_factor"]
            axes.plot(x, y, "--", color="black", linewidth=1, label="drop factor")
        axes.set_yscale("log")
    drawing.label(figure, "staleness of stored batches (running mean)")
    return figure


def _over_training(
    runs: RunsBySetup,
    words: str,
    curve: Callable[[LoggedRun], drawing.Curve],
    dots: Callable[[LoggedRun], drawing.Curve] | None = None,
) -> Figure:
    figure, panels = drawing.panels(_tasks(run for own in runs.values() for run in own))
    colors = drawing.colors(list(runs))
    for name, own in runs.items():
        for task, axes in panels.items():
            here = [run for run in own if run.task == task]
            if here:
                drawing.draw_curves(axes, [curve(run) for run in here], colors[name], name)
            played = [found for run in here if dots and len((found := dots(run))[0])]
            if played:
                drawing.draw_curves(axes, played, colors[name], f"{name}, evaluations", "o--")
    drawing.label(figure, words)
    return figure


def _evaluations(run: LoggedRun) -> drawing.Curve:
    frames = run.iterations["frames"]
    returns = run.iterations.get("eval_return", np.full(len(frames), np.nan))
    done = np.isfinite(returns)
    return frames[done], returns[done]


def _tasks(runs: Iterable[LoggedRun]) -> list[str]:
    return sorted({run.task for run in runs})
