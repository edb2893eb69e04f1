"""Runs an actor frame by frame: through TensorDict, or as a recorded list of torch calls."""

import random
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModuleBase,
)
from tensordict.utils import NestedKey
from torch import Tensor, nn

from amber_trl.collectors._program import (
    NotStraightError,
    Program,
    Recorder,
    generator_states,
    same,
    set_generator_states,
)

_PLAIN = (int, float, bool, str, bytes, type(None), Enum, torch.dtype, torch.device)

Inputs = Sequence[Tensor]


class FrameActor:
    """Calls an actor on the first frame of a batch, and runs a recording of it on the others.

    On the first frame the recording must give what the actor gave, bit by bit, and leave the
    generators as the actor left them. Otherwise the actor is recorded anew, and called on every
    frame where that does not help.

    Args:
        policy: a feed-forward TensorDict module.
        action_key: which of its outputs goes to the environment.
        batch_size: the environment's.
        capture: whether to record at all.
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        action_key: NestedKey,
        batch_size: torch.Size,
        *,
        capture: bool,
    ) -> None:
        self.in_keys: list[NestedKey] = list(policy.in_keys)
        self.failure: str | None = None if capture else "capture=False"
        """Why the actor is called on every frame; None if it is not."""
        self._policy = policy
        self._action_key = action_key
        self._batch_size = batch_size
        self._capture = capture
        self._log_prob = _LogProb.of(policy)
        self._program: Program | None = None
        self._fingerprint: object = None
        self._first: dict[NestedKey, Tensor] = {}
        self._records: dict[NestedKey, list[Tensor]] = {}
        self._action_slot = 0
        self._moves_to: torch.device | None = None
        self._appends: list[tuple[Callable[[Tensor], None], int]] = []

    @property
    def device(self) -> torch.device:
        """Where the actor's first parameter or buffer is."""
        first = next(_tensors(self._policy), None)
        return torch.device("cpu") if first is None else first.device

    def call(self, inputs: Inputs) -> dict[NestedKey, Tensor]:
        """Everything that the actor says it writes, for one frame."""
        frame = TensorDict(dict(zip(self.in_keys, inputs, strict=True)), self._batch_size)
        output = self._policy(frame)
        found = ((key, output.get(key, None)) for key in self._policy.out_keys)
        return {key: value for key, value in found if value is not None}

    def begin(self, inputs: Inputs) -> tuple[Tensor, Callable[[Inputs], Tensor]]:
        """Acts on a batch's first frame.

        Args:
            inputs: the frame's tensors on the CPU, in the order of ``in_keys``.

        Returns:
            The action, and the function that acts on each of the other frames.
        """
        device = self.device
        self._moves_to = None if device.type == "cpu" else device
        inputs = self._moved(inputs)
        before = generator_states(device)
        state = _attributes(self._policy), _versions(self._policy)
        self._first = self.call(inputs)
        if self._capture:
            self._renew(inputs, before, state)
        self._records = {key: [value] for key, value in self._first.items()}
        if self._program is None:
            return self._first[self._action_key], self._act_by_call
        slots = self._program.outputs
        self._appends = [
            (self._records[key].append, slot)
            for key, slot in slots.items()
            if slot not in self._program.fixed
        ]
        self._action_slot = slots[self._action_key]
        return self._first[self._action_key], self._act_by_program

    def finish(self, frames: int) -> dict[NestedKey, Tensor]:
        """What the actor gave in the batch, each stacked along a new first dimension."""
        outputs = {}
        for key, records in self._records.items():
            if len(records) == frames:
                outputs[key] = torch.stack(records)
            elif self._program is not None and key in self._program.outputs:
                outputs[key] = records[0].expand(frames, *records[0].shape).clone()
        for key in self._records.keys() - outputs.keys():
            assert self._log_prob is not None
            outputs[key] = self._log_prob(outputs, self._first[key], self._batch_size)
        self._records = {}
        return outputs

    def _act_by_program(self, inputs: Inputs) -> Tensor:
        assert self._program is not None
        slots = self._program(self._moved(inputs))
        for append, slot in self._appends:
            append(slots[slot])
        action: Tensor = slots[self._action_slot]
        return action

    def _act_by_call(self, inputs: Inputs) -> Tensor:
        outputs = self.call(self._moved(inputs))
        for key, records in self._records.items():
            records.append(outputs[key])
        return outputs[self._action_key]

    def _moved(self, inputs: Inputs) -> Inputs:
        if self._moves_to is None:
            return inputs
        return [tensor.to(self._moves_to) for tensor in inputs]

    def _renew(self, inputs: Inputs, before: list[Tensor], state: tuple[object, object]) -> None:
        """Keeps the program if it still does what the actor does; else records another."""
        if state[0] != self._fingerprint:
            self._program, self.failure = None, None
        self._fingerprint = state[0]
        if self.failure is not None:
            return
        after = generator_states(self.device)
        try:
            if state != (_attributes(self._policy), _versions(self._policy)):
                raise NotStraightError("calling it changes its attributes, parameters or buffers")
            if self._program is None or not self._reproduces(inputs, before, after):
                self._program = self._record(inputs, before)
                if not self._reproduces(inputs, before, after):
                    raise NotStraightError("its recorded torch calls do not give what it gives")
        except Exception as error:  # Whatever goes wrong here, calling the actor is right.
            self._program = None
            self.failure = str(error) or repr(error)
        finally:
            set_generator_states(after, self.device)

    def _record(self, inputs: Inputs, before: list[Tensor]) -> Program:
        first, second = (Recorder(inputs, self.device) for _ in range(2))
        others = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            for recorder in (second, first):
                set_generator_states(before, self.device)
                with recorder:
                    outputs = self.call(inputs)
        finally:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002
        derived = None if self._log_prob is None else self._log_prob.key
        return Program(first, second, outputs, derived)

    def _reproduces(self, inputs: Inputs, before: list[Tensor], after: list[Tensor]) -> bool:
        assert self._program is not None
        set_generator_states(before, self.device)
        if not self._program.begin():
            return False
        slots = self._program(inputs)
        return all(
            same(slots[slot], self._first[key]) for key, slot in self._program.outputs.items()
        ) and all(map(torch.equal, after, generator_states(self.device)))


