"""The state of simulators, from which another process can continue."""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
from torchrl.envs import EnvBase, GymWrapper

from amber_trl.envs._layers import LayerReader, LayerWriter, inwards
from amber_trl.envs._replay import EpisodeReplay

logger = logging.getLogger(__name__)


class SimulatorState:
    """Saves and restores the simulators of a TorchRL environment, so that they continue bit for bit.

    Load the state into an environment made in the same way, in this or another process. With the same
    actions, its next frames, including resets, are those of the saved environment.

    The state contains the attributes of each copy and of each of its Gymnasium wrappers: numbers, text,
    arrays, tensors, generators (also those of spaces), enumerations, running statistics, and lists,
    tuples, deques and dicts of these. It also contains all of MuJoCo's data, since some tasks read what
    the previous step left there. The world of a Box2D task cannot be read: environments of
    :func:`make_env` record each episode's actions, and loading replays the running episode.

    Functions, classes, modules and MuJoCo's models are configuration and are not saved. Other
    attributes, such as objects of your own classes, are not saved either, but :attr:`inexact` names
    them. It also names arrays that share memory with another array or a native library (such as views of
    MuJoCo's data), and simulators in other processes.
    A wrapper or environment with such state can define ``state_dict``, of plain values, and
    ``load_state_dict``, which are then used instead of its attributes; its own ``inexact``, if any, is
    reported too. State in a module or class is not seen. The caller must save the global generators of
    Python, NumPy and torch.

    The state suits ``torch.load(weights_only=True)`` and shares no memory with the simulators. A copy of
    a MuJoCo task takes about 0.2 MB, a copy of a Box2D task as much as its episode's actions. Reading
    draws from no generator. ``torchrl.collectors.Collector`` saves none of this.

    Args:
        env: a ``GymWrapper`` or ``GymEnv`` over one Gymnasium environment or a ``SyncVectorEnv``, such as
            :func:`make_env` returns. Any other environment is accepted, and named by :attr:`inexact`.

    Example:
        >>> import torch
        >>> from amber_trl.envs import SimulatorState, make_env
        >>> env, other = make_env("Pendulum-v1", 2, seed=0), make_env("Pendulum-v1", 2, seed=5)
        >>> _ = env.rollout(20)
        >>> SimulatorState(other).load_state_dict(SimulatorState(env).state_dict())
        >>> torch.equal(env.reset()["observation"], other.reset()["observation"])
        True
    """

    def __init__(self, env: EnvBase) -> None:
        self._groups, self._lost = _find(env)

    @property
    def inexact(self) -> tuple[str, ...]:
        """The parts of the state that are not saved, or that the last load did not restore."""
        return tuple(self._reasons(LayerReader(self._groups)))

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors, numbers, strings, lists and dicts."""
        found = LayerReader(self._groups)
        return {"groups": found.groups, "inexact": self._reasons(found)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the simulators from a :meth:`state_dict`.

        Raises:
            ValueError: the state has another number of copies, or other environments or wrappers; or this
                version of MuJoCo cannot read its data, in which case the simulators must be reset before
                use.
        """
        _check_same(self._groups, state["groups"])
        writer = LayerWriter()
        for group, saved_group in zip(self._groups, state["groups"], strict=True):
            for layer, saved in zip(group, saved_group, strict=True):
                writer.write(layer, saved)
        for reason in dict.fromkeys(writer.problems):
            logger.warning("a simulator was not restored exactly: %s", reason)
        self._lost = [*state["inexact"], *writer.problems]

    def _reasons(self, found: LayerReader) -> list[str]:
        return list(dict.fromkeys([*self._lost, *found.problems]))


def _find(env: EnvBase) -> tuple[list[list[Any]], list[str]]:
    """The vector environment, then each copy's wrappers and environment; and what is missing."""
    found = env._env if isinstance(env, GymWrapper) else env
    if isinstance(found, SyncVectorEnv):
        return [[found], *map(_layers, found.envs)], []
    if isinstance(found, gym.Env):
        return [[], _layers(found)], []
    name = type(found).__name__
    return [], [f"{name} is neither a Gymnasium environment in this process nor a SyncVectorEnv"]


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """The wrappers and the environment in them; a replay handles the layers inside it."""
    layers = list(inwards(env))
    replays = [index for index, layer in enumerate(layers) if isinstance(layer, EpisodeReplay)]
    return layers[: replays[0] + 1] if replays else layers


def _check_same(groups: list[list[Any]], saved: list[list[Any]]) -> None:
    ours = ["<".join(type(layer).__name__ for layer in group) for group in groups]
    theirs = ["<".join(layer["class"] for layer in group) for group in saved]
    if ours != theirs:
        raise ValueError(
            f"the state has {len(theirs) - 1} copies, {theirs[-1:]}, and the environment has "
            f"{len(ours) - 1}, {ours[-1:]}: make it with the saved env_id, num_envs, wrappers and "
            "max_episode_steps"
        )
