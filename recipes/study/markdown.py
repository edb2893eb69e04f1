"""Tables and numbers of a results page as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from study.tables import METRICS

Cell = Mapping[Any, Any]


def markdown(table: pd.DataFrame, columns: Mapping[str, str | Callable[[Cell], str]]) -> str:
    """A table as Markdown.

    ``columns`` has, by heading, a column of the table or a function that makes the cell from the row.
    """
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in table.to_dict("records"):
        cells = (str(row[c]) if isinstance(c, str) else c(row) for c in columns.values())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def keys(*names: str) -> dict[str, Any]:
    """Columns of a table whose headings are their names."""
    return {name: name for name in names}


def by_setup(
    found: Mapping[str, pd.DataFrame], columns: Mapping[str, Callable[[Cell], str]]
) -> str:
    """A row per setup, with some columns for each metric."""
    rows: dict[str, dict[str, str]] = {}
    for metric, table in found.items():
        for cell in table.to_dict("records"):
            row = rows.setdefault(cell["setup"], {"setup": cell["setup"]})
            row |= {f"{METRICS[metric]}{end}": column(cell) for end, column in columns.items()}
    return markdown(pd.DataFrame(rows.values()), keys(*next(iter(rows.values()))))


def interval(cell: Cell, name: str, prefix: str = "", decimals: int | None = None) -> str:
    """An estimate and its interval, with as many decimals as the interval supports."""
    value, low, high = cell[name], cell[f"{prefix}low"], cell[f"{prefix}high"]
    if math.isnan(value):
        return "-"
    if math.isnan(low):
        return short(value) if decimals is None else f"{value:.{decimals}f}"
    if decimals is None:
        decimals = 0 if high - low >= 50 else 1 if high - low >= 5 else 2
    return f"{value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def paper(cell: Cell) -> str:
    """The paper's mean and deviation."""
    mean, std = cell["paper_mean"], cell["paper_std"]
    return "-" if math.isnan(mean) else f"{mean:g} ± {std:g}"


def probability(cell: Cell) -> str:
    """Has an interval only over several tasks; a single task has too few seeds for one."""
    if cell["task"] != "all tasks":
        return number(cell["probability"])
    return interval(cell, "probability", prefix="probability_", decimals=2)


def number(value: float) -> str:
    """A number with two decimals."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def short(value: float) -> str:
    """A number with four digits, or as an integer if it is large."""
    return "-" if math.isnan(value) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def ranges(seeds: Iterable[int]) -> str:
    """Seeds in short: 0, 1, 2, 5 become ``0-2, 5``."""
    spans: list[list[int]] = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1].append(seed)
        else:
            spans.append([seed])
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


def listed(tasks: list[str]) -> str:
    """Tasks in a sentence."""
    return ", ".join(tasks) or "no task"
