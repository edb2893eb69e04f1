"""Tasks that go wrong, registered on import in any process."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium


class _Faulty(gymnasium.Wrapper):
    """Calls ``_fault`` at its 300th step."""

    _steps = 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._steps == 300:
            reward = self._fault(reward)
        return observation, reward, terminated, truncated, info

    def _fault(self, reward: Any) -> Any:
        raise NotImplementedError


class _Broken(_Faulty):
    def _fault(self, reward: Any) -> Any:
        return math.nan


class _Huge(_Faulty):
    def _fault(self, reward: Any) -> Any:
        return 1e30


class _Deadly(_Faulty):
    """Kills its process once; the file that ``DEADLY`` names records it."""

    def _fault(self, reward: Any) -> Any:
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


gymnasium.register(
    "Flattering-v0", lambda **options: _Flattering(gymnasium.make("Pendulum-v1", **options))
)
gymnasium.register("Broken-v0", lambda **options: _Broken(gymnasium.make("Pendulum-v1", **options)))
gymnasium.register("Huge-v0", lambda **options: _Huge(gymnasium.make("Pendulum-v1", **options)))
gymnasium.register("Deadly-v0", lambda **options: _Deadly(gymnasium.make("Pendulum-v1", **options)))
