"""The loop that plays a policy's episodes, with errors that name what does not fit."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type, step_mdp
from tqdm import tqdm

from amber_trl._checks import check_integer
from amber_trl.envs import make_env
from amber_trl.runs import Policy

MAX_FRAMES = 100_000
"""Frames after which an episode is taken to have no end."""
_COPIES = 8


def play_episodes(
    policy: Policy,
    episodes: int,
    *,
    deterministic: bool,
    seed: int,
    max_frames: int,
    progress: bool = False,
    show: Callable[[EnvBase], object] = lambda env: None,
    **env_kwargs: Any,
) -> list[tuple[float, int]]:
    """Plays episodes as :func:`play` does, and calls ``show`` after the first reset and each step.

    The environment is made with ``env_kwargs``, which go to ``gymnasium.make``. Returned are each
    episode's return and length, in the order in which the episodes ended.
    """
    check_integer("episodes", episodes)
    check_integer("max_frames", max_frames)
    kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    copies = min(episodes, _COPIES)
    left = [episodes // copies + (copy < episodes % copies) for copy in range(copies)]
    totals, lengths = torch.zeros(copies, dtype=torch.float64), [0] * copies
    played: list[tuple[float, int]] = []
    with (
        contextlib.closing(make_env(policy.env_id, copies, seed=seed, **env_kwargs)) as env,
        tqdm(total=episodes, unit="episode", disable=not progress) as bar,
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        set_exploration_type(kind),
    ):
        _check_spaces(policy, env)
        torch.manual_seed(seed)
        frames = env.reset()
        show(env)
        while any(left):
            frames = env.step(policy.actor(frames))
            show(env)
            for key in ("observation", "reward"):
                if not (value := frames["next", key]).isfinite().all():
                    raise ValueError(
                        f"the {key} in env_id={policy.env_id!r} is not finite: "
                        f"{value.flatten().tolist()}"
                    )
            totals += frames["next", "reward"][:, 0]
            for copy, ended in enumerate(frames["next", "done"][:, 0].tolist()):
                lengths[copy] += 1
                if ended:
                    if left[copy]:
                        left[copy] -= 1
                        played.append((totals[copy].item(), lengths[copy]))
                        bar.update()
                    totals[copy], lengths[copy] = 0, 0
                elif left[copy] and lengths[copy] >= max_frames:
                    raise RuntimeError(
                        f"an episode of env_id={policy.env_id!r} has not ended after "
                        f"max_frames={max_frames}: pass a larger max_frames (--max-frames) if its "
                        "episodes are that long; an environment without an end needs a time limit "
                        "(max_episode_steps where it is registered)"
                    )
            frames = env.maybe_reset(step_mdp(frames))
    return played


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
