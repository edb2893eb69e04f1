"""The page of tables that the benchmark prints, the ratios in it, and the targets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from throughput.turns import Samples

_PACKAGES = (
    "amber_trl",
    "torch",
    "torchrl",
    "tensordict",
    "gymnasium",
    "mujoco",
    "numpy",
    "stable_baselines3",
)


@dataclass(frozen=True)
class Target:
    """A ratio, its values in all rounds, and the most, or the least, that it may be."""

    name: str
    values: list[float]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median is within the limit; None if it was not measured."""
        if not self.values:
            return None
        middle = np.median(self.values)
        below = self.at_most is None or middle <= self.at_most
        return bool(below and (self.at_least is None or middle >= self.at_least))

    @property
    def row(self) -> list[str]:
        """Name, limit, what was measured, verdict."""
        limit = f">= {self.at_least:g}" if self.at_most is None else f"<= {self.at_most:g}"
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.met]
        return [self.name, limit, spread(self.values, ".3g"), verdict]


@dataclass
class Page:
    """What was found so far."""

    lines: list[str] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Adds a table, its numbers to the right."""
        rule = ["---", *("--:" for _ in header[1:])]
        self.lines += [f"### {title}", ""]
        self.lines += [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        self.lines.append("")


def column(samples: Samples, name: str, part: str = "whole") -> list[float]:
    """A program's part in every round; empty if it was not run, or has no such part."""
    return [round_[part] for round_ in samples.get(name, []) if part in round_]


def rate(samples: Samples, name: str, frames: int, part: str = "whole") -> list[float]:
    """Frames per second in every round; empty as the column is."""
    return [frames / seconds for seconds in column(samples, name, part)]


def ratio(samples: Samples, over: str, under: str, part: str = "whole") -> list[float]:
    """One program's seconds over another's, round by round; empty if one was not run."""
    pairs = zip(column(samples, over, part), column(samples, under, part), strict=False)
    return [a / b for a, b in pairs]


def spread(values: Sequence[float], form: str) -> str:
    """Median, and quartiles."""
    if not values:
        return ""
    low, median, high = (format(float(q), form) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{median} ({low} to {high})"


def median(values: Sequence[float], form: str) -> str:
    """The median alone."""
    return format(float(np.median(values)), form) if values else ""


def version(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, str]:
    """Processor, cores and load, and the versions that matter."""
    processor = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = lines[0].partition(": ")[2] if lines else processor
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "versions": ", ".join(f"{name} {version(name) or 'missing'}" for name in _PACKAGES),
    }
