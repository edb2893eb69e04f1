"""The state of simulators, to go on from in another process."""

from __future__ import annotations

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
    """Reads and sets the simulators below a TorchRL environment, so that they go on bit for bit.

    Load the state into an environment made in the same way, in this or another process. From the
    same actions its next frames, resets included, are those of the saved environment.

    The state holds the attributes of each copy and of each of its Gymnasium wrappers: numbers,
    strings, arrays, tensors, generators (those of spaces, too), enumerations, running statistics,
    and lists, tuples, deques and dicts of plain values. It holds all of MuJoCo's data, since some
    tasks read before a step what the step before left there. The world of a Box2D task cannot be
    read. Environments of :func:`make_env` start each episode in a new world and record its actions,
    and loading plays the running episode again.

    Functions, classes and modules are configuration and are not saved, whatever they refer to. Any
    other attribute that is not plain, such as an object of a class of your own, is not saved
    either, and :attr:`inexact` names it. The same goes for an array that shows memory of another,
    and for simulators in other processes. A wrapper or environment with such state can define
    ``state_dict``, of plain values, and ``load_state_dict``; these are then used instead of its
    attributes. If it has an ``inexact`` of its own, that is named too. State in a module or class
    is not seen. The global generators of Python, NumPy and torch are the caller's to save.

    The state is made of tensors, numbers, strings, lists and dicts, for
    ``torch.load(weights_only=True)``. It shares no memory with the simulators. A copy of a MuJoCo
    task takes about 0.2 MB, a copy of a Box2D task as much as its episode's actions. Reading draws
    from no generator. ``torchrl.collectors.Collector`` saves none of this.

    Args:
        env: a ``GymWrapper`` or ``GymEnv`` over one Gymnasium environment or a ``SyncVectorEnv``,
            such as :func:`make_env` gives. Any other is accepted, and named by :attr:`inexact`.

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
        self._groups, self._unread = _find(env)
        self._lost: list[str] = []
        self._models = LayerReader(self._groups).models

    @property
    def inexact(self) -> tuple[str, ...]:
        """What of the state is not saved, or was not restored by the last load; empty if all is."""
        return tuple(self._reasons(LayerReader(self._groups)))

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors, numbers, strings, lists and dicts."""
        found = LayerReader(self._groups)
        return {"groups": found.groups, "inexact": self._reasons(found)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the simulators where the saved ones were.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: the state is of another number of copies, or of other environments or
                wrappers; or this version of MuJoCo cannot read its data, in which case the
                simulators must be reset before they are used.
        """
        _check_same(self._groups, state["groups"])
        writer = LayerWriter()
        for group, saved_group in zip(self._groups, state["groups"], strict=True):
            for layer, saved in zip(group, saved_group, strict=True):
                writer.write(layer, saved)
        for reason in dict.fromkeys(writer.problems):
            logger.warning("a simulator was not put back exactly: %s", reason)
        self._lost = [*state["inexact"], *writer.problems]

    def _reasons(self, found: LayerReader) -> list[str]:
        changed = [
            f"the MuJoCo model of copy {number} has changed, and only its data are saved"
            for number, (old, new) in enumerate(zip(self._models, found.models, strict=False))
            if old != new
        ]
        return list(dict.fromkeys([*self._lost, *self._unread, *found.problems, *changed]))


def _find(env: EnvBase) -> tuple[list[list[Any]], list[str]]:
    """The vector environment, then each copy's wrappers and environment; and what is not there."""
    found = env._env if isinstance(env, GymWrapper) else env
    if isinstance(found, SyncVectorEnv):
        return [[found], *map(_layers, found.envs)], []
    if isinstance(found, gym.Env):
        return [[], _layers(found)], []
    name = type(found).__name__
    return [], [f"{name} is neither a Gymnasium environment in this process nor a SyncVectorEnv"]


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """The wrappers and the environment in them; those inside a replay are its own business."""
    layers: list[gym.Env[Any, Any]] = []
    for layer in inwards(env):
        layers.append(layer)
        if isinstance(layer, EpisodeReplay):
            break
    return layers


def _check_same(groups: list[list[Any]], saved: list[list[Any]]) -> None:
    found_copies, saved_copies = len(groups) - 1, len(saved) - 1
    if found_copies != saved_copies:
        raise ValueError(
            f"the state is of {saved_copies} copies, and the environment has {found_copies}: make "
            f"it with num_envs={saved_copies}"
        )
    for group, saved_group in zip(groups, saved, strict=True):
        ours = "<".join(type(layer).__name__ for layer in group)
        theirs = "<".join(layer["class"] for layer in saved_group)
        if ours != theirs:
            raise ValueError(
                f"the state is of {theirs}, and the environment is {ours}: make it with the saved "
                "env_id, wrappers and max_episode_steps"
            )
