"""Repeats recorded torch calls."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from amber_trl.collectors._recorder import Call, Form, NotStraightError, Recorder, Slot, address


class Program:
    """Runs what two recordings of the same call agree on.

    Calls that depend on no input and draw nothing, such as the exponential of a log-std
    parameter, run once per :meth:`begin`; those on which no output depends are left out. The
    others become the body of a Python function, which is the fastest way to repeat them.

    Args:
        first: a finished recording.
        second: another one of the same call, with the same inputs and generator state, made
            while the first was alive.
        outputs: tensors that the first call gave, by name.
        derived: name of an output to leave out if it is a function of the others alone.

    Raises:
        NotStraightError: the recordings differ, or an output is not a recorded one.
    """

    frame: Callable[..., tuple[Tensor, ...]]
    """Maps the inputs of one frame to its outputs."""
    closed: Callable[..., tuple[Tensor, ...]]
    """The same, with what :meth:`kept` gives as further arguments."""

    def __init__(
        self,
        first: Recorder,
        second: Recorder,
        outputs: Mapping[Any, Tensor],
        derived: Any = None,
    ) -> None:
        _check_agreement(first, second)
        if first.has_written_constant():
            raise NotStraightError("it writes into a tensor that it keeps, or into its input")
        slots = {name: _slot(first, name, tensor) for name, tensor in outputs.items()}
        if derived in slots and _is_function_of_the_others(first, slots, derived):
            del slots[derived]
        self._guards = first.guards
        guarded = {slot for slot, _ in self._guards}
        calls = _needed(first.calls, guarded.union(slots.values()), effects=True)
        fixed = _independent(calls, first)
        if not guarded <= fixed:
            raise NotStraightError("it looks at the values of a tensor, and writes into it")
        self.outputs = list(slots)
        """Names of what :attr:`frame` returns, in its order."""
        self.fixed = {name for name, slot in slots.items() if slot in fixed}
        """Names of the outputs that are the same in all frames between two :meth:`begin`."""
        self._memory: dict[str, Any] = {
            _variable(slot): first.memory[slot] for slot in first.constants
        }
        self._define(calls, fixed, first.num_inputs, list(slots.values()))

    def begin(self) -> bool:
        """Computes what is the same for all frames, from the parameters as they are now.

        Returns:
            False if the actor looked at a value that is another now: it must be recorded anew.
        """
        self._memory["begin"]()
        return all(same(self._memory[_variable(slot)], value) for slot, value in self._guards)

    def kept(self) -> list[Tensor]:
        """What a frame reads besides its inputs, as it is since the last :meth:`begin`."""
        return [self._memory[name] for name in self._kept]

    def _define(self, calls: list[Call], fixed: set[int], inputs: int, outputs: list[int]) -> None:
        once = [call for call in calls if call.out in fixed]
        each = [call for call in calls if call.out not in fixed]
        names = ", ".join(_variable(call.out) for call in once if call.out is not None)
        source = ["def begin():", f" global {names}" if names else " pass"]
        source += [f" {self._statement(call)}" for call in once]
        made = {call.out for call in each}.union(range(inputs))
        read = set(outputs).union(*(call.reads() for call in each))
        self._kept = [_variable(slot) for slot in sorted(read - made)]
        arguments = [_variable(slot) for slot in range(inputs)]
        body = [f" {self._statement(call)}" for call in each]
        body += [f" return ({''.join(f'{_variable(slot)}, ' for slot in outputs)})"]
        source += [f"def frame({', '.join(arguments)}):", *body]
        source += [f"def closed({', '.join(arguments + self._kept)}):", *body]
        exec("\n".join(source), self._memory)
        self.frame, self.closed = self._memory["frame"], self._memory["closed"]

    def _statement(self, call: Call) -> str:
        arguments = [self._expression(arg) for arg in call.args]
        arguments += [f"{name}={self._expression(arg)}" for name, arg in call.kwargs.items()]
        target = "" if call.out is None else f"{_variable(call.out)} = "
        return f"{target}{self._constant(call.func)}({', '.join(arguments)})"

    def _expression(self, value: Any) -> str:
        if isinstance(value, Slot):
            return _variable(value.index)
        if isinstance(value, Form):
            return self._constant(value.tensor)
        if not any(isinstance(leaf, Slot | Form) for leaf in tree_leaves(value)):
            return self._constant(value)
        if type(value) is dict:
            items = (f"{key!r}: {self._expression(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        if type(value) not in (list, tuple):
            raise NotStraightError(f"it passes a {type(value).__name__} of tensors")
        items = (f"{self._expression(item)}, " for item in value)
        return f"[{''.join(items)}]" if type(value) is list else f"({''.join(items)})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._memory)}"
        self._memory[name] = value
        return name


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values, NaN being equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and dtype, and the same values up to rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def _variable(slot: int) -> str:
    return f"v{slot}"


def _slot(recorder: Recorder, name: Any, tensor: Tensor) -> int:
    slot = recorder.slot(tensor)
    if slot is None:
        raise NotStraightError(f"its output {name!r} comes from no recorded torch call")
    return slot


def _check_agreement(first: Recorder, second: Recorder) -> None:
    """Tensors made during the call by other means than recorded calls differ between the two."""
    agree = len(first.calls) == len(second.calls) and all(
        one.func == other.func and one.out == other.out and _same_arguments(one, other)
        for one, other in zip(first.calls, second.calls, strict=True)
    )
    if not agree:
        raise NotStraightError("two calls with the same input made different torch calls")
    for slot in first.constants:
        if first.memory[slot] is not second.memory[slot]:
            raise NotStraightError("it makes tensors by other means than torch functions")


def _same_arguments(one: Call, other: Call) -> bool:
    ours, theirs = tree_leaves((one.args, one.kwargs)), tree_leaves((other.args, other.kwargs))
    return len(ours) == len(theirs) and all(
        a is b or (type(a) is type(b) and bool(a == b)) for a, b in zip(ours, theirs, strict=True)
    )


def _needed(calls: list[Call], wanted: set[int], *, effects: bool) -> list[Call]:
    """Calls that the wanted slots depend on and, if asked for, those with effects."""
    wanted = set(wanted)
    kept = []
    for call in reversed(calls):
        if (call.effect and effects) or call.out in wanted:
            wanted |= call.reads()
            kept.append(call)
    return kept[::-1]


def _is_function_of_the_others(recorder: Recorder, outputs: dict[Any, int], name: Any) -> bool:
    given = {slot for other, slot in outputs.items() if other != name} | set(recorder.constants)
    if outputs[name] in given:
        return False
    calls = [call for call in recorder.calls if call.out not in given]
    calls = _needed(calls, {outputs[name]}, effects=False)
    made = {call.out for call in calls}
    return not any(call.effect or call.reads() - given - made for call in calls)


def _independent(calls: list[Call], recorder: Recorder) -> set[int]:
    """Slots that depend on no input and no effect, and share no storage with what is written."""
    fixed = set(recorder.constants) - set(range(recorder.num_inputs))
    for call in calls:
        if call.out is None or call.effect or not call.reads() <= fixed:
            continue
        made = tree_leaves(recorder.memory[call.out])
        tensors = [leaf for leaf in made if isinstance(leaf, Tensor)]
        if not any(address(tensor) in recorder.written for tensor in tensors):
            fixed.add(call.out)
    return fixed