class _LogProb:
    """Log-probability of a whole batch's actions, from the recorded distribution parameters."""

    def __init__(self, module: ProbabilisticTensorDictModule) -> None:
        self._module = module
        self.key: NestedKey = module.log_prob_key

    @classmethod
    def of(cls, policy: nn.Module) -> "_LogProb | None":
        """None unless the actor ends by drawing one action from the parameters that it writes."""
        if not isinstance(policy, ProbabilisticTensorDictSequential):
            return None
        last = policy[-1]
        if not isinstance(last, ProbabilisticTensorDictModule) or not last.return_log_prob:
            return None
        if len(last.log_prob_keys) != 1 or len(last.dist_sample_keys) != 1 or last.num_samples:
            return None
        needed = {*last.in_keys, *last.dist_sample_keys, last.log_prob_key}
        hooked = any(module._forward_hooks for module in (policy, last))
        return None if hooked or not needed <= set(policy.out_keys) else cls(last)

    def __call__(
        self, outputs: dict[NestedKey, Tensor], first: Tensor, batch_size: torch.Size
    ) -> Tensor:
        """Evaluates all frames at once, or one by one where that is not the same to the bit."""
        (sample_key,) = self._module.dist_sample_keys
        needed = {key: outputs[key] for key in (*self._module.in_keys, sample_key)}
        frames = TensorDict(needed, [len(outputs[sample_key]), *batch_size])
        together = self._evaluate(frames, sample_key)
        last = self._evaluate(frames[-1], sample_key)
        if same(together[0], first) and same(together[-1], last):
            return together
        return torch.stack([self._evaluate(frame, sample_key) for frame in frames.unbind(0)])

    def _evaluate(self, frames: TensorDict, sample_key: NestedKey) -> Tensor:
        value: Tensor = self._module.get_dist(frames).log_prob(frames.get(sample_key))
        return value


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _versions(module: nn.Module) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in _tensors(module))


def _attributes(module: nn.Module) -> list[object]:
    """What a module's code may depend on besides its tensors' values."""
    return [
        (id(part), [(name, _identity(value)) for name, value in vars(part).items()])
        for part in module.modules()
    ]


def _identity(value: Any) -> object:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return [
            (key, item if isinstance(item, _PLAIN) else id(item)) for key, item in value.items()
        ]
    if isinstance(value, list | tuple | set):
        return [item if isinstance(item, _PLAIN) else id(item) for item in value]
    return id(value)
