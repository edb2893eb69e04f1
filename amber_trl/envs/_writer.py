"""Plain data back into Python objects of the same making."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from gymnasium import Space

from amber_trl.envs import _codecs as codecs
from amber_trl.envs._functions import CODE, Function
from amber_trl.envs._reader import LEFT, class_name


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
        if "items" in state:
            return self._container(state, current, path)
        return self._into(kind, state, current, path)

    def _into(self, kind: str, state: Mapping[str, Any], current: Any, path: str) -> Any:
        """Writes into what is there already, as its class cannot be had from a file."""
        if kind == "enum" and isinstance(current, Enum):
            members = type(current).__members__
            if state["name"] in members:
                return members[state["name"]]
        if kind == "code" and isinstance(current, CODE):
            return self._code(state, Function(current), path)
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

    def _code(self, state: Mapping[str, Any], current: Function, path: str) -> Any:
        """Checks that it is the saved function, and sets the arrays that it holds."""
        if current.name != state["name"]:
            return self._problem(f"{path} was a {state['name']} and is a {current.name} now")
        if current.digest != state.get("digest") or len(current.arrays) != len(state["arrays"]):
            return self._problem(f"{path} has other instructions or constants than when saved")
        for plain, array in zip(state["arrays"], current.arrays, strict=True):
            saved = codecs.plain_to_array(plain)
            if saved.shape == array.shape and saved.tobytes() == array.tobytes():
                continue
            if (
                saved.shape != array.shape
                or saved.dtype != array.dtype
                or not array.flags.writeable
            ):
                return self._problem(f"{path} holds another array than when saved")
            array[...] = saved
        return LEFT

    def _container(self, state: Mapping[str, Any], current: Any, path: str) -> Any:
        kind, items = state["kind"], state["items"]
        made: Any = {"dict": {}, "OrderedDict": OrderedDict()}.get(kind, [])
        if kind == "deque":
            made = deque(maxlen=state["maxlen"])
        if kind != "tuple":
            self._made[state["number"]] = made  # an item may refer to it
        keys = state.get("keys", range(len(items)))
        for key, item in zip(keys, items, strict=True):
            value = self.write(item, _item(current, key), f"{path}[{key!r}]")
            if value is LEFT:
                value = _item(current, key)
            if "keys" in state:
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
