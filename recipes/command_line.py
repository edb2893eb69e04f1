"""Shared by the recipes that train: the options of a new or resumed run, and how a run ends."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import gymnasium
import numpy as np
import torch
import tyro
from run_options import RunOptions
from torchrl.envs import EnvBase

from amber_trl._actors import forked_generators
from amber_trl._terminal import say
from amber_trl.checkpoints import CheckpointError, list_checkpoints
from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.errors import NonFiniteDataError
from amber_trl.runs import RunDirectory, import_named, initialize_from, read_config
from amber_trl.training import NonFiniteError
from amber_trl.transforms import MetricName, StalenessMetric

C = TypeVar("C", bound=RunOptions)

_REFUSED = (ValueError, TypeError, RuntimeError, OSError, ImportError, gymnasium.error.Error)
_FAILED = (CheckpointError, NonFiniteDataError, NonFiniteError)


def run_recipe(
    kind: type[C],
    description: str | None,
    open_run: Callable[[C], tuple[Any, ...]],
    learn: Callable[..., Mapping[str, Any]],
) -> int:
    """Runs a recipe from the command line; prints one line with the error or the outcome.

    ``open_run`` does everything that can fail before training. What it returns, the configuration
    first, is passed to ``learn``, which returns the contents of ``summary.json``. The exit code is 0,
    or 128 plus the signal that stopped the run.
    """
    try:
        opened = open_run(command_line(kind, description))
        run_dir = opened[0].run_dir
    except _REFUSED as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    try:
        return _conclude(learn(*opened), run_dir)
    except OSError as error:  # such as a full disk
        sys.exit(f"error: {error}{_how_to_continue(run_dir)}")
    except _FAILED as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        say(f"stopped at once{_how_to_continue(run_dir)}")
        return 128 + signal.SIGINT


def command_line(kind: type[C], description: str | None) -> C:
    """Parses the options into the dataclass ``kind``; a resumed run keeps its own options.

    Raises:
        ValueError: if an option given with ``--resume`` or ``--extend`` differs from the
            run's, or the run cannot be extended.
    """
    config = tyro.cli(kind, description=description)
    if (saved := continued_config(kind, config)) is None:
        return config
    given = tyro.cli(kind, description=description, default=saved)
    check_same(given, saved)
    return given


def continued_config(kind: type[C], asked: Any) -> C | None:
    """The options of the run to resume or extend; None for a new one.

    Raises:
        ValueError: if both are given, or the run to extend is unfinished or not shorter.
    """
    if asked.extend is None:
        return None if asked.resume is None else saved_config(kind, asked.resume)
    if asked.resume is not None:
        raise ValueError("resume and extend: resume a run that was stopped, extend a finished one")
    saved: Any = saved_config(kind, asked.extend)
    frames = max((int(p.stem) for p in list_checkpoints(asked.extend / "checkpoints")), default=0)
    if frames < saved.total_frames:
        raise ValueError(
            f"extend={str(asked.extend)!r}: the run has {frames} of {saved.total_frames} frames; "
            "resume it first (--resume)"
        )
    if asked.total_frames is None or asked.total_frames <= frames:
        raise ValueError(
            f"total_frames={asked.total_frames} with extend={str(asked.extend)!r}, a run that has "
            f"{frames} frames: pass the total of the longer run (--total-frames)"
        )
    longer: C = replace(saved, resume=None, extend=asked.extend, total_frames=asked.total_frames)
    return longer


def open_directory(
    config: Any, also: Mapping[str, str] | None = None, **options: Any
) -> RunDirectory:
    """Opens the directory of a new, resumed or extended run, and writes its ``config.json``.

    That file holds the configuration and the values ``also`` given. For an extended run it also holds
    ``extended_at``, the frames at each extension. ``options`` are passed to ``RunDirectory``.
    """
    resume = config.resume is not None or config.extend is not None
    if resume and also and (setup := read_config(config.run_dir).get("setup")) != also["setup"]:
        raise ValueError(
            f"{config.run_dir} is a run of setup={setup!r}: resume it with its own recipe"
        )
    origin = config.init_from
    if config.overwrite and origin and origin.resolve().is_relative_to(config.run_dir.resolve()):
        raise ValueError(
            f"overwrite would remove init_from={str(origin)!r}, since run_dir={str(config.run_dir)!r}: "
            "name another run directory (--run-dir)"
        )
    directory = RunDirectory(config.run_dir, overwrite=config.overwrite, resume=resume, **options)
    if config.extend is not None:
        saved = read_config(config.run_dir)
        last, total = int(list_checkpoints(directory.checkpoints)[-1].stem), config.total_frames
        seams = [*saved.get("extended_at", []), last]
        directory.write_config(saved | {"total_frames": total, "extended_at": seams})
        say(f"extending from {last} to {total} frames, with the schedules of a run of that length")
    elif config.resume is None:
        directory.write_config({**(also or {}), **asdict(config)})
    return directory


def seed_everything(seed: int) -> None:
    """Seeds torch, and the global generators from which an environment may draw."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def initialize(config: Any, parts: Mapping[str, Any]) -> None:
    """Loads the networks of ``init_from``, if set, into the parts of a new run."""
    if config.init_from is not None and config.resume is None and config.extend is None:
        initialize_from(config.init_from, parts)


