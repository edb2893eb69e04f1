"""Converts Python values to plain data, for a file that is loaded without running code, and back."""

import random
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

_NUMBERS = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, deque, dict)
_OLD_GENERATORS: dict[str, type] = {"Random": random.Random, "RandomState": np.random.RandomState}


class NotPlainError(TypeError):
    """A value that is neither plain nor made of plain values."""


class Encoder:
    """Turns plain values into tensors, numbers, strings, lists and dicts.

    Plain values are numbers, strings, arrays, tensors, random number generators, and lists, tuples,
    deques and dicts of these. A value that is referenced twice is saved once, so that
    :class:`Decoder` restores a single value.
    """

    def __init__(self) -> None:
        # By id: number, path and the value itself, which is kept alive so that no id is reused.
        self._seen: dict[int, tuple[int, str, Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """A value as plain data that shares no memory with it; ``path`` names it in messages.

        If it, or something in it, is not plain, nothing of it is kept.
        """
        number = len(self._seen)
        try:
            return self._encode(value, path)
        except NotPlainError:
            while len(self._seen) > number:
                self._seen.popitem()
            raise

    def shared_memory(self) -> Iterable[str]:
        """Names the arrays that share memory with another array, which they do not after decoding."""
        arrays = [(path, x) for _, path, x in self._seen.values() if type(x) is np.ndarray]
        for path, array in arrays:
            if array.base is not None:
                for other_path, other in arrays:
                    if other is not array and np.shares_memory(array, other):
                        yield f"{path} shares memory with {other_path}"

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
            owner: Any = value
            while isinstance(owner, np.ndarray):
                owner = owner.base
            copied = owner is None or isinstance(owner, (torch.Tensor, bytes, memoryview))
            if type(value) is np.ndarray and not copied:  # such as a view of MuJoCo's data
                raise NotPlainError(
                    f"{path} is a view of memory that a {type(owner).__name__} owns"
                )
            kind, array = "array" if isinstance(value, np.ndarray) else "scalar", np.asarray(value)
            if array.dtype.kind in "SU":
                return {"kind": kind, "text": array.tolist(), "dtype": array.dtype.str}
            try:
                return {"kind": kind, "value": torch.from_numpy(array.copy(order="K"))}
            except TypeError as error:  # dates, objects, another byte order
                raise NotPlainError(
                    f"{path} is an array of {value.dtype}, which cannot be saved"
                ) from error
        if type(value) is dict:
            keys = [self._encode(key, f"a key of {path}") for key in value]
            return {"kind": name, "keys": keys, "items": self._items(value.items(), path)}
        if type(value) in _CONTAINERS:
            items = self._items(enumerate(value), path)
            return {"kind": name, "items": items, "maxlen": getattr(value, "maxlen", None)}
        if (generator := _generator_name(value)) is not None:
            old = generator in _OLD_GENERATORS
            state = self._encode(value.__getstate__() if old else value.bit_generator.state, path)
            return {"kind": "generator", "generator": generator, "state": state}
        raise NotPlainError(f"{path} is a {name}, which cannot be saved")

    def _items(self, items: Iterable[tuple[Any, Any]], path: str) -> list[Any]:
        return [self._encode(item, f"{path}[{key!r}]") for key, item in items]


class Decoder:
    """Turns the data of one :class:`Encoder` back into values, in the same order."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def decode(self, plain: Any, current: Any = None) -> Any:
        """The value that was encoded; ``current`` is the value in its place now.

        A generator outside containers is set, not replaced, so that functions that hold it draw from it.
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
            if "text" in plain:
                array = np.array(plain["text"], plain["dtype"])
            else:
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
        if _generator_name(current) == name:
            generator = current
        elif name in _OLD_GENERATORS:
            generator = _OLD_GENERATORS[name]()
        else:
            generator = np.random.Generator(getattr(np.random, name)())
        if name in _OLD_GENERATORS:
            generator.__setstate__(state)
        else:
            generator.bit_generator.state = state
        return generator


def _generator_name(value: Any) -> str | None:
    """``Random``, ``RandomState`` or the name of a NumPy bit generator; None for other values."""
    if type(value) is np.random.Generator:
        return type(value.bit_generator).__name__
    return next((name for name, kind in _OLD_GENERATORS.items() if type(value) is kind), None)
