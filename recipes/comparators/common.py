"""What the comparators share: their options, the paper's protocol, and how a run starts."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from command_line import open_directory
from ranges import Range, check_fields
from tensordict import TensorDictBase
from torchrl.data import Categorical
from torchrl.envs import EnvBase

from amber_trl.collectors import GymCollector
from amber_trl.envs import make_env
from amber_trl.modules import ObservationNormalizer, gaussian_actor
from amber_trl.runs import Policy, RunDirectory, TrainingRun

_PROTOCOL: dict[str, Any] = {"protocol": "paper", "num_envs": 1, "time_limits": "terminal"}


@dataclass(frozen=True, kw_only=True)
class ComparatorConfig:
    """What to train, and how. Where a default is None, the text says what it stands for."""

    env_id: str = "HalfCheetah-v5"
    """Gymnasium id of an environment with Box observations and actions."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seeds networks, environment, actions and minibatches."""
    run_dir: Path | None = None
    """Where the run's files go (runs/ENV_ID-SETUP-seedSEED)."""
    overwrite: bool = False
    """Replace a run that the directory already holds."""
    resume: Path | None = None
    """Directory of a run to go on with, from its newest sound checkpoint and with its options."""
    extend: Path | None = None
    """Directory of a finished run to go on with, up to total_frames and with its options."""
    init_from: Path | None = None
    """Run, or checkpoint of one, whose networks and statistics to start from."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames to train for; the last batch is made whole (1 000 000; smoke: 2560)."""
    frames_per_batch: Annotated[int, Range(2)]
    """Frames collected per iteration."""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per frame."""
    checkpoint_interval: Annotated[int | None, Range(1)] = None
    """Iterations between checkpoints (None: only one, at the end)."""
    progress: bool = True
    """Show a progress bar."""
    smoke: bool = False
    """A few iterations that exercise everything and learn nothing."""


C = TypeVar("C", bound=ComparatorConfig)


def settle(config: C, setup: str) -> C:
    """Fills in what was left open; refuses what cannot be, by name."""
    check_fields(config)
    total = config.total_frames or (2560 if config.smoke else 1_000_000)
    task = config.env_id.replace("/", "-").replace(":", "-")
    run_dir = config.run_dir or Path("runs", f"{task}-{setup}-seed{config.seed}")
    return replace(config, total_frames=total, run_dir=run_dir)


def open_run(config: C, setup: str) -> tuple[C, EnvBase, RunDirectory]:
    """Everything that can fail before training: options, environment and run directory."""
    config = settle(config, setup)
    torch.set_num_threads(1)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002  (Stable-Baselines3 draws its minibatches from it)
    torch.manual_seed(config.seed)
    env = make_env(config.env_id, 1, seed=config.seed)
    if isinstance(env.action_spec, Categorical):
        raise TypeError(f"env_id={config.env_id!r} has discrete actions: choose one with Box's")
    return config, env, open_directory(config, {"setup": setup, **_PROTOCOL})


def build_policy(config: ComparatorConfig, env: EnvBase) -> tuple[Policy, ObservationNormalizer]:
    """The policy of PPO and AMBER, and the statistics by which it standardises observations."""
    size = env.observation_spec["observation"].shape[-1]
    arguments = {"observation_size": size, "action_size": env.action_spec.shape[-1]}
    normalizer = ObservationNormalizer(size)
    actor = gaussian_actor(**arguments, normalizer=normalizer)
    return Policy(config.env_id, arguments, actor), normalizer


def begin(
    config: ComparatorConfig,
    env: EnvBase,
    directory: RunDirectory,
    policy: Policy,
    parts: dict[str, Any],
) -> TrainingRun:
    """The run of a training with these parts and the policy, and its collector of whole batches."""
    size, total = config.frames_per_batch, config.total_frames or 0
    actor = policy.actor
    return TrainingRun(
        directory,
        GymCollector(env, actor, frames_per_batch=size, total_frames=total),
        {**parts, "policy": policy},
        checkpoint_interval=config.checkpoint_interval,
        init_from=config.init_from,
        progress=config.progress,
    )


def with_terminal_limits(batch: TensorDictBase) -> TensorDictBase:
    """A copy of the batch in which a time limit is an end like any other."""
    batch = batch.copy()
    batch["next", "terminated"] = batch["next", "done"]
    return batch
