"""The attributes of Python objects as plain data."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from amber_trl.envs import _codecs as codecs
from amber_trl.envs._functions import CODE, Function

LEFT = object()
"""In place of a value that is left as it is: on reading not saved, on writing not set."""

_NUMBERS = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, deque, dict, OrderedDict)
_DEPTH = 64  # of what is in one another: deeper ones could not be pickled, either
_SHOWING = ("Surface", "Clock", "Font", "Window")  # Pygame's, without state of a task


class _Bare:
    """An instance without slots or data in C: all it holds is its ``__dict__``."""


def has_only_attributes(value: object) -> bool:
    """Whether an object's ``__dict__`` is all there is of it: no slots, no data in C."""
    return hasattr(value, "__dict__") and type(value).__basicsize__ == _Bare.__basicsize__


def class_name(value: object) -> str:
    """Module and name of a value's class."""
    return f"{_module(value)}.{type(value).__qualname__}"


def _module(value: object) -> str:
    return str(getattr(type(value), "__module__", "unknown"))  # SWIG's classes have none


class Reader:
    """Reads attributes, and notes what cannot be read.

    Numbers, strings, enumerations, arrays, tensors, generators, spaces, MuJoCo's data, lists,
    tuples, deques and dicts of such, and objects that hold nothing but attributes. What is shared
    is saved once. Functions and classes are saved by name, with the arrays that they hold. What
    is nested more than 64 deep, or raises an error, is not read.

    Args:
        known: objects that are read by themselves; references to them are left as they are.
        anew: whether to read only what can be made anew, with no object there to write into.
    """

    def __init__(self, known: Iterable[object] = (), *, anew: bool = False) -> None:
        self.problems: list[str] = []
        """What cannot be read, and why."""
        self.models: list[str] = []
        """Digests of MuJoCo's models, in the order of reading."""
        self._known = {id(one) for one in known}
        self._anew = anew
        self._depth = 0
        # Holds the values, so that no id is reused; the number is None if the value was left.
        self._seen: dict[int, tuple[int | None, Any]] = {}
        self._kept: dict[int, Any] = {}  # what is put back in place, so that others may hold it
        self._arrays: list[tuple[str, codecs.Array]] = []
        self._held: list[tuple[str, str, Any]] = []  # by functions: path, relation, object
        self._held_arrays: list[tuple[str, codecs.Array]] = []

    def attributes(self, owner: object, path: str, skip: Iterable[str] = ()) -> dict[str, Any]:
        """The attributes of an object; ``left`` names those that are not saved."""
        saved = {
            name: LEFT if name in skip else self.read(value, f"{path}.{name}")
            for name, value in list(vars(owner).items())
        }
        return {
            "class": class_name(owner),
            "attributes": {name: value for name, value in saved.items() if value is not LEFT},
            "left": [name for name, value in saved.items() if value is LEFT],
        }

    def read(self, value: Any, path: str, *, inside: bool = False) -> Any:
        """A value as plain data, or ``LEFT``.

        Args:
            value: anything.
            path: its name in messages.
            inside: whether it is an element of a container, where a new object could not be made.
        """
        if type(value) in _NUMBERS:
            return value
        if self._depth >= _DEPTH:
            return self._problem(f"{path[:80]}... is nested more than {_DEPTH} deep")
        self._depth += 1
        try:
            return self._read(value, path, inside)
        except Exception as error:  # of whatever kind: an environment may hold anything
            return self._problem(f"{path} cannot be read: {type(error).__name__}: {error}")
        finally:
            self._depth -= 1

    def _read(self, value: Any, path: str, inside: bool) -> Any:
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return {"kind": "scalar", **codecs.array_to_plain(value)}
        if self._anew and not _can_be_made(value):
            return self._problem(f"{path} is a {class_name(value)}, which cannot be saved")
        if isinstance(value, Enum):
            return {"kind": "enum", "name": value.name}
        if isinstance(value, Space):
            self._kept[id(value)] = value
            return {"kind": "space", **codecs.space_to_plain(value)}
        if isinstance(value, CODE):
            return self._code(value, path)
        if id(value) in self._known or _is_left(value):
            return LEFT
        if id(value) in self._seen:
            earlier = self._seen[id(value)][0]
            return LEFT if earlier is None else {"kind": "same", "number": earlier}
        number = len(self._seen)
        self._seen[id(value)] = number, value
        state: Any = LEFT
        try:
            state = self._shared(value, path, inside)
        finally:
            if state is LEFT:
                self._seen[id(value)] = None, value
        if state is not LEFT and state["kind"] in ("generator", "mujoco", "object"):
            self._kept[id(value)] = value
        return state if state is LEFT else {"number": number, **state}

    def _shared(self, value: Any, path: str, inside: bool) -> Any:
        if codecs.is_readable_array(value):
            self._arrays.append((path, value))
            return {"kind": "array", **codecs.array_to_plain(value)}
        if type(value) is torch.Tensor:
            if value.requires_grad:
                return self._problem(f"{path} requires gradients, and their graph is not read")
            self._arrays.append((path, codecs.memory_of(value)))
            return {"kind": "tensor", "value": value.detach().clone()}
        if codecs.is_generator(value):
            return {"kind": "generator", **codecs.generator_to_plain(value)}
        if type(value) in _CONTAINERS:
            return self._container(value, path)
        if not inside:
            if codecs.is_mujoco(value, "MjData"):
                state = codecs.mujoco_to_plain(value)
                self.models.append(state["model"])
                return {"kind": "mujoco", **state}
            if has_only_attributes(value):
                return {"kind": "object", **self.attributes(value, path)}
        where = " inside a container" if inside else ""
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            where = " of objects"
        return self._problem(f"{path} is a {class_name(value)}{where}, which cannot be read")

    def _container(self, value: Any, path: str) -> Any:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        items: list[Any] = []
        known_problems = len(self.problems)
        for key in keys:
            item = self.read(value[key], f"{path}[{key!r}]", inside=True)
            items.append(item)
        left = [item is LEFT for item in items]
        if any(left):  # one alone could not be left; those that only show something are no loss
            if len(self.problems) > known_problems or all(_is_left(value[key]) for key in keys):
                return LEFT
            item = class_name(value[keys[left.index(True)]])
            return self._problem(f"{path} is a {class_name(value)} that holds a {item}")
        state: dict[str, Any] = {"kind": type(value).__name__, "items": items}
        if isinstance(value, dict):
            if any(type(key) not in _NUMBERS for key in keys):
                return self._problem(f"{path} has keys that are neither numbers nor strings")
            state["keys"] = keys
        if isinstance(value, deque):
            state["maxlen"] = value.maxlen
        return state

    def _code(self, value: Any, path: str) -> Any:
        code = Function(value)
        for problem in code.problems:
            self._problem(f"{path} is {problem}")
        self._held += [(path, relation, held) for relation, held in code.objects]
        self._held_arrays += [(path, array) for array in code.arrays]
        arrays = [codecs.array_to_plain(array) for array in code.arrays]
        return {"kind": "code", "name": code.name, "digest": code.digest, "arrays": arrays}

    def _problem(self, text: str) -> Any:
        self.problems.append(text)
        return LEFT

    def check_sharing(self) -> None:
        """Notes what is held, or whose memory is shared, by what is not put back in place."""
        for path, relation, held in self._held:
            if isinstance(held, Space) and not codecs.has_generator(held):
                continue
            if id(held) not in self._known and id(held) not in self._kept:
                self._problem(f"{path} is {relation} a {class_name(held)}, which was not read")
        for number, (path, array) in enumerate(self._arrays):
            if array.base is not None:
                self._check_view(path, array, self._arrays[:number] + self._arrays[number + 1 :])
        for path, array in self._held_arrays:
            self._check_view(path, array, self._arrays)

    def _check_view(
        self, path: str, array: codecs.Array, others: list[tuple[str, codecs.Array]]
    ) -> None:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if array.flags.writeable and not isinstance(owner.base, torch.Tensor | None):
            self._problem(f"{path} shows memory of a {class_name(owner.base)}")
        for other_path, other in others:
            if np.shares_memory(array, other):
                self._problem(f"{path} shows the memory of {other_path}")


def _is_left(value: Any) -> bool:
    return (
        isinstance(value, EnvSpec | logging.Logger)
        or codecs.is_mujoco(value, "MjModel")
        or _module(value) == "gymnasium.envs.mujoco.mujoco_rendering"
        or (_module(value).split(".")[0] == "pygame" and type(value).__name__ in _SHOWING)
    )


def _can_be_made(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, *_NUMBERS, *_CONTAINERS)
        or isinstance(value, np.ndarray)
        or codecs.is_generator(value)
    )
