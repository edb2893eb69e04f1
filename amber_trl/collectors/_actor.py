"""Runs an actor frame by frame, through TensorDict or as a recorded list of torch calls."""

import logging
import pickle
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

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

from amber_trl._actors import device_of
from amber_trl.collectors._ahead import CompiledFrame
from amber_trl.collectors._recording import NotRecordedError, Recording, alike

_logger = logging.getLogger(__name__)

_BATCH_INVARIANT = {Normal, Categorical, IndependentNormal, OneHotCategorical}
"""Distributions whose log-probability is bit-identical for one row and for a batch."""

_INTERNALS = frozenset(vars(nn.Module()).keys() - {"training"})
"""Attributes in which every module stores its parameters, buffers, submodules and hooks."""

_PLAIN = (
    *(int, float, str, list, tuple, dict, deque, np.ndarray),
    *(random.Random, np.random.Generator, np.random.RandomState, torch.Generator),
)
"""Attribute types that are compared by value; all others are compared by identity."""

Frame = Callable[[Tensor], Sequence[Tensor]]


class FrameActor:
    """Calls an actor on the first frame of a batch, and replays a recording of it on the others.

    On that first frame the recording must reproduce the actor's output bit for bit and leave the
    generators in the same state. Otherwise the actor is called on every frame.
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        observation_key: str,
        action_key: NestedKey,
        batch_size: torch.Size,
        *,
        capture: bool,
        compile: bool,
    ) -> None:
        self.failure: str | None = None if capture else "capture=False"
        """Why the actor is called on every frame; None if it is replayed."""
        self._policy, self._batch_size, self.device = policy, batch_size, _device(policy)
        self._key, self._action_key = observation_key, action_key
        self._capture, self._compile = capture, compile
        self._log_prob = _LogProb.of(policy)
        self._recording: Recording | None = None
        self._compiled: CompiledFrame | None = None
        self._settings: object = None
        self._warned: str | None = None
        self._first: dict[NestedKey, Tensor] = {}
        self._outputs: list[NestedKey] = []
        self._records: list[Sequence[Tensor]] = []

    def call(self, observation: Tensor) -> dict[NestedKey, Tensor]:
        """The values of the actor's ``out_keys`` for one frame."""
        output = self._policy(TensorDict({self._key: observation}, self._batch_size))
        found = ((key, output.get(key, None)) for key in self._policy.out_keys)
        return {key: value for key, value in found if value is not None}

    def begin(self, observation: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The action on a batch's first frame, and the function that acts on the others."""
        device = self.device = _device(self._policy)
        observation = observation.to(device)
        before, state = _generators(device), self._state()
        self._first = {key: value.clone() for key, value in self.call(observation).items()}
        recorded = self._recorded(observation, before, state) if self._capture else None
        frame = recorded or self._called
        self._outputs = list(self._first) if self._recording is None else self._recording.outputs
        self._records = [tuple(self._first[key] for key in self._outputs)]
        record, action = self._records.append, self._outputs.index(self._action_key)

        def act(observation: Tensor) -> Tensor:
            outputs = frame(observation.to(device))
            record(outputs)
            return outputs[action]

        return self._first[self._action_key], act

    def finish(self) -> dict[NestedKey, Tensor]:
        """The actor's outputs in the batch, each stacked along a new first dimension."""
        records, self._records = self._records, []
        columns = zip(self._outputs, zip(*records, strict=True), strict=True)
        outputs = {key: torch.stack(column) for key, column in columns}
        if self._log_prob is not None and self._log_prob.key not in outputs:
            first = self._first[self._log_prob.key]
            outputs[self._log_prob.key] = self._log_prob(outputs, first, self._batch_size)
        return outputs

    def _called(self, observation: Tensor) -> Sequence[Tensor]:
        outputs = self.call(observation)
        # The actor may return a tensor that it keeps, which the next call would overwrite.
        return tuple(outputs[key].clone() for key in self._outputs)

    def _state(self) -> tuple[object, ...]:
        """Everything a call could change, except torch's generators. The actor's settings come first."""
        settings = [
            (name, id(value) if name in _INTERNALS else _content(value))
            for part in self._policy.modules()
            for name, value in vars(part).items()
        ]
        tensors = [*self._policy.parameters(), *self._policy.buffers()]
        forms = [(id(tensor), tensor.device, tensor.dtype, tensor.shape) for tensor in tensors]
        generators = pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002
        return (settings, forms), [tensor._version for tensor in tensors], generators

    def _recorded(
        self, observation: Tensor, before: list[Tensor], state: tuple[object, ...]
    ) -> Frame | None:
        """The function that acts as the actor did on the first frame; None if it cannot be recorded."""
        if state[0] != self._settings:
            self._recording, self.failure, self._settings = None, None, state[0]
        if self.failure is not None:
            return None
        after = _generators(self.device)
        try:
            parts = self._policy.modules()
            if any(part._forward_hooks or part._forward_pre_hooks for part in parts):
                raise NotRecordedError("it has forward hooks, which may do more than torch calls")
            if state != self._state():
                raise NotRecordedError(
                    "calling it changes its attributes, parameters or buffers, or draws Python's "
                    "or NumPy's random numbers"
                )
            frame = None if self._recording is None else self._recording.begin()
            if frame is None:
                _set_generators(before, self.device)
                omitted = None if self._log_prob is None else self._log_prob.key
                self._recording = Recording(lambda: self.call(observation), observation, omitted)
                frame = self._recording.begin()
            if frame is None or not self._agrees(frame, observation, before, after):
                raise NotRecordedError("its recorded torch calls do not reproduce its output")
        except Exception as error:  # Whatever goes wrong here, calling the actor is still correct.
            self._recording = None
            self.failure = str(error) or repr(error)
            if self.failure != self._warned:
                _logger.warning("the actor is called on every frame, slowly: %s", self.failure)
            self._warned = self.failure
            return None
        finally:
            _set_generators(after, self.device)
        return self._compiled_or(frame, observation, before, after) if self._compile else frame

    def _compiled_or(
        self, frame: Frame, observation: Tensor, before: list[Tensor], after: list[Tensor]
    ) -> Frame:
        """The compiled function if it reproduces the actor up to rounding; otherwise ``frame``."""
        assert self._recording is not None
        if self._compiled is None or not self._compiled.fits(self._recording):
            if self._compiled is not None:
                _logger.warning("the actor has changed: it is compiled again, which takes a while")
            self._compiled = CompiledFrame(self._recording, observation)
        compiled = self._compiled.begin(self._recording)
        agrees = self._agrees(compiled, observation, before, after, rtol=1e-5, atol=1e-6)
        _set_generators(after, self.device)
        if not agrees:
            _logger.warning("the compiled actor does not reproduce the actor's output: not used")
        return compiled if agrees else frame

    def _agrees(
        self,
        frame: Frame,
        observation: Tensor,
        before: list[Tensor],
        after: list[Tensor],
        **tolerance: float,
    ) -> bool:
        """Whether a function reproduces the first frame's outputs and draws as many random numbers."""
        assert self._recording is not None
        _set_generators(before, self.device)
        outputs = zip(self._recording.outputs, frame(observation), strict=True)
        same_outputs = all(alike(value, self._first[key], **tolerance) for key, value in outputs)
        return same_outputs and all(map(torch.equal, after, _generators(self.device)))


class _LogProb:
    """Log-probability of a batch's actions, from the recorded distribution parameters."""

    def __init__(self, module: ProbabilisticTensorDictModule) -> None:
        self._module = module
        self._sample_key: NestedKey = module.dist_sample_keys[0]
        self.key: NestedKey = module.log_prob_key

    @classmethod
    def of(cls, policy: nn.Module) -> Self | None:
        """None unless the actor ends by drawing one action from parameters that it writes.

        It is also None for distributions whose bits may differ between many frames and single ones.
        """
        if not isinstance(policy, ProbabilisticTensorDictSequential):
            return None
        last = policy[-1]
        if not isinstance(last, ProbabilisticTensorDictModule) or not last.return_log_prob:
            return None
        one = len(last.log_prob_keys) == len(last.dist_sample_keys) == 1 and not last.num_samples
        if not one or last.distribution_class not in _BATCH_INVARIANT:
            return None
        needed = {*last.in_keys, *last.dist_sample_keys, last.log_prob_key}
        return cls(last) if needed <= set(policy.out_keys) else None

    def __call__(
        self, outputs: dict[NestedKey, Tensor], first: Tensor, batch_size: torch.Size
    ) -> Tensor:
        """Evaluates all frames at once, or one by one if that would not be bit-identical."""
        needed = {key: outputs[key] for key in (*self._module.in_keys, self._sample_key)}
        frames = TensorDict(needed, [len(outputs[self._sample_key]), *batch_size])
        together = self._evaluate(frames)
        if alike(together[0], first) and alike(together[-1], self._evaluate(frames[-1])):
            return together
        return torch.stack([self._evaluate(frame) for frame in frames.unbind(0)])

    def _evaluate(self, frames: TensorDict) -> Tensor:
        return self._module.get_dist(frames).log_prob(frames.get(self._sample_key))


def _content(value: object) -> object:
    try:
        return pickle.dumps(value) if isinstance(value, _PLAIN) else id(value)
    except Exception:  # It holds something that cannot be pickled, such as a lambda.
        return id(value)


def _device(policy: nn.Module) -> torch.device:
    return device_of(policy) or torch.device("cpu")


def _generators(device: torch.device) -> list[Tensor]:
    """States of torch's global generators: the CPU's, and a CUDA device's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_generators(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
