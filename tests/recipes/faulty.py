"""Tasks that go wrong, registered on import in any process."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium


class _Faulty(gymnasium.Wrapper):
    """Calls ``fault`` with the reward of its 300th step."""

    def __init__(self, env: Any, fault: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self._fault, self._steps = fault, 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._steps == 300:
            reward = self._fault(reward)
        return observation, reward, terminated, truncated, info


def _deadly(reward: Any) -> Any:
    """Kills its process once; the file that ``DEADLY`` names records it."""
    killed = Path(os.environ["DEADLY"])
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return reward


class _Flattering(gymnasium.Wrapper):
    """Its first episode is short and has the highest return; later returns increase."""

    _ended = 0
    _steps = 0

    def step(self, action: Any) -> Any:
        observation, *_, info = self.env.step(action)
        self._steps += 1
        ends = self._steps == (10 if self._ended else 2)
        reward = (float(self._ended) or 100.0) * ends
        if ends:
            self._ended, self._steps = self._ended + 1, 0
        return observation, reward, ends, False, info


def _register(env_id: str, wrap: Callable[[Any], Any]) -> None:
    gymnasium.register(env_id, lambda **options: wrap(gymnasium.make("Pendulum-v1", **options)))


_register("Flattering-v0", _Flattering)
_register("Broken-v0", lambda env: _Faulty(env, lambda reward: math.nan))
_register("Huge-v0", lambda env: _Faulty(env, lambda reward: 1e30))
_register("Deadly-v0", lambda env: _Faulty(env, _deadly))
