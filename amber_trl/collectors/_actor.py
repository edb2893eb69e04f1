"""Runs an actor frame by frame: through TensorDict, or as a recorded list of torch calls."""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from itertools import chain
from types import SimpleNamespace
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
from torch.distributions import Categorical, Normal
from torchrl.modules import IndependentNormal, OneHotCategorical

from amber_trl.collectors._ahead import CompiledFrame
from amber_trl.collectors._program import Program, close, same
from amber_trl.collectors._recorder import (
    FixedShapes,
    NotStraightError,
    Recorder,
    generator_states,
    set_generator_states,
)

_logger = logging.getLogger(__name__)
_PLAIN = (int, float, bool, str, bytes, type(None), Enum, torch.dtype, torch.device)
_ROW_BY_ROW: frozenset[Any] = frozenset((Normal, Categorical, IndependentNormal, OneHotCategorical))
"""Distributions whose log-probability has the same bits for a row alone and among others."""

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
        compile: whether to compile the recording, for an actor on the CPU.
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        action_key: NestedKey,
        batch_size: torch.Size,
        *,
        capture: bool,
        compile: bool,
    ) -> None:
        self.in_keys: list[NestedKey] = list(policy.in_keys)
        self.failure: str | None = None if capture else "capture=False"
        """Why the actor is called on every frame; None if it is not."""
        self._said: str | None = None
        self._policy = policy
        self._action_key = action_key
        self._batch_size = batch_size
        self._capture = capture
        self._log_prob = _LogProb.of(policy)
        self._program: Program | None = None
        self._compile = compile
        self._compiled: CompiledFrame | None = None
        self._frame: Callable[..., Sequence[Tensor]]
        self._fingerprint: object = None
        self._first: dict[NestedKey, Tensor] = {}
        self._records: list[Sequence[Tensor]] = []
        self._moves_to: torch.device | None = None

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
        state = self._state()
        self._first = self.call(inputs)
        if self._capture:
            self._renew(inputs, before, state)
        names = list(self._first) if self._program is None else self._program.outputs
        self._first = {key: value.clone() for key, value in self._first.items()}
        self._records = [tuple(self._first[key] for key in names)]
        if self._program is not None:
            self._frame = self._program.frame
            if self._compile:
                self._use_compiled(self._program, inputs, before)
        make = self._acting_by_call if self._program is None else self._acting_by_program
        return self._first[self._action_key], make()

    def running(self) -> AbstractContextManager[object]:
        """What the frames after the first run in: the recorded calls, without autograd's upkeep.

        The actor itself is spared it, as it might keep a tensor made there, which no gradient
        could pass through later.
        """
        return nullcontext() if self._program is None else torch.inference_mode()

    def finish(self) -> dict[NestedKey, Tensor]:
        """What the actor gave in the batch, each stacked along a new first dimension."""
        records, self._records = self._records, []
        names = list(self._first) if self._program is None else self._program.outputs
        fixed = set() if self._program is None else self._program.fixed
        outputs: dict[NestedKey, Tensor] = {}
        for index, key in enumerate(names):
            if key in fixed:
                value = records[0][index]
                outputs[key] = value.expand(len(records), *value.shape).clone()
            else:
                outputs[key] = torch.stack([record[index] for record in records])
        for key in self._first.keys() - outputs.keys():
            assert self._log_prob is not None
            outputs[key] = self._log_prob(outputs, self._first[key], self._batch_size)
        return outputs

    def _acting_by_program(self) -> Callable[[Inputs], Tensor]:
        assert self._program is not None
        frame, record, moved = self._frame, self._records.append, self._moved
        moves, action = self._moves_to is not None, self._program.outputs.index(self._action_key)

        def act(inputs: Inputs) -> Tensor:
            outputs = frame(*(moved(inputs) if moves else inputs))
            record(outputs)
            return outputs[action]

        return act

    def _acting_by_call(self) -> Callable[[Inputs], Tensor]:
        def act(inputs: Inputs) -> Tensor:
            outputs = self.call(self._moved(inputs))
            # It may return a tensor of its own, to be overwritten by the next call.
            self._records.append(tuple(outputs[key].clone() for key in self._first))
            return outputs[self._action_key]

        return act

    def _moved(self, inputs: Inputs) -> Inputs:
        if self._moves_to is None:
            return inputs
        return [tensor.to(self._moves_to) for tensor in inputs]

    def _state(self) -> tuple[object, ...]:
        """What may change in a call but for torch's generators; its code, so to say, first."""
        drawn = random.getstate(), _identity(np.random.get_state())  # noqa: NPY002
        return _attributes(self._policy), _versions(self._policy), drawn

    def _renew(self, inputs: Inputs, before: list[Tensor], state: tuple[object, ...]) -> None:
        """Keeps the program if it still does what the actor does; else records another."""
        if state[0] != self._fingerprint:
            self._program, self.failure = None, None
        self._fingerprint = state[0]
        if self.failure is not None:
            return
        after = generator_states(self.device)
        try:
            if any(
                part._forward_hooks or part._forward_pre_hooks for part in self._policy.modules()
            ):
                raise NotStraightError("it has forward hooks, which may do more than torch calls")
            if state != self._state():
                raise NotStraightError(
                    "calling it changes its attributes, parameters or buffers, or draws Python's "
                    "or NumPy's random numbers"
                )
            if self._program is None or not self._reproduces(inputs, before, after):
                self._program = self._record(inputs, before)
                if not self._reproduces(inputs, before, after):
                    raise NotStraightError("its recorded torch calls do not give what it gives")
        except Exception as error:  # Whatever goes wrong here, calling the actor is right.
            self._program = None
            self.failure = str(error) or repr(error)
            if self.failure != self._said:
                _logger.warning("the actor is called on every frame, slowly: %s", self.failure)
            self._said = self.failure
        finally:
            set_generator_states(after, self.device)

    def _use_compiled(self, program: Program, inputs: Inputs, before: list[Tensor]) -> None:
        """Takes the compiled program for this batch if it does what the actor did, to rounding."""
        if self._compiled is None or not self._compiled.fits(program):
            if self._compiled is not None:
                _logger.warning("the actor has changed: it is compiled anew, which takes long")
            self._compiled = CompiledFrame(program, inputs)
        after = generator_states(self.device)
        set_generator_states(before, self.device)
        frame = self._compiled.begin()
        outputs = zip(program.outputs, frame(*inputs), strict=True)
        agree = all(close(value, self._first[key]) for key, value in outputs)
        if agree and all(map(torch.equal, after, generator_states(self.device))):
            self._frame = frame
        else:
            _logger.warning("the compiled actor does not give what the actor gives: not used")
        set_generator_states(after, self.device)

    def _record(self, inputs: Inputs, before: list[Tensor]) -> Program:
        first, second = (Recorder(inputs, self.device) for _ in range(2))
        others = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            for recorder in (second, first):
                set_generator_states(before, self.device)
                with recorder, FixedShapes():  # type: ignore[no-untyped-call]
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
        outputs = zip(self._program.outputs, self._program.frame(*inputs), strict=True)
        same_outputs = all(same(value, self._first[key]) for key, value in outputs)
        return same_outputs and all(map(torch.equal, after, generator_states(self.device)))


