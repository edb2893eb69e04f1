"""Python values as plain data, which a file holds without pickled code, and back to the same bits."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

_NUMBERS = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, deque, dict)
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class NotPlainError(TypeError):
    """A value that is neither plain nor made of plain values."""


class Encoder:
    """Turns values into tensors, numbers, strings, lists and dicts.

    Plain are numbers, strings, arrays, tensors, random number generators, and lists, tuples,
    deques and dicts of such. A value that is referred to twice is saved once, so that it is one
    value again after :class:`Decoder`.
    """

    def __init__(self) -> None:
        # By id. The value is held, so that no id is used again.
        self._seen: dict[int, tuple[int, str, Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """A value as plain data, which shares no memory with it.

        Args:
            value: anything.
            path: its name in messages.

        Raises:
            NotPlainError: it, or something in it, is not plain; nothing of it is remembered.
        """
        number = len(self._seen)
        try:
            return self._encode(value, path)
        except NotPlainError:
            while len(self._seen) > number:
                self._seen.popitem()
            raise

    def shared_memory(self) -> Iterable[str]:
        """Which of the encoded arrays show memory of another; they are apart once decoded."""
        arrays = [(path, x) for _, path, x in self._seen.values() if type(x) is np.ndarray]
        for path, array in arrays:
            if array.base is not None:
                for other_path, other in arrays:
                    if other is not array and np.shares_memory(array, other):
                        yield f"{path} shows the memory of {other_path}"

    def _encode(self, value: Any, path: str) -> Any:
        if type(value) in _NUMBERS:
            return value
        if id(value) in self._seen:
            return {"kind": "same", "number": self._seen[id(value)][0]}
        number = len(self._seen)
        self._seen[id(value)] = number, path, value
        return {"number": number, **self._described(value, path)}

    def _described(self, value: Any, path: str) -> dict[str, Any]:
        name = type(value).__name__
        if type(value) is torch.Tensor and not value.requires_grad:
            return {"kind": "tensor", "value": value.clone()}
        if type(value) is np.ndarray or isinstance(value, np.generic):
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            try:
                return {"kind": kind, "value": torch.from_numpy(np.asarray(value).copy(order="K"))}
            except TypeError as error:  # strings, dates, objects, another byte order
                raise NotPlainError(f"{path} is an array of {value.dtype}") from error
        if type(value) is dict:
            keys = [self._encode(key, f"a key of {path}") for key in value]
            return {"kind": name, "keys": keys, "items": self._items(value.items(), path)}
        if type(value) in _CONTAINERS:
            items = self._items(enumerate(value), path)
            return {"kind": name, "items": items, "maxlen": getattr(value, "maxlen", None)}
        if type(value) in (np.random.Generator, np.random.RandomState, random.Random):
            return {"kind": "generator", **self._generator(value)}
        raise NotPlainError(f"{path} is a {name}, which cannot be saved")

    def _items(self, items: Iterable[tuple[Any, Any]], path: str) -> list[Any]:
        return [self._encode(item, f"{path}[{key!r}]") for key, item in items]

    def _generator(self, generator: Any) -> dict[str, Any]:
        name = type(generator).__name__
        if isinstance(generator, random.Random):
            state: Any = generator.getstate()
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state(legacy=False)
        else:
            name, state = type(generator.bit_generator).__name__, generator.bit_generator.state
        return {"generator": name, "state": self._encode(state, name)}


class Decoder:
    """Turns what one :class:`Encoder` made into values again."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def decode(self, plain: Any, current: Any = None) -> Any:
        """The value that was encoded.

        Args:
            plain: what :meth:`Encoder.encode` returned.
            current: what is in the value's place now. A generator is set, and not replaced, so
                that a function that draws from it still does.
        """
        if not isinstance(plain, Mapping):
            return plain
        if plain["kind"] == "same":
            return self._made[plain["number"]]
        value = self._decode(plain, current)
        self._made[plain["number"]] = value
        return value

    def _decode(self, plain: Mapping[str, Any], current: Any) -> Any:
        kind = plain["kind"]
        if kind == "tensor":
            return plain["value"].clone()
        if kind in ("array", "scalar"):
            array = plain["value"].numpy().copy(order="K")
            return array if kind == "array" else array[()]
        if kind == "generator":
            return self._generator(plain, current)
        if kind == "dict":
            keys = [self.decode(key) for key in plain["keys"]]
            return dict(zip(keys, map(self.decode, plain["items"]), strict=True))
        items = [self.decode(item) for item in plain["items"]]
        if kind == "deque":
            return deque(items, plain["maxlen"])
        return tuple(items) if kind == "tuple" else items

    def _generator(self, plain: Mapping[str, Any], current: Any) -> Any:
        name, state = plain["generator"], self.decode(plain["state"])
        if name == "Random":
            generator = current if type(current) is random.Random else random.Random()
            generator.setstate(state)
            return generator
        if name == "RandomState":
            legacy = current if type(current) is np.random.RandomState else np.random.RandomState()
            legacy.set_state(state)
            return legacy
        if name not in _BIT_GENERATORS:
            raise ValueError(f"the state has a generator of kind {name!r}: load it with its NumPy")
        if not (
            type(current) is np.random.Generator and type(current.bit_generator).__name__ == name
        ):
            current = np.random.Generator(getattr(np.random, name)())
        current.bit_generator.state = state
        return current
