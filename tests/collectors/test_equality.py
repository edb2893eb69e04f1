"""GymCollector yields what TorchRL's collector yields, to the bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import EnvBase, ExplorationType
from torchrl.modules import ProbabilisticActor

from amber_trl.collectors import GymCollector
from amber_trl.collectors._actor import FrameActor
from amber_trl.envs import make_env
from amber_trl.modules import categorical_actor, gaussian_actor
from tests.collectors.problem import (
    DoubledReward,
    assert_same_batch,
    gaussian,
    integer,
    one_hot,
    single,
    squashed,
    state_dependent,
    vector,
)

SAME_STEP = AutoresetMode.SAME_STEP


def collect(
    cls: Callable[..., BaseCollector],
    make: Callable[[], EnvBase],
    actor: TensorDictModuleBase,
    frames: int,
    batches: int = 3,
    **kwargs: Any,
) -> list[TensorDictBase]:
    env = make()
    env.set_seed(7)
    torch.manual_seed(1)
    if cls is Collector:
        kwargs["auto_register_policy_transforms"] = False
    collector = cls(env, actor, frames_per_batch=frames, total_frames=frames * batches, **kwargs)
    found = list(collector)
    if isinstance(collector, GymCollector):
        called = not kwargs.get("capture", True)
        assert collector.capture_failure == ("capture=False" if called else None)
    collector.shutdown()
    return found


CASES: dict[str, tuple[Callable[[], EnvBase], Callable[[], TensorDictModuleBase], int, int]] = {
    "HalfCheetah 1": (lambda: vector("HalfCheetah-v5", 1), lambda: gaussian(17, 6), 40, 0),
    "HalfCheetah 3": (
        lambda: vector("HalfCheetah-v5", 3, max_episode_steps=30),
        lambda: state_dependent(17, 6),
        60,
        6,
    ),
    "HalfCheetah unbatched": (lambda: single("HalfCheetah-v5"), lambda: gaussian(17, 6), 30, 0),
    "Pendulum 2": (
        lambda: vector("Pendulum-v1", 2, max_episode_steps=25),
        lambda: gaussian(3, 1),
        60,
        6,
    ),
    "Pendulum squashed": (
        lambda: single("Pendulum-v1", max_episode_steps=25),
        lambda: squashed(3, 1),
        40,
        4,
    ),
    "InvertedPendulum 4": (
        lambda: vector("InvertedPendulum-v5", 4),
        lambda: gaussian(4, 1),
        80,
        10,
    ),
    "InvertedPendulum unbatched": (
        lambda: single("InvertedPendulum-v5"),
        lambda: state_dependent(4, 1),
        40,
        3,
    ),
    "BipedalWalker 2": (
        lambda: vector("BipedalWalker-v3", 2, max_episode_steps=40),
        lambda: gaussian(24, 4),
        60,
        2,
    ),
    "CartPole 3": (lambda: vector("CartPole-v1", 3), lambda: integer(4, 2), 60, 3),
    "CartPole one-hot": (
        lambda: vector("CartPole-v1", 3, integers=False),
        lambda: one_hot(4, 2),
        60,
        3,
    ),
    "CartPole unbatched": (lambda: single("CartPole-v1"), lambda: integer(4, 2), 50, 2),
    "CartPole unbatched one-hot": (
        lambda: single("CartPole-v1", integers=False),
        lambda: one_hot(4, 2),
        50,
        2,
    ),
    # Frames whose sizes are no multiples of 64 bytes, on which matrix products may depend.
    "Acrobot 3": (
        lambda: make_env("Acrobot-v1", 3, seed=0),
        lambda: categorical_actor(6, 3),
        300,
        0,
    ),
    "InvertedDoublePendulum 3, float64": (
        lambda: make_env("InvertedDoublePendulum-v5", 3, seed=0),
        lambda: gaussian_actor(9, 1, dtype=torch.float64),
        300,
        3,
    ),
    "make_env": (lambda: make_env("Hopper-v5", 2, seed=3), lambda: gaussian(11, 3), 80, 1),
    "SAME_STEP Pendulum": (  # All episodes end together: TorchRL then resets twice.
        lambda: vector("Pendulum-v1", 2, SAME_STEP, max_episode_steps=25),
        lambda: gaussian(3, 1),
        60,
        6,
    ),
    "SAME_STEP CartPole": (
        lambda: vector("CartPole-v1", 3, SAME_STEP),
        lambda: integer(4, 2),
        60,
        3,
    ),
    "SAME_STEP infos": (  # TorchRL records infos in this mode.
        lambda: vector("HalfCheetah-v5", 2, SAME_STEP, max_episode_steps=20),
        lambda: gaussian(17, 6),
        60,
        6,
    ),
    "own vector environment": (
        lambda: vector("CartPole-v1", 3, cls=DoubledReward),
        lambda: integer(4, 2),
        60,
        3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_batches_equal_those_of_torchrl(name: str) -> None:
    make, make_actor, frames, least_ends = CASES[name]
    actor = make_actor()
    actual = collect(GymCollector, make, actor, frames)
    expected = collect(Collector, make, actor, frames)
    assert len(actual) == len(expected) == 3
    assert sum(int(batch["next", "done"].sum()) for batch in expected) >= least_ends
    for one, other in zip(actual, expected, strict=True):
        assert_same_batch(one, other)


def test_deterministic_actions_equal_those_of_torchrl() -> None:
    actor = gaussian(3, 1)
    make, kwargs = lambda: vector("Pendulum-v1", 2), {"exploration_type": ExplorationType.MEAN}
    actual = collect(GymCollector, make, actor, 20, **kwargs)
    for one, other in zip(actual, collect(Collector, make, actor, 20, **kwargs), strict=True):
        assert_same_batch(one, other)
        assert torch.equal(one["action"], one["loc"])


def test_calling_the_actor_on_every_frame_changes_nothing() -> None:
    actor, make = gaussian(4, 1), lambda: vector("InvertedPendulum-v5", 3)
    called = collect(GymCollector, make, actor, 60, capture=False)
    for one, other in zip(called, collect(GymCollector, make, actor, 60), strict=True):
        assert_same_batch(one, other)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("action_size", [1, 2, 3, 7, 8, 9, 17, 33])
@pytest.mark.parametrize("make", [state_dependent, squashed])
def test_log_probabilities_are_the_actors_own(
    make: Callable[[int, int], ProbabilisticActor], num_envs: int, action_size: int
) -> None:
    """Also where they are evaluated for the batch at once, so vectorised differently."""
    actor = make(5, action_size)
    frames = FrameActor(actor, "action", torch.Size([num_envs]), capture=True, compile=False)
    rows = torch.randn(37, num_envs, 5)
    with torch.no_grad():
        torch.manual_seed(2)
        _, act = frames.begin([rows[0]])
        for row in rows[1:]:
            act([row])
        outputs = frames.finish()
        torch.manual_seed(2)
        for frame, row in enumerate(rows):
            for key, value in frames.call([row]).items():
                assert torch.equal(outputs[key][frame], value), key
    assert frames.failure is None


@pytest.mark.parametrize(
    ("env_id", "sizes", "num_envs"),
    [("HalfCheetah-v5", (17, 6), 2), ("InvertedPendulum-v5", (4, 1), 3)],
)
def test_recorded_actions_replay_to_recorded_frames(
    env_id: str, sizes: tuple[int, int], num_envs: int
) -> None:
    env = vector(env_id, num_envs, max_episode_steps=35)
    collector = GymCollector(env, gaussian(*sizes), frames_per_batch=60 * num_envs)
    collector.set_seed(11)
    batches = iter(collector)
    batch: TensorDictBase = torch.cat([next(batches), next(batches)], dim=-1)
    for lane, make_one in enumerate(env._env.env_fns):
        one = make_one()
        observation, _ = one.reset(seed=11 + lane)
        for frame in batch[lane]:
            assert np.array_equal(observation, frame["observation"].numpy())
            observation, reward, terminated, truncated, _ = one.step(frame["action"].numpy())
            after = frame["next"]
            assert np.array_equal(observation, after["observation"].numpy())
            assert after["reward"].item() == np.float32(reward)
            assert after["terminated"].item() == terminated
            assert after["truncated"].item() == truncated
            assert after["done"].item() == (terminated or truncated)
            if terminated or truncated:
                observation, _ = one.reset()
    assert batch["next", "done"].any()
