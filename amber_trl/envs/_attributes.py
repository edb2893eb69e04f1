"""The attributes of Python objects as plain data, and back into objects of the same making."""

from __future__ import annotations

import functools
import logging
import types
from collections import deque
from collections.abc import Iterable, Mapping
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
_CONTAINERS = (list, tuple, deque, dict)
_CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    np.ufunc,
)
# How the object was made, or how it is shown: a new one has its own.
_MAKING = ("_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs")
_SHOWING = ("pygame", "gymnasium.envs.mujoco.mujoco_rendering")


class _Bare:
    """An instance without slots or data in C: all it holds is its ``__dict__``."""


def class_name(value: object) -> str:
    """Module and name of a value's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


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
        if isinstance(value, _CODE):
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
            if hasattr(value, "__dict__") and type(value).__basicsize__ == _Bare.__basicsize__:
                return {"kind": "object", **self.attributes(value, path)}
        where = " inside a container" if inside else ""
        return self._problem(f"{path} is a {class_name(value)}{where}, which cannot be read")

    def _container(self, value: Any, path: str) -> Any:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        items = []
        for key in keys:
            item = self.read(value[key], f"{path}[{key!r}]", inside=True)
            if item is LEFT:
                return LEFT  # an item alone could not be left
            items.append(item)
        state = {"kind": type(value).__name__, "items": items}
        if isinstance(value, dict):
            if any(type(key) not in _NUMBERS for key in keys):
                return self._problem(f"{path} has keys that are neither numbers nor strings")
            state["keys"] = keys
        if isinstance(value, deque):
            state["maxlen"] = value.maxlen
        return state

    def _code(self, value: Any, path: str) -> Any:
        for held in _held(value):
            if isinstance(held, _CODE):
                self._code(held, path)
            elif isinstance(held, list | dict | set | deque):
                return self._problem(f"{path} is a function that holds a {type(held).__name__}")
        return {"kind": "code", "name": _code_name(value)}

    def _problem(self, text: str) -> Any:
        self.problems.append(text)
        return LEFT

    def check_memory(self) -> None:
        """Notes arrays that show another one's memory, or one that is not NumPy's: copies do not."""
        owners: dict[int, list[tuple[str, codecs.Array]]] = {}
        for path, array in self._arrays:
            owner = array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            if owner.base is not None and array.flags.writeable:
                self.problems.append(f"{path} shows memory of a {class_name(owner.base)}")
            for other, earlier in owners.setdefault(id(owner), []):
                if np.may_share_memory(array, earlier):
                    self.problems.append(f"{path} shows the memory of {other}")
            owners[id(owner)].append((path, array))


class Writer:
    """Puts saved attributes into objects of the same making, and notes what does not fit."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What cannot be put back, and why."""
        self._made: dict[int, Any] = {}

    def attributes(self, state: Mapping[str, Any], owner: object, path: str) -> None:
        """Makes an object's attributes those of the state; what was left stays."""
        attributes = vars(owner)
        for name in set(attributes).difference(state["attributes"], state["left"]):
            del attributes[name]
        for name, saved in state["attributes"].items():
            value = self.write(saved, attributes.get(name), f"{path}.{name}")
            if value is not LEFT:
                attributes[name] = value

    def write(self, state: Any, current: Any, path: str) -> Any:
        """The value that a state describes, or ``LEFT``."""
        if not isinstance(state, Mapping):
            return state
        if state["kind"] == "same":
            return self._made.get(state["number"], LEFT)
        value = self._make(state, current, path)
        if "number" in state and value is not LEFT:
            self._made[state["number"]] = value
        return value

    def _make(self, state: Mapping[str, Any], current: Any, path: str) -> Any:
        kind = state["kind"]
        if kind == "scalar":
            return codecs.plain_to_array(state)[()]
        if kind == "array":
            return codecs.plain_to_array(state)
        if kind == "tensor":
            return state["value"].clone()
        if kind == "generator":
            return codecs.plain_to_generator(state, current)
        if kind in {"list", "tuple", "deque", "dict"}:
            return self._container(state, current, path)
        return self._into(kind, state, current, path)

    def _into(self, kind: str, state: Mapping[str, Any], current: Any, path: str) -> Any:
        """Writes into what is there already, as its class cannot be had from a file."""
        if kind == "enum" and isinstance(current, Enum):
            return type(current)[state["name"]]
        if kind == "code" and isinstance(current, _CODE) and _code_name(current) == state["name"]:
            return LEFT
        if kind == "space" and isinstance(current, Space) and codecs.plain_to_space(state, current):
            return LEFT
        if kind == "mujoco" and codecs.is_mujoco(current, "MjData"):
            if codecs.model_digest(current.model) != state["model"]:
                return self._problem(f"{path} has another MuJoCo model than the saved one")
            codecs.plain_to_mujoco(state, current)
            return current
        if kind == "object" and class_name(current) == state["class"]:
            self._made[state["number"]] = current
            self.attributes(state, current, path)
            return current
        what = state.get("class") or state.get("name") or kind
        return self._problem(f"{path} was a {what} and is a {class_name(current)} now")

    def _container(self, state: Mapping[str, Any], current: Any, path: str) -> Any:
        kind, items = state["kind"], state["items"]
        made: Any = deque(maxlen=state["maxlen"]) if kind == "deque" else {"dict": {}}.get(kind, [])
        if kind != "tuple":
            self._made[state["number"]] = made  # an item may refer to it
        keys = state.get("keys", range(len(items)))
        for key, item in zip(keys, items, strict=True):
            value = self.write(item, _item(current, key), f"{path}[{key!r}]")
            if value is LEFT:
                value = _item(current, key)
            if kind == "dict":
                made[key] = value
            else:
                made.append(value)
        return tuple(made) if kind == "tuple" else made

    def _problem(self, text: str) -> Any:
        self.problems.append(text)
        return LEFT


def _item(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (TypeError, KeyError, IndexError):
        return None


def _is_left(value: Any) -> bool:
    return (
        isinstance(value, EnvSpec | logging.Logger)
        or codecs.is_mujoco(value, "MjModel")
        or type(value).__module__.startswith(_SHOWING)
    )


def _code_name(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"partial of {_code_name(value.func)}"
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _held(code: Any) -> list[Any]:
    """What a function carries along."""
    if isinstance(code, functools.partial):
        return [code.func, *code.args, *code.keywords.values()]
    cells = getattr(code, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells]
