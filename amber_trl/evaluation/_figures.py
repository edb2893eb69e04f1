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

_NAMED = 10  # ages

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

    Lines are medians over seeds of running means. The dashed line is the drop factor, also a median: batches
    below it are used. The legend names at most ten ages.
    """
    columns = {name for run in runs for name in run.iterations}
    ages = sorted(int(name[10:]) for name in columns if re.fullmatch(r"staleness_[1-9]\d*", name))
    shades, named = drawing.shades(len(ages)), ages[:: -(-len(ages) // _NAMED)]
    figure, panels = drawing.panels(_tasks(runs))
    for task, axes in panels.items():
        here = [run for run in runs if run.task == task]
        for age, shade in zip(ages, shades, strict=True):
            column = f"staleness_{age}"
            logged = [run.iterations for run in here if column in run.iterations]
            if logged:
                curves = [(own["frames"], drawing.smooth(own[column])) for own in logged]
                label = f"age {age}" if age in named else None
                axes.plot(*_median(curves), color=shade, linewidth=1, label=label)
        frames, limit = _median([_drop_factor(run) for run in here])
        if np.isfinite(limit).any():
            axes.plot(frames, limit, "--", color="black", linewidth=1, label="drop factor")
        axes.set_yscale("log")
    drawing.label(figure, "staleness of stored batches (running mean)")
    return figure


def _median(curves: Sequence[drawing.Curve]) -> drawing.Curve:
    frames, values = drawing.aligned(curves)
    middle = np.ma.median(np.ma.masked_invalid(values), axis=0)  # type: ignore[no-untyped-call]
    return frames, middle.filled(np.nan)


def _drop_factor(run: LoggedRun) -> drawing.Curve:
    """As logged, or as configured if it is constant; NaN if the run drops nothing."""
    frames, fixed = run.iterations["frames"], run.config.get("drop_factor")
    constant = np.full(len(frames), np.nan if fixed is None else float(fixed))
    return frames, run.iterations.get("drop_factor", constant)


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
