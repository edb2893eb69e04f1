"""A straight-line program of torch calls, recorded from one call of an actor."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

# Calls that tell Python about a tensor's form, never about its values.
_ABOUT_FORM = frozenset(
    [
        "__len__",
        "dim",
        "element_size",
        "get_device",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_same_size",
        "is_signed",
        "ndimension",
        "nelement",
        "numel",
        "promote_types",
        "result_type",
        "size",
        "storage_offset",
        "stride",
        "type",
    ]
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
class _Slot:
    """A tensor in the program's memory."""

    index: int


class _Form:
    """A tensor of which only shape, strides, dtype and device matter."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[object, ...]:
        tensor = self.tensor
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@dataclass
class _Call:
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: int | None
    effect: bool
    """Whether it draws random numbers or writes into a tensor, so that it must always run."""

    def reads(self) -> set[int]:
        leaves = tree_leaves((self.args, self.kwargs))
        return {leaf.index for leaf in leaves if isinstance(leaf, _Slot)}


class Recorder(TorchFunctionMode):
    """Writes down every torch call made while it is active.

    Args:
        inputs: the tensors that change from frame to frame.
        device: where the actor is.
    """

    def __init__(self, inputs: Sequence[Tensor], device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.num_inputs = len(inputs)
        self.calls: list[_Call] = []
        self.written: set[int] = set()
        """Addresses of the storages that the calls write into."""
        self.guards: list[tuple[int, Tensor]] = []
        """Tensors at whose values the actor looked, and these values; none varies by frame."""
        self._varying = set(range(len(inputs)))
        # Everything is kept alive, so that no id is used twice.
        self.memory: list[Any] = list(inputs)
        self._index = {id(tensor): index for index, tensor in enumerate(inputs)}
        self.constants: dict[int, int] = {index: t._version for index, t in enumerate(inputs)}
        """Version, when first seen, of each tensor that was there before the actor was called."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in tensors]
        state = generator_states(self.device)
        result = func(*args, **kwargs)
        written = [t for t, version in zip(tensors, versions, strict=True) if t._version != version]
        wrote = bool(written)
        drew = not all(map(torch.equal, state, generator_states(self.device)))
        self.written |= {_address(tensor) for tensor in written}
        returned = tree_leaves(result)
        if not any(isinstance(leaf, Tensor) for leaf in returned):
            if not wrote and not drew:
                self._guard(func, tensors)
                return result
        elif not wrote and not drew and all(id(leaf) in self._index for leaf in returned):
            return result
        self._check_arguments(func, leaves)
        read = list(args)
        position = _FORM_ARGUMENT.get(_name(func))
        if position is not None and position < len(read):
            read[position] = _Form(read[position])
        encoded, named = tree_map(self._encode, (tuple(read), kwargs))
        out = self._store(func, result)
        self._append(_Call(func, encoded, named, out, wrote or drew))
        if isinstance(result, tuple | list) and out is not None:
            for position, item in enumerate(result):
                index = self._store(func, item)
                self._append(_Call(getitem, (_Slot(out), position), {}, index, False))
        return result

    def slot(self, tensor: Tensor) -> int | None:
        """Where a tensor is; None if no recorded call gave it."""
        return self._index.get(id(tensor))

    def written_constant(self) -> bool:
        """Whether a tensor that was there before has been written into."""
        return any(self.memory[index]._version != seen for index, seen in self.constants.items())

    def _encode(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        index = self._index.get(id(leaf))
        if index is None:
            index = self._store(None, leaf)
            assert index is not None
            self.constants[index] = leaf._version
        return _Slot(index)

    def _store(self, func: Callable[..., Any] | None, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, Tensor):
            known = self._index.get(id(value))
            if known is not None:
                return known
            self._index[id(value)] = len(self.memory)
        elif not isinstance(value, tuple | list):
            raise NotStraightError(f"{_name(func)} returns a {type(value).__name__}")
        self.memory.append(value)
        return len(self.memory) - 1

    def _append(self, call: _Call) -> None:
        self.calls.append(call)
        if call.out is not None and (call.effect or call.reads() & self._varying):
            self._varying.add(call.out)

    def _guard(self, func: Callable[..., Any], tensors: list[Tensor]) -> None:
        """Notes the values that a call without tensor result tells Python."""
        name = _name(func)
        if name == "__get__" or name in _ABOUT_FORM:
            return
        for tensor in tensors:
            index = self._encode(tensor).index
            if index in self._varying:
                raise NotStraightError(f"it looks at the values of a tensor ({name})")
            self.guards.append((index, tensor.clone()))

    @staticmethod
    def _check_arguments(func: Callable[..., Any], leaves: list[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, slice):
                leaf = (leaf.start, leaf.stop, leaf.step)
                unsafe = any(isinstance(bound, Tensor) for bound in leaf)
            else:
                unsafe = isinstance(leaf, np.ndarray | torch.Generator)
            if unsafe:
                raise NotStraightError(f"{_name(func)} takes a {type(leaf).__name__}")


class Program:
    """Runs what two recordings of the same call agree on.

    Calls that depend on no input and draw nothing, such as the exponential of a log-std
    parameter, run once per :meth:`begin`; those on which no output depends are left out.

    Args:
        first: a finished recording.
        second: another one of the same call, with the same inputs and generator state, made
            while the first was alive.
        outputs: tensors that the first call gave, by name.
        derived: name of an output to leave out if it is a function of the others alone.

    Raises:
        NotStraightError: the recordings differ, or an output is not a recorded one.
    """

    def __init__(
        self,
        first: Recorder,
        second: Recorder,
        outputs: Mapping[Any, Tensor],
        derived: Any = None,
    ) -> None:
        _check_agreement(first, second)
        if first.written_constant():
            raise NotStraightError("it writes into a tensor that it keeps, or into its input")
        self.outputs: dict[Any, int] = {}
        for name, tensor in outputs.items():
            index = first.slot(tensor)
            if index is None:
                raise NotStraightError(f"its output {name!r} comes from no recorded torch call")
            self.outputs[name] = index
        if derived in self.outputs and _is_function_of_the_others(first, self.outputs, derived):
            del self.outputs[derived]
        self._guards = first.guards
        wanted = {*self.outputs.values(), *(index for index, _ in self._guards)}
        calls = _needed(first.calls, wanted, effects=True)
        self.fixed = _independent(calls, first)
        """Slots that hold the same value for all frames between two :meth:`begin`."""
        if not {index for index, _ in self._guards} <= self.fixed:
            raise NotStraightError("it looks at the values of a tensor, and writes into one")
        self.slots: list[Any] = [
            value if index in first.constants else None for index, value in enumerate(first.memory)
        ]
        once = [call for call in calls if call.out in self.fixed]
        self._once = [self._compile(call) for call in once]
        self.frame = [self._compile(call) for call in calls if call.out not in self.fixed]
        """Triples of function, argument getter and output slot, to run in this order."""

    def begin(self) -> bool:
        """Computes what is the same for all frames, from the parameters as they are now.

        Returns:
            False if the actor looked at a value that is another now: it must be recorded anew.
        """
        for func, arguments, out in self._once:
            self.slots[out] = func(*arguments(self.slots))
        return all(same(self.slots[index], value) for index, value in self._guards)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Runs the program on one frame, and returns its memory."""
        slots = self.slots
        slots[: len(inputs)] = inputs
        for func, arguments, out in self.frame:
            slots[out] = func(*arguments(slots))
        return slots

    def _compile(self, call: _Call) -> tuple[Callable[..., Any], Callable[..., Any], int]:
        out = self._new_slot(None) if call.out is None else call.out
        containers = [arg for arg in call.args if isinstance(arg, tuple | list | dict)]
        if any(isinstance(leaf, _Slot) for leaf in tree_leaves((containers, call.kwargs))):
            return _Nested(call), _everything, out
        func = call.func if not call.kwargs else _with_kwargs(call.func, call.kwargs)
        return func, _getter([self._place(arg) for arg in call.args]), out

    def _place(self, arg: Any) -> int:
        """Where a call finds an argument."""
        if isinstance(arg, _Slot):
            return arg.index
        return self._new_slot(arg.tensor if isinstance(arg, _Form) else arg)

    def _new_slot(self, value: Any) -> int:
        self.slots.append(value)
        return len(self.slots) - 1


class _Nested:
    """Calls a function whose tensors lie inside lists or keyword arguments."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def __call__(self, slots: list[Any]) -> Any:
        call = self._call

        def look_up(leaf: Any) -> Any:
            if isinstance(leaf, _Form):
                return leaf.tensor
            return slots[leaf.index] if isinstance(leaf, _Slot) else leaf

        args, kwargs = tree_map(look_up, (call.args, call.kwargs))
        return call.func(*args, **kwargs)


def _everything(slots: list[Any]) -> tuple[list[Any]]:
    return (slots,)


def _getter(indices: list[int]) -> Callable[..., Any]:
    if not indices:
        return itemgetter(slice(0, 0))
    if len(indices) == 1:
        return itemgetter(slice(indices[0], indices[0] + 1))
    return itemgetter(*indices)


def _with_kwargs(func: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args: func(*args, **kwargs)


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


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values, NaN being equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _check_agreement(first: Recorder, second: Recorder) -> None:
    """Tensors made during the call by other means than recorded calls differ between the two."""
    same = len(first.calls) == len(second.calls) and all(
        one.func == other.func and one.out == other.out and _same_arguments(one, other)
        for one, other in zip(first.calls, second.calls, strict=True)
    )
    if not same:
        raise NotStraightError("two calls with the same input made different torch calls")
    for index in first.constants:
        if first.memory[index] is not second.memory[index]:
            raise NotStraightError("it makes tensors by other means than torch functions")


def _same_arguments(one: _Call, other: _Call) -> bool:
    ours, theirs = tree_leaves((one.args, one.kwargs)), tree_leaves((other.args, other.kwargs))
    return len(ours) == len(theirs) and all(
        a is b or (type(a) is type(b) and bool(a == b)) for a, b in zip(ours, theirs, strict=True)
    )


def _needed(calls: list[_Call], wanted: set[int], *, effects: bool) -> list[_Call]:
    wanted = set(wanted)
    kept = []
    for call in reversed(calls):
        if (call.effect and effects) or call.out in wanted:
            wanted |= call.reads()
            kept.append(call)
    return kept[::-1]


def _is_function_of_the_others(recorder: Recorder, outputs: dict[Any, int], name: Any) -> bool:
    given = {index for other, index in outputs.items() if other != name} | set(recorder.constants)
    if outputs[name] in given:
        return False
    calls = [call for call in recorder.calls if call.out not in given]
    calls = _needed(calls, {outputs[name]}, effects=False)
    made = {call.out for call in calls}
    return not any(call.effect or call.reads() - given - made for call in calls)


def _independent(calls: list[_Call], recorder: Recorder) -> set[int]:
    """Slots that depend on no input, draw or write; views of what is written into included."""
    fixed = set(recorder.constants) - set(range(recorder.num_inputs))
    for call in calls:
        if call.out is None or call.effect or not call.reads() <= fixed:
            continue
        if not any(
            isinstance(leaf, Tensor) and _address(leaf) in recorder.written
            for leaf in tree_leaves(recorder.memory[call.out])
        ):
            fixed.add(call.out)
    return fixed


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _name(func: Callable[..., Any] | None) -> str:
    return str(getattr(func, "__name__", func))
