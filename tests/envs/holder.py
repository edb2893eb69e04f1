"""An environment with attributes that a test can set, and passes on to another one."""

import functools
import io
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torchrl.envs import GymWrapper

from amber_trl.envs import SimulatorState, make_env

ENV_ID = "amber_trl_test/Holder-v0"


class Holder(gym.Env[Any, Any]):
    """An environment of noise."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action: Any) -> Any:
        return self.np_random.normal(size=2), 0.0, False, False, {}


def holders(num_envs: int = 1, kind: type[Holder] = Holder) -> tuple[GymWrapper, list[Any]]:
    """The copies, as a TorchRL environment and individually."""
    gym.register(ENV_ID, kind)
    try:
        env = make_env(ENV_ID, num_envs, seed=0)
    finally:
        del gym.registry[ENV_ID]
    return env, [copy.unwrapped for copy in env._env.envs]


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    """A state after a round trip through a checkpoint."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def pass_on(env: GymWrapper, other: GymWrapper) -> SimulatorState:
    """Loads the state of one environment into the other."""
    loaded = SimulatorState(other)
    loaded.load_state_dict(through_file(SimulatorState(env).state_dict()))
    return loaded


def moved(value: Any, fresh: Any = None) -> Any:
    """An attribute read from one environment and set in another, which has ``fresh``."""
    (env, (holder,)), (other, (target,)) = _pair()
    holder.value, target.value = value, fresh
    assert pass_on(env, other).inexact == ()
    return target.value


@functools.cache
def _pair() -> list[tuple[GymWrapper, list[Any]]]:
    return [holders(), holders()]
