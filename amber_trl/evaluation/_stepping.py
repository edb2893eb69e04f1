"""Stepping the environments of a policy, with errors that name what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type

from amber_trl.envs import make_env
from amber_trl.runs.policies import Policy

MAX_FRAMES = 100_000
"""Frames after which an episode is taken to have no end."""

_LARGEST_SEED = 2**31 - 1


def check_numbers(*, seed: int, episodes: int = 1, max_frames: int = MAX_FRAMES) -> None:
    """Refuses numbers that are no integers or out of range."""
    for name, value in (("episodes", episodes), ("max_frames", max_frames)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be an integer of at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed={seed!r} must be an integer from 0 to {_LARGEST_SEED}")


def make_fitting_env(policy: Policy, copies: int, *, seed: int, **env_kwargs: Any) -> EnvBase:
    """Fresh copies of a policy's environment.

    Raises:
        ValueError: the policy has weights that are not finite, or the environment is unknown or
            has other spaces than the policy.
    """
    for name, weight in policy.actor.state_dict().items():
        if isinstance(weight, Tensor) and not weight.isfinite().all():
            raise ValueError(
                f"the policy for env_id={policy.env_id!r} cannot be played: its {name!r} is not "
                "finite. Take a checkpoint from before its training diverged"
            )
    try:
        env = make_env(policy.env_id, copies, seed=seed, **env_kwargs)
    except (TypeError, gymnasium.error.Error) as error:
        raise ValueError(
            f"env_id={policy.env_id!r} cannot be made for this policy: {error}"
        ) from error
    try:
        _check_spaces(policy, env)
    except BaseException:
        env.close()
        raise
    return env


def step(
    policy: Policy, env: EnvBase, frames: TensorDictBase
) -> tuple[TensorDictBase, TensorDictBase]:
    """One frame in every copy, as ``step_and_maybe_reset``; all numbers in it are finite."""
    _check_finite(policy, "observation", frames["observation"])
    try:
        acted = policy.actor(frames)
    except ValueError as error:  # torch's check of the distribution's parameters
        raise ValueError(
            f"the policy for env_id={policy.env_id!r} gives no distribution: {_first_line(error)}"
        ) from error
    _check_finite(policy, "action", acted["action"])
    taken, frames = env.step_and_maybe_reset(acted)
    _check_finite(policy, "reward", taken["next", "reward"])
    return taken, frames


def endless(policy: Policy, max_frames: int) -> RuntimeError:
    """The error of an episode that goes on after ``max_frames``."""
    return RuntimeError(
        f"an episode of env_id={policy.env_id!r} has not ended after max_frames={max_frames}: "
        "pass a larger max_frames (--max-frames) if its episodes are that long; an environment "
        "without an end needs a time limit (max_episode_steps where it is registered)"
    )


@contextmanager
def acting(deterministic: bool, seed: int) -> Iterator[None]:
    """Inside, actors take the mean action, or draw with a generator that only lives here."""
    kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    with torch.random.fork_rng(devices=[]), torch.no_grad(), set_exploration_type(kind):
        torch.manual_seed(seed)
        yield


def _check_spaces(policy: Policy, env: EnvBase) -> None:
    wrong = f"env_id={policy.env_id!r} is not what the policy was trained on: "
    observations, actions = env.observation_spec, env.action_spec
    try:
        with acting(deterministic=True, seed=0):
            acted = policy.actor(observations.zero())
    except (RuntimeError, ValueError) as error:
        size = observations["observation"].shape[-1]
        raise ValueError(
            f"{wrong}it takes no observation of {size} numbers ({_first_line(error)})"
        ) from error
    action, logits = acted["action"], acted.get("logits", None)
    same = action.is_floating_point() == actions.dtype.is_floating_point
    if same and logits is not None:
        same = logits.shape[-1] == actions.space.n
    if not same or action.shape != actions.shape:
        raise ValueError(f"{wrong}its actions are others than {env.single_action_space}")


def _check_finite(policy: Policy, name: str, value: Tensor) -> None:
    if not value.isfinite().all():
        raise ValueError(
            f"the {name} in env_id={policy.env_id!r} is not finite: {value.flatten().tolist()}, one "
            "or more numbers per copy. An episode with it has no return"
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
