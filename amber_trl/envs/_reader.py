"""The attributes of Python objects as plain data."""

from __future__ import annotations

import functools
import logging
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from amber_trl.envs import _codecs as codecs

LEFT = object()
"""In place of a value that is left as it is: on reading not saved, on writing not set."""

_NUMBERS = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, deque, dict, OrderedDict)
CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    np.ufunc,
    type(np.clip),  # NumPy's own functions
)
# How the object was made, or how it is shown: a new one has its own.
_MAKING = ("metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
_SHOWING = ("pygame", "gymnasium.envs.mujoco.mujoco_rendering")


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
    is saved once. Functions and classes are saved by name.

    Args:
        known: objects that are read by themselves; references to them are left as they are.
    """

    def __init__(self, known: Iterable[object] = ()) -> None:
        self.problems: list[str] = []
        """What cannot be read, and why."""
        self.models: list[str] = []
        """Digests of MuJoCo's models, in the order of reading."""
        self._known = {id(one) for one in known}
        self._seen: dict[int, tuple[int, Any]] = {}  # holds the values, so that no id is reused
        self._arrays: list[tuple[str, codecs.Array]] = []
        self._bound: list[tuple[str, Any]] = []  # methods, by path, and what they are bound to

    def attributes(self, owner: object, path: str, skip: Iterable[str] = ()) -> dict[str, Any]:
        """The attributes of an object; ``left`` names those that are not saved."""
        saved = {
            name: LEFT if name in skip or name in _MAKING else self.read(value, f"{path}.{name}")
            for name, value in vars(owner).items()
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
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return {"kind": "scalar", **codecs.array_to_plain(value)}
        if isinstance(value, Enum):
            return {"kind": "enum", "name": value.name}
        if isinstance(value, Space):
            return {"kind": "space", **codecs.space_to_plain(value)}
        if isinstance(value, CODE):
            return self._code(value, path)
        if id(value) in self._known or _is_left(value):
            return LEFT
        if id(value) in self._seen:
            return {"kind": "same", "number": self._seen[id(value)][0]}
        number = len(self._seen)
        self._seen[id(value)] = number, value
        state = self._shared(value, path, inside)
        return state if state is LEFT else {"number": number, **state}

    def _shared(self, value: Any, path: str, inside: bool) -> Any:
        if codecs.is_readable_array(value):
            self._arrays.append((path, value))
            return {"kind": "array", **codecs.array_to_plain(value)}
        if type(value) is torch.Tensor:
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
        items = []
        for key in keys:
            item = self.read(value[key], f"{path}[{key!r}]", inside=True)
            if item is LEFT:
                return LEFT  # an item alone could not be left
            items.append(item)
        state: dict[str, Any] = {"kind": type(value).__name__, "items": items}
        if isinstance(value, dict):
            if any(type(key) not in _NUMBERS for key in keys):
                return self._problem(f"{path} has keys that are neither numbers nor strings")
            state["keys"] = keys
        if isinstance(value, deque):
            state["maxlen"] = value.maxlen
        return state

    def _code(self, value: Any, path: str) -> Any:
        for held in _held(value):
            if isinstance(held, CODE):
                self._code(held, path)
            elif isinstance(held, list | dict | set | deque):
                return self._problem(f"{path} is a function that holds a {type(held).__name__}")
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, type | types.ModuleType):
            self._bound.append((path, owner))
        return {"kind": "code", "name": code_name(value)}

    def _problem(self, text: str) -> Any:
        self.problems.append(text)
        return LEFT

    def check_sharing(self) -> None:
        """Notes what shares memory, or is bound, with something that was not read: copies are not."""
        for path, owner in self._bound:
            if id(owner) not in self._known and id(owner) not in self._seen:
                self._problem(f"{path} is a method of a {class_name(owner)}, which was not read")
        for number, (path, array) in enumerate(self._arrays):
            if array.base is not None:
                self._check_view(path, array, self._arrays[:number] + self._arrays[number + 1 :])

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
        or _module(value).startswith(_SHOWING)
    )


def code_name(value: Any) -> str:
    """What tells one function or class from another in a state."""
    if isinstance(value, functools.partial):
        return f"partial of {code_name(value.func)}"
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _held(code: Any) -> list[Any]:
    """What a function carries along."""
    if isinstance(code, functools.partial):
        return [code.func, *code.args, *code.keywords.values()]
    cells = getattr(code, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells]
