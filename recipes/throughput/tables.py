"""Statistics over rounds, and the tables that the benchmark prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from amber_trl import _provenance
from throughput.rounds import Samples


@dataclass
class Results:
    """Tables in Markdown, and the samples behind them, by part."""

    lines: list[str] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Adds a table with right-aligned numbers."""
        rule = ["---", *("--:" for _ in header[1:])]
        self.lines += [f"### {title}", ""]
        self.lines += [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        self.lines.append("")


def column(samples: Samples, name: str, part: str = "whole") -> list[float]:
    """The seconds of a program's part in every round; empty if it was not measured."""
    return [times[part] for times in samples.get(name, []) if part in times]


def rate(samples: Samples, name: str, frames: int, part: str = "whole") -> list[float]:
    """Frames per second in every round."""
    return [frames / seconds for seconds in column(samples, name, part)]


def ratio(samples: Samples, over: str, under: str) -> list[float]:
    """Seconds of one ``program`` or ``program: part`` over another's, by round; empty if one is missing."""
    pairs = zip(*(column(samples, *cell.split(": ")) for cell in (over, under)), strict=False)
    return [a / b for a, b in pairs]


def spread(values: Sequence[float], form: str) -> str:
    """Median and quartiles."""
    if not values:
        return ""
    low, middle, high = (format(float(q), form) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{middle} ({low} to {high})"


def median(values: Sequence[float], form: str) -> str:
    """The median on its own."""
    return format(float(np.median(values)), form) if values else ""


def machine() -> str:
    """Processor and versions, as text."""
    found = _provenance.machine()
    versions = _provenance.package_versions()
    versions |= {"stable_baselines3": _provenance.version("stable_baselines3") or "missing"}
    described = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{found['processor']}, {os.cpu_count()} cores, {found['system']}; {described}"
