"""What the figures share: panels by task, colours that stay apart for every eye, curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from amber_trl.evaluation.statistics import bootstrap_band

WIDTH = 7.2  # inches, a page's
PAPER_COLOR = "#666666"
# Okabe and Ito's palette; ppo and amber always have the same of it.
_FIXED = {"ppo": "#D55E00", "amber": "#0072B2", "mber_l2": "#009E73"}
_OTHERS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#009E73", "#0072B2", "#D55E00")
MOST_COLORS = len(_OTHERS)
"""Setups that can be told apart in one figure."""
_TEXT = 8


def colors(setups: Sequence[str]) -> dict[str, str]:
    """A colour for each setup.

    Raises:
        ValueError: if there are more setups than colours that can be told apart.
    """
    found = {name: _FIXED[name] for name in setups if name in _FIXED}
    free = [color for color in _OTHERS if color not in found.values()]
    rest = [name for name in setups if name not in found]
    if len(rest) > len(free):
        raise ValueError(f"setups={list(setups)}: no more than {MOST_COLORS} fit in one figure")
    return found | dict(zip(rest, free, strict=False))


def panels(
    titles: Sequence[str], height: float = 1.7, columns: int = 3
) -> tuple[Figure, dict[str, Axes]]:
    """A page-wide figure with a small panel under each title.

    Args:
        titles: one per panel.
        height: of a row, in inches.
        columns: panels in a row, if there are as many.
    """
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    height = max(height, 2.6 / rows)  # room for the legend and the labels of a single row
    figure = Figure(figsize=(WIDTH, height * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(titles) :]:
        axes.set_axis_off()
    found = dict(zip(titles, grid.flat, strict=False))
    for title, axes in found.items():
        axes.set_title(title, fontsize=_TEXT)
        axes.tick_params(labelsize=_TEXT - 1)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def label(figure: Figure, x: str, y: str) -> None:
    """Names the axes of all panels at once, and sets one legend for all of them on top."""
    figure.supxlabel(x, fontsize=_TEXT)
    figure.supylabel(y, fontsize=_TEXT)
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    columns = -(-len(found) // -(-len(found) // 5))  # rows of equal length, up to five in each
    options: dict[str, Any] = {"ncols": columns, "fontsize": _TEXT, "frameon": False}
    figure.legend(list(found.values()), list(found), loc="outside upper center", **options)


def by_seed(table: pd.DataFrame, value: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Frames in millions, ``[points]``, and a column of one cell's runs, ``[seeds, points]``."""
    wide = table.pivot(index="seed", columns="frames", values=value)
    return wide.columns.to_numpy(dtype=np.float64) / 1e6, wide.to_numpy(dtype=np.float64)


def smooth(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Running mean over the last ten points, or the last fortieth of a short curve.

    At the start over those there are.
    """
    window = max(1, min(10, curves.shape[1] // 40))
    frame = pd.DataFrame(curves.T).rolling(window, min_periods=1).mean()
    return frame.to_numpy().T


def draw_curves(
    axes: Axes, frames: NDArray[np.float64], curves: NDArray[np.float64], **style: Any
) -> None:
    """The mean of the seeds with its 95 % interval, and each seed as a thin line.

    Args:
        axes: to draw on.
        frames: in millions, ``[points]``.
        curves: ``[seeds, points]``.
        **style: of the mean: ``color``, ``label`` and the like.
    """
    color = style["color"]
    if len(curves) > 1:
        axes.plot(frames, curves.T, color=color, linewidth=0.4, alpha=0.5)
        low, high = bootstrap_band(curves)
        axes.fill_between(frames, low, high, color=color, alpha=0.2, linewidth=0)
    there = ~np.isnan(curves).all(0)
    axes.plot(frames[there], np.nanmean(curves[:, there], axis=0), linewidth=1.3, **style)
