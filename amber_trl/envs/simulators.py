"""The state of simulators, to go on from in another process."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import PassiveEnvChecker
from gymnasium.wrappers.utils import RunningMeanStd
from torchrl.envs import EnvBase, GymWrapper

from amber_trl.envs._mujoco import decode_data, encode_data, is_mujoco
from amber_trl.envs._plain import Decoder, Encoder, NotPlainError
from amber_trl.envs._replay import EpisodeReplay

logger = logging.getLogger(__name__)

_CONFIGURATION = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    np.ufunc,
    type(np.clip),  # NumPy's own functions
    EnvSpec,
    logging.Logger,
)
_SHOWING = (
    "gymnasium.envs.mujoco.mujoco_rendering.MujocoRenderer",
    "pygame.surface.Surface",
    "pygame.time.Clock",
    "pygame.font.Font",
)
_AS_MADE = ("metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
"""Attributes by which Gymnasium keeps how a layer was made."""
_LEFT = {"kind": "left"}
"""In place of a value that is not saved, and stays as it is on loading."""


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
        self._models = self._read().models

    @property
    def inexact(self) -> tuple[str, ...]:
        """What of the state is not saved, or was not restored by the last load; empty if all is."""
        return tuple(self._reasons(self._read()))

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors, numbers, strings, lists and dicts."""
        found = self._read()
        return {"layers": found.layers, "inexact": self._reasons(found)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the simulators where the saved ones were.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: the state is of another number of copies, or of other environments or
                wrappers; or this version of MuJoCo cannot read its data, in which case the
                simulators must be reset before they are used.
        """
        saved_names = [[layer["class"] for layer in group] for group in state["layers"]]
        _check_same(saved_names, _class_names(self._groups))
        writer = _Writer()
        for group, saved_group in zip(self._groups, state["layers"], strict=True):
            for layer, saved in zip(group, saved_group, strict=True):
                writer.write(layer, saved)
        for reason in dict.fromkeys(writer.problems):
            logger.warning("a simulator was not put back exactly: %s", reason)
        self._lost = [*state["inexact"], *writer.problems]

    def _read(self) -> _Reader:
        return _Reader(self._groups)

    def _reasons(self, found: _Reader) -> list[str]:
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
    for layer in _inwards(env):
        layers.append(layer)
        if isinstance(layer, EpisodeReplay):
            break
    return layers


def _inwards(env: Any) -> Iterator[Any]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _saves_itself(layer: Any) -> bool:
    return hasattr(type(layer), "state_dict") and hasattr(type(layer), "load_state_dict")


def _own_reasons(layer: Any) -> tuple[str, ...]:
    return tuple(getattr(layer, "inexact", ()))


def _with_parts(space: Space[Any]) -> Iterator[Space[Any]]:
    """The space and, if it is a Dict or Tuple, those that it is made of."""
    yield space
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        yield from _with_parts(part)


def _class_names(groups: list[list[Any]]) -> list[list[str]]:
    return [[type(layer).__name__ for layer in group] for group in groups]


def _check_same(saved: list[list[str]], found: list[list[str]]) -> None:
    if len(saved) != len(found):
        raise ValueError(
            f"the state is of {len(saved) - 1} copies, and the environment has {len(found) - 1}: "
            f"make it with num_envs={len(saved) - 1}"
        )
    for theirs, ours in zip(saved, found, strict=True):
        if theirs != ours:
            raise ValueError(
                f"the state is of {'<'.join(theirs)}, and the environment is {'<'.join(ours)}: "
                "make it with the saved env_id, wrappers and max_episode_steps"
            )


class _Reader:
    """The state of groups of layers, read at once."""

    def __init__(self, groups: list[list[Any]]) -> None:
        self.problems: list[str] = []
        self.models: list[str] = []
        """Digests of MuJoCo's models, in the order of reading."""
        self._encoder = Encoder()
        self._known = {id(layer) for group in groups for layer in chain(*map(_inwards, group))}
        self.layers = [[self._layer(layer) for layer in group] for group in groups]
        self.problems += self._encoder.shared_memory()

    def _layer(self, layer: Any) -> dict[str, Any]:
        name = type(layer).__name__
        if type(layer) is PassiveEnvChecker:  # it looks at the first frames only, and warns
            return {"class": name}
        if _saves_itself(layer):
            self.problems += _own_reasons(layer)
            own = self._plain(layer.state_dict(), f"{name}.state_dict()")
            return {"class": name, "own": own}
        attributes = {
            key: self._attribute(value, f"{name}.{key}")
            for key, value in vars(layer).items()
            if key not in _AS_MADE
        }
        return {"class": name, "attributes": attributes}

    def _attribute(self, value: Any, path: str) -> Any:
        if self._is_left(value):
            return _LEFT
        if isinstance(value, Enum):
            return {"kind": "enum", "name": value.name}
        if isinstance(value, Space):
            generators = [part._np_random for part in _with_parts(value)]
            return {"kind": "space", "generators": self._plain(generators, path)}
        if type(value) is RunningMeanStd:
            return {"kind": "statistics", "attributes": self._plain(vars(value), path)}
        if is_mujoco(value, "MjData"):
            data = encode_data(value)
            self.models.append(data["model"])
            return {"kind": "mujoco", **data}
        return self._plain(value, path)

    def _plain(self, value: Any, path: str) -> Any:
        try:
            return self._encoder.encode(value, path)
        except NotPlainError as error:
            self.problems.append(str(error))
            return _LEFT

    def _is_left(self, value: Any) -> bool:
        """Whether it is configuration, for showing only, or read elsewhere."""
        if type(value) in (list, tuple, dict) and value:
            return all(map(self._is_left, value.values() if type(value) is dict else value))
        return (
            isinstance(value, _CONFIGURATION)
            or id(value) in self._known
            or f"{getattr(type(value), '__module__', None)}.{type(value).__name__}" in _SHOWING
            or is_mujoco(value, "MjModel")
        )


class _Writer:
    """Writes what was read into layers of the same classes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._decoder = Decoder()

    def write(self, layer: Any, saved: Mapping[str, Any]) -> None:
        """Makes a layer's attributes those of the saved one; what was not saved stays."""
        name = type(layer).__name__
        if "own" in saved:
            if not _was_left(saved["own"]):
                layer.load_state_dict(self._decoder.decode(saved["own"]))
            self.problems += _own_reasons(layer)
        if "attributes" in saved:
            attributes = vars(layer)
            for key in attributes.keys() - saved["attributes"].keys() - {*_AS_MADE}:
                del attributes[key]
            for key, plain in saved["attributes"].items():
                if not _was_left(plain):
                    current = attributes.get(key)
                    attributes[key] = self._attribute(plain, current, f"{name}.{key}")

    def _attribute(self, plain: Any, current: Any, path: str) -> Any:
        kind = plain["kind"] if isinstance(plain, Mapping) else "number"
        if kind not in ("enum", "space", "statistics", "mujoco"):
            return self._decoder.decode(plain, current)
        # What cannot be made from a file is set in what is there.
        if kind == "enum" and plain["name"] in getattr(type(current), "__members__", ()):
            return type(current)[plain["name"]]
        if kind == "space" and isinstance(current, Space):
            generators = self._decoder.decode(plain["generators"])
            for part, generator in zip(_with_parts(current), generators, strict=True):
                part._np_random = generator
        elif kind == "statistics" and type(current) is RunningMeanStd:
            vars(current).update(self._decoder.decode(plain["attributes"]))
        elif kind == "mujoco" and is_mujoco(current, "MjData"):
            if not decode_data(plain, current):
                self.problems.append(f"{path} has another MuJoCo model than the saved one")
        else:
            self.problems.append(f"{path} was {plain.get('name', kind)} and is {current!r:.80} now")
        return current


def _was_left(plain: Any) -> bool:
    return isinstance(plain, Mapping) and plain["kind"] == "left"
