"""GymCollector yields what TorchRL's collector yields, bit for bit."""

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
        assert collector.capture_failure is None
    collector.shutdown()
    return found


CASES: list[tuple[Any, ...]] = [
    # Task, environments (None: unbatched), steps per episode, actor and its sizes, frames, ends.
    ("HalfCheetah-v5", 1, None, gaussian, (17, 6), 40, 0),
    ("HalfCheetah-v5", 3, 30, state_dependent, (17, 6), 60, 6),
    ("HalfCheetah-v5", None, None, gaussian, (17, 6), 30, 0),
    ("Pendulum-v1", 2, 25, gaussian, (3, 1), 60, 6),
    ("Pendulum-v1", 2, 25, nested, (3, 1), 60, 6),
    ("Pendulum-v1", None, 25, squashed, (3, 1), 40, 4),
    ("InvertedPendulum-v5", 4, None, gaussian, (4, 1), 80, 10),
    ("InvertedPendulum-v5", None, None, state_dependent, (4, 1), 40, 3),
    ("BipedalWalker-v3", 2, 40, gaussian, (24, 4), 60, 2),
    ("CartPole-v1", 3, None, integer, (4, 2), 60, 3),
    ("CartPole-v1", 3, None, one_hot, (4, 2), 60, 3),
    ("CartPole-v1", None, None, integer, (4, 2), 50, 2),
    ("CartPole-v1", None, None, one_hot, (4, 2), 50, 2),
]


@pytest.mark.parametrize(("env_id", "num_envs", "steps", "make", "sizes", "frames", "ends"), CASES)
def test_batches_equal_those_of_torchrl(
    env_id: str,
    num_envs: int | None,
    steps: int | None,
    make: Callable[[int, int], ProbabilisticActor],
    sizes: tuple[int, int],
    frames: int,
    ends: int,
) -> None:
    kwargs: dict[str, Any] = {"integers": make is not one_hot, "max_episode_steps": steps}

    def make_env() -> EnvBase:
        return single(env_id, **kwargs) if num_envs is None else vector(env_id, num_envs, **kwargs)

    assert_equals_torchrl(make_env, make(*sizes), frames, ends)


@pytest.mark.parametrize(
    ("env_id", "num_envs", "actor", "frames", "ends"),
    [
        ("Hopper-v5", 2, gaussian(11, 3), 80, 1),
        # Frame sizes that are not multiples of 64 bytes, which can affect matrix products.
        ("Acrobot-v1", 3, categorical_actor(6, 3), 300, 0),
        ("InvertedDoublePendulum-v5", 3, gaussian_actor(9, 1).double(), 300, 3),
    ],
)
def test_batches_of_make_env_equal_those_of_torchrl(
    env_id: str, num_envs: int, actor: ProbabilisticActor, frames: int, ends: int
) -> None:
    assert_equals_torchrl(lambda: make_env(env_id, num_envs, seed=3), actor, frames, ends)


def assert_equals_torchrl(
    make: Callable[[], EnvBase], actor: TensorDictModuleBase, frames: int, least_ends: int
) -> None:
    actual, expected = (collect(cls, make, actor, frames) for cls in (GymCollector, Collector))
    assert len(actual) == len(expected) == 3
    assert sum(int(batch["next", "done"].sum()) for batch in expected) >= least_ends
    for one, other in zip(actual, expected, strict=True):
        assert_same_batch(one, other)


class Multiple(gym.Env[Any, Any]):
    """Takes several binary or several discrete actions at once, and returns them as the observation."""

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
    assert_equals_torchrl(make, actor, 20, 1)


def test_deterministic_actions_equal_those_of_torchrl() -> None:
    actor = gaussian(3, 1)
    make, kwargs = lambda: vector("Pendulum-v1", 2), {"exploration_type": ExplorationType.MEAN}
    actual = collect(GymCollector, make, actor, 20, **kwargs)
    for one, other in zip(actual, collect(Collector, make, actor, 20, **kwargs), strict=True):
        assert_same_batch(one, other)
        assert torch.equal(one["action"], one["loc"])


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("action_size", [1, 2, 3, 7, 8, 9, 17, 33])
@pytest.mark.parametrize("make", [state_dependent, squashed])
def test_log_probabilities_are_the_actors_own(
    make: Callable[[int, int], ProbabilisticActor], num_envs: int, action_size: int
) -> None:
    """Even if they are evaluated for the whole batch, and thus vectorised differently."""
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
