"""Records Box2D episodes, so that they can be replayed bit for bit."""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_PACKAGE = "gymnasium.envs.box2d."


def is_box2d(env: gym.Env[Any, Any]) -> bool:
    """Whether ``env`` is one of Gymnasium's Box2D tasks, or a subclass of one."""
    return any(base.__module__.startswith(_PACKAGE) for base in type(env.unwrapped).__mro__)


class EpisodeReplay(gym.Wrapper[Any, Any, Any, Any]):
    """Records the episodes of a Box2D task, whose world can be neither read nor set.

    Each episode starts in a new world, so that the generator's state before the reset and the actions
    determine every bit. Gymnasium reuses a walker's world, whose internal state (such as the order of
    contacts) changes the rounding of the next episode.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._begin: dict[str, Any] | None = None
        self._actions: list[np.ndarray[Any, Any]] = []
        self._observation: Any = None
        self._diverged = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in a new world."""
        generator = self.unwrapped.np_random.bit_generator.state
        self._begin = {"generator": generator, "seed": seed, "options": copy.deepcopy(options)}
        self._actions, self._diverged = [], False
        _renew_world(self.unwrapped)
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> Any:
        """Takes a step and records its action."""
        self._actions.append(np.array(action))  # a copy, since the caller may reuse the memory
        result = self.env.step(action)
        self._observation = result[0]
        return result

    @property
    def inexact(self) -> tuple[str, ...]:
        """Why the episode cannot be saved or was not restored exactly; empty if neither."""
        reasons, name = [], type(self.unwrapped).__name__
        if self._diverged:
            reasons.append(
                f"{name}'s episode, played again from its actions, ended differently, as on another "
                "machine"
            )
        layer = self.env
        while type(layer) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
            layer = layer.env
        if not type(layer).__module__.startswith(_PACKAGE):
            reasons.append(f"state that {type(layer).__name__} keeps between episodes is not saved")
        return tuple(reasons)

    def state_dict(self) -> dict[str, Any]:
        """The generator's state before the episode, its actions, and the resulting state."""
        env = self.unwrapped
        return {
            "begin": self._begin,
            "actions": np.array(self._actions),
            "observation": np.array(self._observation),
            "generator": env.np_random.bit_generator.state,
            "seed": env.np_random_seed,
            "spaces": [space._np_random for space in (env.action_space, env.observation_space)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replays the saved episode, of a task with the same id, up to where it was."""
        env, begin, generator = self.unwrapped, state["begin"], state["generator"]
        if begin is not None:
            env.np_random.bit_generator.state = begin["generator"]
            self.reset(seed=begin["seed"], options=begin["options"])
            for action in state["actions"]:
                self.step(action)
            self._diverged = not (
                np.array_equal(self._observation, state["observation"])
                and env.np_random.bit_generator.state == generator
            )
        env.np_random.bit_generator.state, env._np_random_seed = generator, state["seed"]
        env.action_space._np_random, env.observation_space._np_random = state["spaces"]


def _renew_world(env: Any) -> None:
    env._destroy()  # each of Gymnasium's three tasks has it; the old world must still exist
    env.world = type(env.world)(gravity=env.world.gravity)
