"""Shared by the figures: panels, colours, one legend, and curves with mean and interval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from scipy import stats

_WIDTH = 7.2  # inches
_TEXT = 8  # points
_SMOOTHED = 10  # iterations of a running mean
_RESAMPLES = 4_000
# Okabe and Ito's colours, which most people can tell apart; these setups always have the same colour.
_FIXED = {"ppo": "#D55E00", "amber": "#0072B2", "mber_l2": "#009E73"}
_OTHERS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#009E73", "#0072B2", "#D55E00")

Curve = tuple[NDArray[Any], NDArray[np.float64]]
"""Frames and values, ``[points]`` each."""


def colors(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each name; neighbouring shades if there are more names than colours."""
    found: dict[str, Any] = {name: _FIXED[name] for name in names if name in _FIXED}
    rest = [name for name in names if name not in found]
    free: Sequence[Any] = [color for color in _OTHERS if color not in found.values()]
    chosen = free[: len(rest)] if len(rest) <= len(free) else shades(len(rest))
    return found | dict(zip(rest, chosen, strict=True))


def shades(count: int) -> Sequence[Any]:
    """Colours from light to dark."""
    return list(colormaps["viridis_r"](np.linspace(0.1, 1, count)))


def panels(
    titles: Sequence[str], height: float = 1.7, columns: int = 3
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a small panel under each title; ``height`` is that of a row, in inches."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    height = max(height, 2.6 / rows)  # room for the legend and the labels of a single row
    figure = Figure(figsize=(_WIDTH, height * rows + 0.6), layout="constrained")
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


def label(figure: Figure, y: str, x: str = "frames") -> None:
    """Names the axes of all panels, and adds one legend for all of them on top."""
    figure.supxlabel(x, fontsize=_TEXT)
    figure.supylabel(y, fontsize=_TEXT)
    found: dict[str, Any] = {}
    for axes in figure.axes:
        if x == "frames":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k, 1M
        handles, names = axes.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    longest = max(map(len, found))
    most = 5 if longest < 18 else max(1, 110 // (longest + 8))
    columns = -(-len(found) // -(-len(found) // most))  # rows of equal length
    options: dict[str, Any] = {"ncols": columns, "fontsize": _TEXT, "frameon": False}
    figure.legend(list(found.values()), list(found), loc="outside upper center", **options)


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Running mean of the finite values among the last ten (fewer in short curves)."""
    window = max(1, min(_SMOOTHED, len(values) // 40))
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    recent = np.lib.stride_tricks.sliding_window_view(padded, window)
    return np.ma.masked_invalid(recent).mean(-1).filled(np.nan)


def aligned(curves: Sequence[Curve]) -> Curve:
    """The frames at which any curve has a point, ``[points]``, and values, ``[curves, points]``.

    Values are NaN where a curve has no point: beyond its end, or between its frames.
    """
    frames = np.unique(np.concatenate([own for own, _ in curves]))
    table = np.full((len(curves), len(frames)), np.nan)
    for row, (own, values) in zip(table, curves, strict=True):
        row[np.searchsorted(frames, own)] = values
    return frames, table


def draw_curves(
    axes: Axes, curves: Sequence[Curve], color: Any, name: str, line: str = "-"
) -> None:
    """Draws thin curves, and a thick mean with its 95 % bootstrap interval at each point.

    ``line`` is a matplotlib format.
    """
    frames, values = aligned(curves)
    if len(curves) > 1:
        for curve in curves:
            axes.plot(*curve, line, color=color, linewidth=0.4, markersize=1, alpha=0.5)
        axes.fill_between(frames, *_interval(values), color=color, alpha=0.2, linewidth=0)
    mean = np.ma.masked_invalid(values).mean(0).filled(np.nan)
    axes.plot(frames, mean, line, color=color, label=name, linewidth=1.3, markersize=2.5)


def _interval(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The expanded percentile bootstrap interval of the mean over rows, ``[2, points]``.

    Plain percentiles of few rows are too narrow; expanded ones correct this (Hesterberg, arXiv 1411.5279).
    """
    size = len(values)
    weights = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), _RESAMPLES)
    tail = stats.norm.sf(stats.t.ppf(0.975, size - 1) / np.sqrt((size - 1) / size))
    return np.quantile(weights / size @ values, [tail, 1 - tail], axis=0)


def save(figure: Figure, file: Path) -> Path:
    """Writes a figure as PNG; equal figures give equal bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150, metadata={"Software": None})
    return file
