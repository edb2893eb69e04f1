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


@contextmanager
def acting_in_env(
    policy: Policy, copies: int, *, deterministic: bool, seed: int, **env_kwargs: Any
) -> Iterator[EnvBase]:
    """Fresh copies of a policy's environment, closed at the end.

    Inside, the actor takes its mean action, or draws with a generator that lives only here.

    Raises:
        ValueError: if a weight is not finite, or the environment is unknown or has other spaces than
            the policy.
    """
    for name, weight in policy.actor.state_dict().items():
        if isinstance(weight, Tensor) and not weight.isfinite().all():
            raise ValueError(
                f"the policy for env_id={policy.env_id!r} cannot be played: its {name!r} is not "
                "finite. Take a checkpoint from before its training diverged"
            )
    kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    try:
        env = make_env(policy.env_id, copies, seed=seed, **env_kwargs)
    except (TypeError, gymnasium.error.Error) as error:
        raise ValueError(
            f"env_id={policy.env_id!r} cannot be made for this policy: {error}"
        ) from error
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), set_exploration_type(kind):
            _check_spaces(policy, env)
            torch.manual_seed(seed)
            yield env
    finally:
        env.close()


def step(
    policy: Policy, env: EnvBase, frames: TensorDictBase
) -> tuple[TensorDictBase, TensorDictBase]:
    """One frame in every copy, as ``step_and_maybe_reset`` returns it.

    Raises:
        ValueError: if a number is not finite, since the episode then has no return.
    """
    taken, frames = env.step_and_maybe_reset(policy.actor(frames))
    for key in ("observation", "reward"):
        if not (value := taken["next", key]).isfinite().all():
            raise ValueError(
                f"the {key} in env_id={policy.env_id!r} is not finite: {value.flatten().tolist()}"
            )
    return taken, frames


def endless(policy: Policy, max_frames: int) -> RuntimeError:
    """The error of an episode that goes on after ``max_frames``."""
    return RuntimeError(
        f"an episode of env_id={policy.env_id!r} has not ended after max_frames={max_frames}: "
        "pass a larger max_frames (--max-frames) if its episodes are that long; an environment "
        "without an end needs a time limit (max_episode_steps where it is registered)"
    )


def _check_spaces(policy: Policy, env: EnvBase) -> None:
    acted = policy.actor(env.observation_spec.zero())  # refuses observations of another size
    action, logits = acted["action"], acted.get("logits", None)
    same = action.shape == env.action_spec.shape
    same &= action.is_floating_point() == env.action_spec.dtype.is_floating_point
    if not same or (logits is not None and logits.shape[-1] != env.action_spec.space.n):
        raise ValueError(
            f"env_id={policy.env_id!r} is not what the policy was trained on: its actions do not fit "
            f"{env.single_action_space}"
        )
