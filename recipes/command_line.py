"""What the recipes that train share: options of a new or resumed run, and how one ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import tyro

from amber_trl.runs import read_config

C = TypeVar("C")


def command_line(kind: type[C], description: str | None) -> C:
    """What was asked for: an instance of the dataclass ``kind``, with the run's own if it resumes.

    Args:
        kind: has a field for each option, among them ``resume``, ``run_dir`` and ``overwrite``.
        description: shown by ``--help``.

    Raises:
        ValueError: if an option given beside ``--resume`` is another than the run's.
    """
    config = tyro.cli(kind, description=description)
    if (run_dir := getattr(config, "resume")) is None:  # noqa: B009  (of any such class)
        return config
    saved = saved_config(kind, run_dir)
    given = tyro.cli(kind, description=description, default=saved)
    check_same(given, saved)
    return given


def saved_config(kind: type[C], run_dir: Path) -> C:
    """The options to resume a run with: its own, wherever its directory is now.

    Raises:
        FileNotFoundError: if there is no run.
        ValueError: if its ``config.json`` cannot be read, or is of another version or recipe.
    """
    saved = read_config(run_dir) | {"run_dir": run_dir, "resume": run_dir, "overwrite": False}
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if missing := names - saved.keys():
        raise ValueError(
            f"{run_dir}/config.json lacks {sorted(missing)}: resume the run with the recipe and "
            "the version that it was started with"
        )
    return kind(**{name: _value(saved[name]) for name in names})


def check_same(given: Any, saved: Any) -> None:
    """Refuses options that contradict those of the run that is resumed; ``progress`` may."""
    for field in fields(given):
        value, ours = getattr(given, field.name), getattr(saved, field.name)
        if isinstance(value, Path) and isinstance(ours, Path):
            value, ours = value.resolve(), ours.resolve()
        if field.name != "progress" and value != ours:
            raise ValueError(
                f"{field.name}={value!r} contradicts {field.name}={ours!r} of the run in "
                f"{str(saved.run_dir)!r}: leave it out, since a resumed run keeps its options"
            )


def conclude(summary: Mapping[str, Any], run_dir: Path) -> int:
    """Says how a run ended, and returns the exit code: 0, or 128 and the signal that stopped it."""
    frames, stopped_by = summary["frames"], summary["stopped_by"]
    if stopped_by:
        text = f"stopped after {frames} frames; go on with --resume {run_dir}"
    elif summary["episodes"]:
        text = f"final score {summary['final_score']:.4g} after {frames} frames: {run_dir}"
    else:
        text = f"no final score, as no episode has ended, after {frames} frames: {run_dir}"
    say(text)
    return 128 + signal.Signals[stopped_by] if stopped_by else 0


def say(text: str) -> None:
    """Prints a line, at once; characters that the terminal does not have are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    sys.stdout.flush()


def _value(value: Any) -> Any:
    """A value as it was before it became JSON, which has neither tuples nor infinity."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if value == "inf" else value
