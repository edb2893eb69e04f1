"""GymCollector yields what TorchRL's collector yields, to the bit."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import EnvBase, ExplorationType, GymWrapper
from torchrl.modules import ProbabilisticActor

from amber_trl.collectors import GymCollector
from amber_trl.collectors._actor import FrameActor
from amber_trl.envs import make_env
from amber_trl.modules import categorical_actor, gaussian_actor
from tests.collectors.problem import (
    assert_same_batch,
    gaussian,
    integer,
    nested,
    one_hot,
    single,
    squashed,
    state_dependent,
    vector,
)


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
    "Pendulum 2, nested keys": (
        lambda: vector("Pendulum-v1", 2, max_episode_steps=25),
        lambda: nested(3, 1),
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
        lambda: gaussian_actor(9, 1).double(),
        300,
        3,
    ),
    "make_env": (lambda: make_env("Hopper-v5", 2, seed=3), lambda: gaussian(11, 3), 80, 1),
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


class Multiple(gym.Env[Any, Any]):
    """Takes several binary or several discrete actions at once, and shows those it took."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        over = bool((action > 0).all())
        return np.array([action[0], action[-1]], np.float32), float(action.sum()), over, False, {}


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize(
    "space", [gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([2, 3])], ids=str
)
def test_several_actions_at_once(space: gym.Space[Any], num_envs: int | None) -> None:
    def make() -> EnvBase:
        if num_envs is None:
            return GymWrapper(Multiple(space), categorical_action_encoding=True)
        makers = [lambda: Multiple(space)] * num_envs
        return GymWrapper(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED))

    spec = make().action_spec

    def act(observation: Tensor) -> Tensor:
        return (torch.rand(spec.shape) < 0.5 + 0 * observation[..., :1]).to(spec.dtype)

    actor = TensorDictModule(act, ["observation"], ["action"])
    actual = collect(GymCollector, make, actor, 20)
    for one, other in zip(actual, collect(Collector, make, actor, 20), strict=True):
        assert_same_batch(one, other)
    assert actual[0]["next", "done"].any()


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
    frames = FrameActor(
        actor, "observation", "action", torch.Size([num_envs]), capture=True, compile=False
    )
    rows = torch.randn(37, num_envs, 5)
    with torch.no_grad():
        torch.manual_seed(2)
        _, act = frames.begin(rows[0])
        for row in rows[1:]:
            act(row)
        outputs = frames.finish()
        torch.manual_seed(2)
        for frame, row in enumerate(rows):
            for key, value in frames.call(row).items():
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
    for index, make_one in enumerate(env._env.env_fns):
        one = make_one()
        observation, _ = one.reset(seed=11 + index)
        for frame in batch[index]:
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
