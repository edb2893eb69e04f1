"""NumPy arrays, generators, spaces and MuJoCo's data as tensors and numbers, and back to the bit."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space

Array = np.ndarray[Any, Any]
Plain = dict[str, Any]

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def is_readable_array(value: Any) -> bool:
    """Whether it is an array of numbers, truth values, strings or dates, in this machine's order."""
    return type(value) is np.ndarray and value.dtype.kind in "biufcSUmM" and value.dtype.isnative


def array_to_plain(array: Array | np.generic) -> Plain:
    """The array's type, shape and bytes; NumPy's scalars go the same way."""
    array = np.asarray(array)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    memory = np.frombuffer(array.tobytes("F" if fortran else "C"), dtype=np.uint8)
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "order": "F" if fortran else "C",
        "bytes": torch.from_numpy(memory.copy()),
    }


def plain_to_array(plain: Mapping[str, Any]) -> Array:
    """A new array, which shares no memory with the state."""
    memory = plain["bytes"].numpy().tobytes()
    array: Array = np.ndarray(
        tuple(plain["shape"]), np.dtype(plain["dtype"]), memory, order=plain["order"]
    )
    return array.copy(order="K")


def memory_of(tensor: torch.Tensor) -> Array:
    """An array over the tensor's memory, or all of its storage; nothing if it is on a device."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return np.empty(0)
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):  # a type that NumPy lacks
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


def is_generator(value: Any) -> bool:
    """Whether it is a random number generator whose state can be read and set."""
    if type(value) is np.random.Generator:
        return type(value.bit_generator).__name__ in _BIT_GENERATORS
    return type(value) in (np.random.RandomState, random.Random)


def generator_to_plain(generator: Any) -> Plain:
    """The generator's kind and state."""
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"generator": "Random", "state": [version, list(words), gauss]}
    if isinstance(generator, np.random.RandomState):
        return {"generator": "RandomState", "state": _tree(generator.get_state(legacy=False))}
    bits = generator.bit_generator
    return {"generator": type(bits).__name__, "state": _tree(bits.state)}


def plain_to_generator(plain: Mapping[str, Any], current: Any) -> Any:
    """Sets the current generator, in place where it is of the same kind; else makes one."""
    kind, state = plain["generator"], plain["state"]
    if kind == "Random":
        generator = current if type(current) is random.Random else random.Random()
        generator.setstate((state[0], tuple(state[1]), state[2]))
        return generator
    if kind == "RandomState":
        legacy = current if type(current) is np.random.RandomState else np.random.RandomState()
        legacy.set_state(_untree(state))
        return legacy
    if kind not in _BIT_GENERATORS:
        raise ValueError(f"the state has a generator of kind {kind!r}, which NumPy lacks")
    if not (
        isinstance(current, np.random.Generator) and type(current.bit_generator).__name__ == kind
    ):
        current = np.random.Generator(getattr(np.random, kind)())
    current.bit_generator.state = _untree(state)
    return current


def _tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tree(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": array_to_plain(value)}
    return value


def _untree(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "array" in value:
        array = plain_to_array(value["array"])
        return array if array.shape else array[()]
    return {key: _untree(item) for key, item in value.items()}


def space_to_plain(space: Space[Any]) -> Plain:
    """The generator of a space and of those that it is made of; None where there is none yet."""
    generator = vars(space)["_np_random"]  # the public attribute would make one
    return {
        "generator": None if generator is None else generator_to_plain(generator),
        "parts": [space_to_plain(part) for part in _parts(space)],
    }


def has_generator(space: Space[Any]) -> bool:
    """Whether a space, or one that it is made of, was ever drawn from or seeded."""
    return vars(space)["_np_random"] is not None or any(map(has_generator, _parts(space)))


def plain_to_space(plain: Mapping[str, Any], space: Space[Any]) -> bool:
    """Sets a space's generators in place; False if it is made of other parts than the saved."""
    parts = _parts(space)
    if len(parts) != len(plain["parts"]):
        return False
    saved, current = plain["generator"], vars(space)["_np_random"]
    vars(space)["_np_random"] = None if saved is None else plain_to_generator(saved, current)
    return all(plain_to_space(p, part) for p, part in zip(plain["parts"], parts, strict=True))


def _parts(space: Space[Any]) -> list[Space[Any]]:
    parts: list[Space[Any]] = []
    for value in vars(space).values():
        items = value.values() if isinstance(value, Mapping) else value
        items = items if isinstance(value, Mapping | tuple | list) else (value,)
        parts += [item for item in items if isinstance(item, Space)]
    return parts


def is_mujoco(value: Any, name: str) -> bool:
    """Whether it is an instance of that class of the ``mujoco`` package."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and type(value) is getattr(mujoco, name)


def model_digest(model: Any) -> str:
    """SHA-256 of a ``mujoco.MjModel``."""
    return hashlib.sha256(_model_bytes(model)).hexdigest()


def mujoco_to_plain(data: Any) -> Plain:
    """All of a ``mujoco.MjData``: the integration state, and what a task may read before it steps.

    MuJoCo's own serialisation, without the model that it contains, which the digest stands for.
    """
    model, state = _model_bytes(data.model), data.__getstate__()
    at = state.find(model)
    if at < 0:
        raise RuntimeError("MuJoCo's serialised data do not contain its model: report this")
    rest = np.frombuffer(state[:at] + state[at + len(model) :], dtype=np.uint8)
    return {
        "model": hashlib.sha256(model).hexdigest(),
        "model_at": at,
        "bytes": torch.from_numpy(rest.copy()),
    }


def plain_to_mujoco(plain: Mapping[str, Any], data: Any) -> None:
    """Copies the saved data into ``data``, whose model must have the saved digest."""
    import mujoco

    rest, at = plain["bytes"].numpy().tobytes(), plain["model_at"]
    saved = mujoco.MjData.__new__(mujoco.MjData)
    try:
        saved.__setstate__(rest[:at] + _model_bytes(data.model) + rest[at:])
    except ValueError as error:
        raise ValueError(
            f"MuJoCo {mujoco.__version__} cannot read the saved simulator ({error}): use the "
            "version that wrote it"
        ) from error
    mujoco.mj_copyData(data, data.model, saved)


def _model_bytes(model: Any) -> bytes:
    import mujoco

    memory = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, memory)
    return memory.tobytes()
