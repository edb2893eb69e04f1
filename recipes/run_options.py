"""The options that every recipe that trains has."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ranges import Range, check_fields
from tyro.constructors import PrimitiveConstructorSpec

from amber_trl.envs import make_env
from amber_trl.runs import LoggerName


def _json_object(words: list[str]) -> Any:
    try:
        value = json.loads(words[0])
        json.dumps(value, allow_nan=False)  # JSON has no NaN and no infinity, which 1e400 becomes
    except ValueError:
        return words[0]  # refused by check_options, in one line
    return value


EnvKwargs = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_json_object,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""Arguments of an environment; a JSON object on the command line."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Training options. Where the default is None, the parentheses say what applies."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of an environment with Box observations and actions."""
    env_kwargs: EnvKwargs = field(default_factory=dict)
    """Keyword arguments of the environment, such as '{"ctrl_cost_weight": 0.1}' for Ant-v5."""
    wrappers: tuple[str, ...] = ()
    """Wrappers to apply, innermost first, as module:Class, such as
    gymnasium.wrappers:FlattenObservation for a Dict observation."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of networks, environments, actions and minibatches."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames to train for, rounded up to whole batches; schedules anneal towards this number
    (1 000 000; smoke: 2560)."""
    run_dir: Path | None = None
    """Directory for the run's files (runs/ENV_ID-SETUP-seedSEED)."""
    overwrite: bool = False
    """Replace the run that the directory already holds."""
    checkpoint_interval: Annotated[int | None, Range(1)] = 50
    """Iterations between checkpoints (None: only one, at the end). A killed run resumes from the newest
    one. The last two and the best are kept."""
    resume: Path | None = None
    """Directory of a run to resume from its newest undamaged checkpoint, with its own options."""
    extend: Path | None = None
    """Directory of a finished run to continue up to total_frames, with its own options."""
    init_from: Path | None = None
    """Run or checkpoint from which to initialise networks and statistics."""
    logger: LoggerName = "csv"
    """csv: the run's own tables only. tensorboard: also event files in the run directory. wandb, mlflow:
    also that service, configured by its environment variables (WANDB_MODE=offline needs no account;
    without MLFLOW_TRACKING_URI, MLflow writes mlflow.db in the run directory)."""
    progress: bool = True
    """Show a progress bar with frames, time left, speed and return (mean of the last 100 episodes); if
    batches are stored, also active (batches in use) and staleness (of the oldest batch in use)."""
    smoke: bool = False
    """Smoke test: a few short iterations that run everything within 20 seconds, but learn nothing."""


def check_options(config: RunOptions) -> None:
    """Refuses options that are out of range, and environment arguments that are not allowed.

    Raises:
        ValueError: naming the option and its value.
    """
    check_fields(config)
    given: Any = config.env_kwargs
    if not isinstance(given, dict):
        raise ValueError(
            f"env_kwargs={given!r} is not a JSON object: give one, such as "
            """'{"max_episode_steps": 500}'"""
        )
    if taken := sorted(given.keys() & inspect.signature(make_env).parameters.keys()):
        raise ValueError(f"env_kwargs={given!r}: the recipe sets {taken} itself: leave them out")


def default_run_dir(config: RunOptions, setup: str) -> Path:
    """``runs/ENV_ID-SETUP-seedSEED``, without characters that a path cannot hold."""
    task = config.env_id.replace("/", "-").replace(":", "-")
    return Path("runs", f"{task}-{setup}-seed{config.seed}")
