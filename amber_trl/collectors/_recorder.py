"""Writes down the torch calls that an actor makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Calls that tell Python about a tensor's form, never about its values.
_ABOUT_FORM = frozenset(
    """
    __len__ dim element_size get_device is_complex is_conj is_contiguous is_floating_point
    is_inference is_neg is_same_size is_signed ndimension nelement numel promote_types
    result_type size storage_offset stride type
    """.split()  # noqa: SIM905
)

# Position of the argument of which a call reads the form only.
_FORM_ARGUMENT = {
    "expand_as": 1,
    "full_like": 0,
    "new_full": 0,
    "new_ones": 0,
    "new_zeros": 0,
    "ones_like": 0,
    "reshape_as": 1,
    "type_as": 1,
    "view_as": 1,
    "zeros_like": 0,
}


class NotStraightError(Exception):
    """The actor cannot be written as a fixed list of torch calls; the message says why."""


@dataclass(frozen=True)
class Slot:
    """A tensor that an earlier call gave, or that was there before."""

    index: int


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor of which only shape, strides, dtype and device matter."""

    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[object, ...]:
        tensor = self.tensor
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@dataclass(frozen=True)
class Call:
    """One torch call. ``out`` is the slot of its result; None if it returns nothing.

    ``effect`` says that it draws random numbers or writes into a tensor: it must always run.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: int | None
    effect: bool

    def reads(self) -> set[int]:
        """The slots that it reads."""
        leaves = tree_leaves((self.args, self.kwargs))
        return {leaf.index for leaf in leaves if isinstance(leaf, Slot)}


class Recorder(TorchFunctionMode):
    """Writes down every torch call made while it is active.

    Args:
        inputs: the tensors that change from frame to frame.
        device: where the actor is.
    """

    def __init__(self, inputs: Sequence[Tensor], device: torch.device) -> None:
        super().__init__()
        self.num_inputs = len(inputs)
        self.calls: list[Call] = []
        self.memory: list[Any] = list(inputs)
        """What each slot held. Everything is kept alive, so that no id is used twice."""
        self.constants: dict[int, int] = {slot: t._version for slot, t in enumerate(inputs)}
        """Version, when first seen, of each tensor that was there before the actor was called."""
        self.written: set[int] = set()
        """Addresses of the storages that the calls write into."""
        self.guards: list[tuple[int, Tensor]] = []
        """Tensors at whose values the actor looked, and these values; none varies by frame."""
        self._device = device
        self._slots = {id(tensor): slot for slot, tensor in enumerate(inputs)}
        self._varying = set(self.constants)
        self._versions: dict[int, int] = {}  # Before the call that is being written down.

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        leaves = tree_leaves((args, named))
        _check_arguments(func, leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._versions = {id(tensor): tensor._version for tensor in tensors}
        states = generator_states(self._device)
        result = func(*args, **named)
        written = [tensor for tensor in tensors if tensor._version != self._versions[id(tensor)]]
        drew = not all(map(torch.equal, states, generator_states(self._device)))
        self.written |= {address(tensor) for tensor in written}
        if written or drew:
            self._write_down(func, args, named, result, effect=True)
        elif not any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self._guard(func, tensors)
        elif not all(id(leaf) in self._slots for leaf in tree_leaves(result)):
            self._write_down(func, args, named, result, effect=False)
        return result

    def slot(self, tensor: Tensor) -> int | None:
        """Where a tensor is; None if no recorded call gave it."""
        return self._slots.get(id(tensor))

    def has_written_constant(self) -> bool:
        """Whether a tensor that was there before has been written into."""
        return any(self.memory[slot]._version != seen for slot, seen in self.constants.items())

    def _write_down(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        named: dict[str, Any],
        result: Any,
        *,
        effect: bool,
    ) -> None:
        read = list(args)
        position = _FORM_ARGUMENT.get(name_of(func))
        if position is not None and position < len(read):
            read[position] = Form(read[position])
        encoded, encoded_named = tree_map(self._encode, (tuple(read), named))
        out = self._store(func, result)
        self._append(Call(func, encoded, encoded_named, out, effect))
        if out is None or isinstance(result, Tensor):
            return
        for position, item in enumerate(result):
            if id(item) not in self._slots:
                slot = self._store(func, item)
                self._append(Call(getitem, (Slot(out), position), {}, slot, False))

    def _append(self, call: Call) -> None:
        self.calls.append(call)
        if call.out is not None and (call.effect or call.reads() & self._varying):
            self._varying.add(call.out)

    def _encode(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._slots:
            self.constants[len(self.memory)] = self._versions[id(leaf)]
            self._store(None, leaf)
        return Slot(self._slots[id(leaf)])

    def _store(self, func: Callable[..., Any] | None, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, Tensor):
            if id(value) in self._slots:
                return self._slots[id(value)]
            self._slots[id(value)] = len(self.memory)
        elif not isinstance(value, tuple | list):
            raise NotStraightError(f"{name_of(func)} returns a {type(value).__name__}")
        self.memory.append(value)
        return len(self.memory) - 1

    def _guard(self, func: Callable[..., Any], tensors: list[Tensor]) -> None:
        """Notes the values that a call without tensor result tells Python."""
        name = name_of(func)
        if name == "__set__":
            raise NotStraightError("it sets an attribute of a tensor")
        if name == "__get__" or name in _ABOUT_FORM:
            return
        for tensor in tensors:
            slot = self._encode(tensor).index
            if slot in self._varying:
                raise NotStraightError(f"it looks at the values of a tensor ({name})")
            self.guards.append((slot, tensor.clone()))


class FixedShapes(TorchDispatchMode):
    """Refuses a call whose result has a shape that depends on values, as ``nonzero`` has.

    Such a shape would tell Python about the values, unseen by :class:`Recorder`.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        by_values = torch.Tag.dynamic_output_shape in func.tags
        if by_values and not (func is torch.ops.aten.index.Tensor and _by_integers(args[1])):
            raise NotStraightError(f"the shape of a result depends on values ({func})")
        return func(*args, **(kwargs or {}))


def _by_integers(indices: Sequence[Tensor | None]) -> bool:
    return all(index is None or index.dtype in (torch.int32, torch.int64) for index in indices)


def generator_states(device: torch.device) -> list[Tensor]:
    """States of torch's global generators: the CPU's, and a CUDA device's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_generator_states(states: Sequence[Tensor], device: torch.device) -> None:
    """Restores what :func:`generator_states` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def address(tensor: Tensor) -> int:
    """The address of a tensor's storage, which its views share."""
    return tensor.untyped_storage().data_ptr()


def name_of(func: Callable[..., Any] | None) -> str:
    """A function's name, as far as it has one."""
    return str(getattr(func, "__name__", func))


def _check_arguments(func: Callable[..., Any], leaves: list[Any]) -> None:
    """Refuses, before they are used, arguments that may change without a torch call."""
    for leaf in leaves:
        bounds = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else ()
        by_tensor = any(isinstance(bound, Tensor) for bound in bounds)
        if by_tensor or isinstance(leaf, np.ndarray | torch.Generator):
            raise NotStraightError(f"{name_of(func)} takes a {type(leaf).__name__}")
