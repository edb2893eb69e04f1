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
        json.dumps(value, allow_nan=False)  # JSON has neither NaN nor infinity, which 1e400 becomes
    except ValueError:
        return words[0]  # which check_options refuses, in one line
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
    """What to train, and how. Where a default is None, the text says what it stands for."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of an environment with Box observations and actions."""
    env_kwargs: EnvKwargs = field(default_factory=dict)
    """Arguments of the environment, such as '{"ctrl_cost_weight": 0.1}' for Ant-v5."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around it, the innermost first, as module:Class, such as
    gymnasium.wrappers:FlattenObservation for a Dict observation."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seeds networks, environments, actions and minibatches."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames to train for, towards which everything is annealed; the last batch is made whole
    (1 000 000; smoke: 2560)."""
    run_dir: Path | None = None
    """Where the run's files go (runs/ENV_ID-SETUP-seedSEED)."""
    overwrite: bool = False
    """Replace a run that the directory already holds."""
    checkpoint_interval: Annotated[int | None, Range(1)] = 50
    """Iterations between checkpoints, from which a killed run can be resumed (None: only one, at the
    end). Kept: the last two, the best."""
    resume: Path | None = None
    """Directory of a run to go on with, from its newest sound checkpoint and with its options."""
    extend: Path | None = None
    """Directory of a finished run to go on with, up to total_frames and with its options."""
    init_from: Path | None = None
    """Run, or checkpoint of one, whose networks and statistics to start from."""
    logger: LoggerName = "csv"
    """csv: the run's own tables. Others get their numbers too: tensorboard in the run directory;
    wandb and mlflow as their environment variables say (WANDB_MODE=offline needs no account;
    without MLFLOW_TRACKING_URI it is mlflow.db in the run directory)."""
    progress: bool = True
    """Show a progress bar: frames, time left and speed; return, the mean of the last 100 episodes;
    with replay also active, the batches in use, and staleness, that of the oldest of them."""
    smoke: bool = False
    """A few short iterations that exercise everything within 20 seconds, and learn nothing."""


def check_options(config: RunOptions) -> None:
    """Refuses options out of their ranges, and arguments that an environment cannot have.

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
    """``runs/ENV_ID-SETUP-seedSEED``, without what a path cannot hold."""
    task = config.env_id.replace("/", "-").replace(":", "-")
    return Path("runs", f"{task}-{setup}-seed{config.seed}")
