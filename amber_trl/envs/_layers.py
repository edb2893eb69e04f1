"""Converts the attributes of environments and their wrappers to plain data and back."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers.utils import RunningMeanStd

from amber_trl.envs._mujoco import decode_data, encode_data, is_mujoco
from amber_trl.envs._plain import Decoder, Encoder, NotPlainError

_CONFIGURATION = (type, ModuleType, partial, EnvSpec, logging.Logger, np.ufunc, type(np.clip))
_RENDERING = (
    "gymnasium.envs.mujoco.mujoco_rendering",
    "pygame.surface",
    "pygame.time",
    "pygame.font",
)
"""Modules of objects that only serve to render the simulation."""
_AS_MADE = ("metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
"""Attributes in which Gymnasium stores how a layer was made."""
_LEFT = {"kind": "left"}
"""Placeholder for a value that is not saved and is left unchanged on loading."""


class LayerReader:
    """Reads groups of layers: the vector environment, or a copy's wrappers and environment."""

    def __init__(self, groups: list[list[Any]]) -> None:
        self.problems: list[str] = []
        """What cannot be saved, and why."""
        self._encoder = Encoder()
        self._known = {id(layer) for group in groups for layer in chain(*map(inwards, group))}
        self.groups = [[self._layer(layer) for layer in group] for group in groups]
        """The state of each layer."""
        self.problems += self._encoder.shared_memory()

    def _layer(self, layer: Any) -> dict[str, Any]:
        name = type(layer).__name__
        if all(hasattr(type(layer), method) for method in ("state_dict", "load_state_dict")):
            self.problems += getattr(layer, "inexact", ())
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
            return {"kind": "mujoco", **encode_data(value)}
        return self._plain(value, path)

    def _plain(self, value: Any, path: str) -> Any:
        try:
            return self._encoder.encode(value, path)
        except NotPlainError as error:
            self.problems.append(str(error))
            return _LEFT

    def _is_left(self, value: Any) -> bool:
        """Whether it is configuration, only serves to render the simulation, or is read elsewhere."""
        if type(value) in (list, tuple, dict) and value:
            return all(map(self._is_left, value.values() if type(value) is dict else value))
        return (
            inspect.isroutine(value)
            or isinstance(value, _CONFIGURATION)
            or id(value) in self._known
            or getattr(type(value), "__module__", None) in _RENDERING
            or is_mujoco(value, "MjModel")
        )


class LayerWriter:
    """Writes saved attributes into layers of the same classes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What was not restored, and why."""
        self._decoder = Decoder()

    def write(self, layer: Any, saved: Mapping[str, Any]) -> None:
        """Sets a layer's attributes to the saved ones; attributes that were not saved are unchanged."""
        name = type(layer).__name__
        if "own" in saved:
            if saved["own"] != _LEFT:
                layer.load_state_dict(self._decoder.decode(saved["own"]))
            self.problems += getattr(layer, "inexact", ())
        else:
            attributes = vars(layer)
            for key in attributes.keys() - saved["attributes"].keys() - {*_AS_MADE}:
                del attributes[key]
            for key, plain in saved["attributes"].items():
                if plain != _LEFT:
                    current = attributes.get(key)
                    attributes[key] = self._attribute(plain, current, f"{name}.{key}")

    def _attribute(self, plain: Any, current: Any, path: str) -> Any:
        kind = plain["kind"] if isinstance(plain, Mapping) else "number"
        if kind not in ("enum", "space", "statistics", "mujoco"):
            return self._decoder.decode(plain, current)
        # Objects that a file cannot create are set in place.
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
                self.problems.append(f"{path} has a different MuJoCo model from the saved one")
        else:
            self.problems.append(f"{path} was {plain.get('name', kind)} and is {current!r:.80} now")
        return current


def inwards(env: Any) -> Iterator[Any]:
    """The wrappers, outermost first, then the environment."""
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _with_parts(space: Space[Any]) -> Iterator[Space[Any]]:
    """The space and, if it is a Dict or Tuple, its subspaces."""
    yield space
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        yield from _with_parts(part)
