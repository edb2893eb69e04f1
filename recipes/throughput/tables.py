"""Statistics over rounds, and the tables that the benchmark prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from throughput.rounds import Samples

_PACKAGES = ("amber_trl", "torch", "torchrl", "tensordict", "gymnasium", "mujoco", "numpy")
_PACKAGES += ("stable_baselines3",)


@dataclass
class Results:
    """Tables in Markdown, and the samples behind them by part."""

    lines: list[str] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Adds a table with its numbers aligned to the right."""
        rule = ["---", *("--:" for _ in header[1:])]
        self.lines += [f"### {title}", ""]
        self.lines += [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        self.lines.append("")


def column(samples: Samples, name: str, part: str = "whole") -> list[float]:
    """A part of a program in every round; empty if it was not measured."""
    return [times[part] for times in samples.get(name, []) if part in times]


def rate(samples: Samples, name: str, frames: int, part: str = "whole") -> list[float]:
    """Frames per second in every round."""
    return [frames / seconds for seconds in column(samples, name, part)]


def ratio(samples: Samples, over: str, under: str, part: str = "whole") -> list[float]:
    """One program's seconds over another's, round by round; empty if one was not measured."""
    pairs = zip(column(samples, over, part), column(samples, under, part), strict=False)
    return [a / b for a, b in pairs]


def spread(values: Sequence[float], form: str) -> str:
    """Median and quartiles."""
    if not values:
        return ""
    low, middle, high = (format(float(q), form) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{middle} ({low} to {high})"


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