def check_staleness(replay: MultiBatchReplayBuffer, env: EnvBase) -> None:
    """Measures a few trial frames, so that a faulty metric fails before a run is created."""
    staleness = replay.staleness
    assert staleness is not None
    device = next(staleness.actor.parameters()).device
    with forked_generators(device), torch.no_grad():
        frames = staleness.actor(env.observation_spec.zero().to(device))
        try:
            staleness.measure(frames, age=torch.zeros(1, dtype=torch.int64))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"staleness_metric failed in a trial: {error.args[0]}") from error


def saved_config(kind: type[C], run_dir: Path) -> C:
    """The options of a saved run, with ``run_dir`` where the directory is now.

    Raises:
        FileNotFoundError: if the run does not exist.
        ValueError: if its ``config.json`` cannot be read, or belongs to another version or recipe.
    """
    own = {"run_dir": run_dir, "resume": run_dir, "extend": None, "overwrite": False}
    saved = read_config(run_dir) | own
    names = {field.name for field in fields(kind)}
    if missing := names - saved.keys():
        raise ValueError(
            f"{run_dir}/config.json lacks {sorted(missing)}: resume the run with the recipe and "
            "the version that started it"
        )
    values = {name: _value(saved[name]) for name in names}
    if values["init_from"] is not None:
        values["init_from"] = Path(values["init_from"])
    return kind(**values)


def check_same(given: Any, saved: Any) -> None:
    """Refuses options that contradict those of the resumed run, except ``progress`` and ``logger``."""
    for field in fields(given):
        value, ours = getattr(given, field.name), getattr(saved, field.name)
        if isinstance(value, Path) and isinstance(ours, Path):
            value, ours = value.resolve(), ours.resolve()
        if field.name not in ("progress", "logger") and value != ours:
            longer = "; to make a finished run longer, use --extend instead of --resume"
            raise ValueError(
                f"{field.name}={value!r} contradicts {field.name}={ours!r} of the run in "
                f"{str(saved.run_dir)!r}: leave it out, since a resumed run keeps its options"
                f"{longer if field.name == 'total_frames' else ''}"
            )


def metric_of(name: str) -> StalenessMetric:
    """The staleness metric with this name, or the object that ``module:name`` names."""
    if ":" in name:
        return import_named("staleness_metric", name)
    if name not in get_args(MetricName):
        names = list(get_args(MetricName))
        raise ValueError(f"staleness_metric={name!r}: choose one of {names}, or module:function")
    return cast("MetricName", name)


def _conclude(summary: Mapping[str, Any], run_dir: Path) -> int:
    frames, stopped_by = summary["frames"], summary["stopped_by"]
    if stopped_by:
        text = f"stopped after {frames} frames; resume with --resume {run_dir}"
    elif summary["episodes"]:
        text = f"final score {summary['final_score']:.4g} after {frames} frames: {run_dir}"
    else:
        text = f"no final score (no episode has ended) after {frames} frames: {run_dir}"
    say(text)
    return 128 + signal.Signals[stopped_by] if stopped_by else 0


def _how_to_continue(run_dir: Path) -> str:
    """What to do after a run ended early; empty without a checkpoint."""
    saved = list_checkpoints(run_dir / "checkpoints")
    return f"; continue from frame {int(saved[-1].stem)} with --resume {run_dir}" if saved else ""


def _value(value: Any) -> Any:
    """A value read from JSON, with tuples and infinity restored."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if value == "inf" else value
