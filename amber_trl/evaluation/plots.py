"""Figures of training runs as files: what ``amber-trl plot`` does."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from amber_trl.evaluation.logged_runs import by_setup, find_runs, read_run

_LOG = logging.getLogger(__name__)


def plot_runs(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> list[Path]:
    """Draws the figures that some training runs allow, finished or not, from any recipe.

    Setups are those of :func:`by_setup`. Thin lines are seeds; thick lines are their mean, with its 95 %
    bootstrap interval at each point. Dashed lines with dots are evaluations, if the runs have the
    column ``eval_return``. Needs matplotlib.

    Args:
        paths: run directories, or folders or zip archives that contain some.
        out: folder for the figures; created if missing.

    Returns:
        The PNG files ``learning-curves.png`` and, for runs that store several batches,
        ``batches-in-use.png`` and, for each setup, ``staleness-by-age-SETUP.png``.

    Raises:
        FileNotFoundError: if a path does not exist, or contains no run.
        ValueError: if a file cannot be read, or no run has finished an iteration.
        ImportError: if matplotlib is not installed.
        OSError: if ``out`` cannot be written.

    Examples:
        >>> from amber_trl.evaluation import plot_runs
        >>> plot_runs(["runs/halfcheetah"], "figures")  # doctest: +SKIP
    """
    try:
        from amber_trl.evaluation import _figures
    except ModuleNotFoundError as error:
        raise ImportError(
            f"figures need {error.name}, which is not installed: pip install matplotlib"
        ) from error
    begun = []
    for run in map(read_run, find_runs(paths)):
        if run.frames:
            begun.append(run)
        else:
            _LOG.warning("left out, because it has not finished an iteration: %s", run.path)
    if not begun:
        raise ValueError(f"no run in {[str(path) for path in paths]} has finished an iteration")
    totals = [(run, float(run.config.get("total_frames") or 0)) for run in begun]  # may be "inf"
    short = [f"{run.path} ({run.frames} of {n:.0f} frames)" for run, n in totals if run.frames < n]
    if short:
        _LOG.warning("unfinished, drawn as far as they have come: %s", ", ".join(short))
    return list(_figures.draw(by_setup(begun), Path(out)))
