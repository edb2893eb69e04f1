"""Box2D's episodes, recorded so that they can be played again to the same bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from amber_trl.envs import _codecs as codecs
from amber_trl.envs._reader import LEFT, Reader
from amber_trl.envs._writer import Writer


def is_box2d(env: gym.Env[Any, Any]) -> bool:
    """Whether it is one of Gymnasium's Box2D tasks, or made from one."""
    bases = type(env.unwrapped).__mro__
    return any(base.__module__.startswith("gymnasium.envs.box2d.") for base in bases)


def _is_replayable(env: gym.Env[Any, Any]) -> bool:
    """Whether nothing below outlives an episode: one of Gymnasium's tasks, as it makes them."""
    while isinstance(env, gym.Wrapper):
        if type(env) not in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
            return False
        env = env.env
    return type(env).__module__.startswith("gymnasium.envs.box2d.")


class EpisodeReplay(gym.Wrapper[Any, Any, Any, Any]):
    """Records an episode of a Box2D task, whose world can be neither read nor set.

    Each episode starts in a new world: in Gymnasium a walker's world lives on from one to the
    next, and what it keeps (such as the order of its contacts) changes the next one's rounding.
    From the generator's state before the reset, the actions since then lead to the same bits.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._begin: dict[str, Any] | None = None
        self._diverged: tuple[str, ...] = ()
        self._actions: list[Any] = []
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in a new world."""
        self._begin = {
            "generator": codecs.generator_to_plain(self.unwrapped.np_random),
            "seed": seed,
            "options": copy.deepcopy(options),
        }
        self._actions = []
        self._diverged = ()
        _renew_world(self.unwrapped)
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> Any:
        """Takes a step and records its action."""
        # copy.copy would do, and take twice as long.
        self._actions.append(action.copy() if type(action) is np.ndarray else copy.copy(action))
        result = self.env.step(action)
        self._observation = result[0]
        return result

    @property
    def inexact(self) -> tuple[str, ...]:
        """Why the episode is not the one that was saved, or cannot be saved; empty if it is."""
        return (*self._diverged, *self._outliving(), *self._read_begin()[1])

    def state_dict(self) -> dict[str, Any]:
        """What the episode began from, its actions, and where they led, as a check."""
        begin, _ = self._read_begin()
        return {"begin": begin, "actions": _actions_to_plain(self._actions), "end": self._end()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Plays the saved episode again, up to where it was.

        Args:
            state: what :meth:`state_dict` returned, for a task of the same id.
        """
        begin, base = state["begin"], self.unwrapped
        if begin is not None:
            base.np_random = codecs.plain_to_generator(begin["generator"], base.np_random)
            self.reset(seed=begin["seed"], options=Writer().write(begin["options"], None, ""))
            for action in _plain_to_actions(state["actions"]):
                self.step(action)
            self._check_end(state["end"])
        base.np_random = codecs.plain_to_generator(state["end"]["generator"], base.np_random)
        base._np_random_seed = state["end"]["seed"]
        for saved, space in zip(state["end"]["spaces"], self._spaces(), strict=True):
            codecs.plain_to_space(saved, space)

    def _read_begin(self) -> tuple[dict[str, Any] | None, list[str]]:
        if self._begin is None:
            return None, []
        reader = Reader()
        options = reader.read(self._begin["options"], "the options of the last reset")
        begin = None if options is LEFT else {**self._begin, "options": options}
        return begin, reader.problems

    def _outliving(self) -> tuple[str, ...]:
        if _is_replayable(self.env):
            return ()
        layers = [type(self.unwrapped).__name__]
        env = self.env
        while isinstance(env, gym.Wrapper):
            layers.insert(-1, type(env).__name__)
            env = env.env
        return (f"what of {'<'.join(layers)} outlives an episode is not read, only replayed",)

    def _check_end(self, saved: Mapping[str, Any]) -> None:
        found = self._end()
        names = ("generator", "observation", "numbers")
        if all(_equal(found[name], saved.get(name, found[name])) for name in names):
            return
        self._diverged = (
            f"{type(self.unwrapped).__name__}'s episode, played again from its "
            f"{len(self._actions)} actions, ended elsewhere, as on another machine",
        )

    def _end(self) -> dict[str, Any]:
        return {
            "generator": codecs.generator_to_plain(self.unwrapped.np_random),
            "seed": self.unwrapped.np_random_seed,
            "observation": codecs.array_to_plain(np.asarray(self._observation)),
            "numbers": {
                name: value
                for name, value in vars(self.unwrapped).items()
                if type(value) in (bool, int, float, str) and name != "_np_random_seed"
            },
            "spaces": [codecs.space_to_plain(space) for space in self._spaces()],
        }

    def _spaces(self) -> tuple[Any, Any]:
        return self.unwrapped.action_space, self.unwrapped.observation_space


def _actions_to_plain(actions: list[Any]) -> dict[str, Any]:
    """One array for all where they are alike: a file with a tensor per action would be slow."""
    kinds = {(type(x), getattr(x, "dtype", None), np.shape(x)) for x in actions}
    if len(kinds) == 1 and isinstance(actions[0], np.ndarray | np.generic):
        scalar = isinstance(actions[0], np.generic)
        return {"scalar": scalar, "array": codecs.array_to_plain(np.stack(actions))}
    return {"list": Reader().read(actions, "actions")}


def _plain_to_actions(plain: Mapping[str, Any]) -> list[Any]:
    if "list" in plain:
        actions: list[Any] = Writer().write(plain["list"], None, "actions")
        return actions
    rows = codecs.plain_to_array(plain["array"])
    return list(rows) if plain["scalar"] else [rows[i, ...].copy() for i in range(len(rows))]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def _renew_world(env: Any) -> None:
    env._destroy()  # of Gymnasium's three tasks, each; the old world must still be there
    env.world = type(env.world)(gravity=env.world.gravity)
