"""A task of Dict observations and of rewards of any size, registered when imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

_PLANE = Box(-np.inf, np.inf, (2,), np.float32)


class _Target(gymnasium.Env[Any, Any]):
    """Move a point to a goal."""

    observation_space = Dict({"position": _PLANE, "goal": _PLANE})
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.position = self.position + np.float32(0.1) * action
        reward = -self.scale * float(np.linalg.norm(self.position - self.goal))
        return self._observation(), reward, False, False, {}

    def _observation(self) -> dict[str, Any]:
        return {"position": self.position.copy(), "goal": self.goal.copy()}


def shifted(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A wrapper that takes an argument, which a function passes."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward - 1.0)


gymnasium.register("Target-v0", _Target, max_episode_steps=50)