class _LogProb:
    """Log-probability of a whole batch's actions, from the recorded distribution parameters."""

    def __init__(self, module: ProbabilisticTensorDictModule) -> None:
        self._module = module
        self.key: NestedKey = module.log_prob_key

    @classmethod
    def of(cls, policy: nn.Module) -> "_LogProb | None":
        """None unless the actor ends by drawing one action from parameters that it writes.

        Nor for distributions that need not give the same bits for many frames as for each.
        """
        if not isinstance(policy, ProbabilisticTensorDictSequential):
            return None
        last = policy[-1]
        if not isinstance(last, ProbabilisticTensorDictModule) or not last.return_log_prob:
            return None
        if len(last.log_prob_keys) != 1 or len(last.dist_sample_keys) != 1 or last.num_samples:
            return None
        if last.distribution_class not in _ROW_BY_ROW:
            return None
        needed = {*last.in_keys, *last.dist_sample_keys, last.log_prob_key}
        return cls(last) if needed <= set(policy.out_keys) else None

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


def _identity(value: Any, within: frozenset[int] = frozenset()) -> object:
    """The contents of arrays, generators, and containers at any depth; of others, which one."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().cpu().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return _identity(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _identity(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if id(value) not in within:
        within |= {id(value)}
        if isinstance(value, Mapping):
            return [(key, _identity(item, within)) for key, item in value.items()]
        if isinstance(value, list | tuple | set | deque):
            return [_identity(item, within) for item in value]
        if isinstance(value, SimpleNamespace):
            return _identity(vars(value), within)
    return id(value)
