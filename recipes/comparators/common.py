"""Shared by the comparators: options, the paper's protocol, and how a run starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import torch
from command_line import initialize, open_directory, seed_everything
from ranges import Range
from run_options import RunOptions, check_options, default_run_dir
from tensordict import TensorDictBase
from torchrl.data import Categorical
from torchrl.envs import EnvBase

from amber_trl.collectors import GymCollector
from amber_trl.envs import make_env
from amber_trl.modules import ObservationNormalizer, gaussian_actor
from amber_trl.runs import Policy, RunDirectory, TrainingRun

_PROTOCOL: dict[str, Any] = {"protocol": "paper", "num_envs": 1, "time_limits": "terminal"}


@dataclass(frozen=True, kw_only=True)
class ComparatorConfig(RunOptions):
    """Training options. Where the default is None, the parentheses say what applies."""

    frames_per_batch: Annotated[int, Range(2)]
    """Frames collected per iteration."""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per frame."""


def check_installed(package: str) -> None:
    """Raises ``ImportError`` with the command that installs a package of the comparators."""
    if find_spec(package) is None:
        raise ImportError(f"{package} is not installed: pip install -e '.[comparators]'")


C = TypeVar("C", bound=ComparatorConfig)


def settle(config: C, setup: str) -> C:
    """Fills in options left at None; refuses invalid ones by name."""
    check_options(config)
    total = config.total_frames or (2560 if config.smoke else 1_000_000)
    run_dir = config.run_dir or default_run_dir(config, setup)
    return replace(config, total_frames=total, run_dir=run_dir)


def prepare(config: C, setup: str) -> tuple[C, EnvBase, Policy, ObservationNormalizer]:
    """Options, environment, the policy of PPO and AMBER, and its observation statistics."""
    config = settle(config, setup)
    torch.set_num_threads(1)
    seed_everything(config.seed)  # Stable-Baselines3 draws its minibatches with NumPy's generator
    options: dict[str, Any] = {"wrappers": config.wrappers, **config.env_kwargs}
    env = make_env(config.env_id, 1, seed=config.seed, **options)
    if isinstance(env.action_spec, Categorical):
        raise TypeError(
            f"env_id={config.env_id!r} has discrete actions: choose a task with Box actions"
        )
    size = env.observation_spec["observation"].shape[-1]
    arguments = {"observation_size": size, "action_size": env.action_spec.shape[-1]}
    normalizer = ObservationNormalizer(size, initial_count=0.01)  # as in the paper's code base
    actor = gaussian_actor(**arguments, normalizer=normalizer)
    policy = Policy(config.env_id, arguments, actor, config.env_kwargs, config.wrappers)
    return config, env, policy, normalizer


def open_run(config: ComparatorConfig, setup: str, parts: dict[str, Any]) -> RunDirectory:
    """Opens the run directory after the parts are initialised from ``init_from``, if set."""
    initialize(config, parts)
    return open_directory(config, {"setup": setup, **_PROTOCOL}, logger=config.logger)


def begin(
    config: ComparatorConfig,
    env: EnvBase,
    directory: RunDirectory,
    parts: dict[str, Any],
    **options: Any,
) -> TrainingRun:
    """The training run over whole batches, with these parts, which include the policy."""
    size, total = config.frames_per_batch, config.total_frames or 0
    return TrainingRun(
        directory,
        GymCollector(env, parts["policy"].actor, frames_per_batch=size, total_frames=total),
        parts,
        checkpoint_interval=config.checkpoint_interval,
        progress=config.progress,
        **options,
    )


def with_terminal_limits(batch: TensorDictBase) -> TensorDictBase:
    """A copy of the batch in which time limits count as terminal."""
    batch = batch.copy()
    batch["next", "terminated"] = batch["next", "done"]
    return batch
