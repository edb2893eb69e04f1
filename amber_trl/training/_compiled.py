"""The update step as one compiled graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torchrl.objectives import LossModule

from amber_trl._compiler import COMPILER_NEEDS, shielded_children, why_not_compiled
from amber_trl.training._adam import AdamState, check_supported
from amber_trl.training._cuda_graphs import CudaGraphs
from amber_trl.training._eager import NO_INDICES
from amber_trl.training._graph import PlainModule, Step, Tensors, build_step, compile_step
from amber_trl.training._guard import NonFiniteGuard
from amber_trl.training._metrics import MetricPacker, total_loss

_EXAMPLE_ROWS = 64
_EXAMPLE_STORED = 129
"""The one shape that is compiled; different, so that the two sizes are not taken for one."""


class CompiledStep:
    """Gather, loss, gradients and Adam as one graph, whatever the minibatch size.

    The graph is built at the first call, from the first frames at one fixed size, so that it does
    not depend on how large the first minibatch happens to be; and another one for other keys, or
    other frozen parameters. Building it changes nothing of the loss, whether or not it succeeds.
    torch compiles it anew, at the call in question, for minibatches of one row, of very few or of
    more than 4096, and for entries of another dtype or layout.

    Args:
        loss: a loss module built with ``functional=False``.
        optimizer: an ``Adam`` or ``AdamW``.
        guard: what a non-finite loss or gradient raises.
        max_grad_norm: the norm above which the gradient is rescaled, or None.

    Raises:
        TypeError: if the optimiser is neither ``Adam`` nor ``AdamW``.
        ValueError: if the loss is functional or on a device other than CPU or CUDA, or if the
            optimiser uses an option that is not supported.
        RuntimeError: if there is no working compiler.
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        guard: NonFiniteGuard,
        max_grad_norm: float | None,
    ) -> None:
        _refuse(loss)
        check_supported(optimizer)
        if reason := why_not_compiled(next(loss.parameters()).device.type):
            raise RuntimeError(f"the update step cannot be compiled: {reason}; or compile=False")
        self._loss = loss
        self._optimizer = optimizer
        self._guard = guard
        self._max_grad_norm = max_grad_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._places = [
            (owner, name, parameter)
            for owner in loss.modules()
            for name, parameter in owner._parameters.items()
        ]
        self._graphs: dict[tuple[object, ...], _Graph] = {}

    def step(self, minibatch: TensorDictBase, index: torch.Tensor | None) -> TensorDict:
        """Learns from all rows of ``minibatch``, which were gathered from ``index``."""
        graph = self._graph(minibatch)
        stored, every_row = graph.whole(minibatch)
        packed = graph.updates(stored, self._guard)(every_row)
        self._guard.remember(index)
        return graph.packer.unpack(packed)

    def epoch(self, stored: TensorDictBase, indices: Iterable[torch.Tensor]) -> TensorDict:
        """Learns from the rows ``index`` of ``stored``, for each ``index`` in turn."""
        graph = self._graph(stored)
        update = graph.updates(graph.leaves(stored), self._guard)
        packed = []
        for index in indices:
            packed.append(update(index))
            self._guard.remember(index)
        if not packed:
            raise ValueError(NO_INDICES)
        return graph.packer.unpack(torch.stack(packed))

    def _graph(self, data: TensorDictBase) -> _Graph:
        self._check_parameters()
        entries = data.exclude("index").items(True, True)  # where a minibatch is from, no input
        keys = sorted((key for key, value in entries if isinstance(value, torch.Tensor)), key=str)
        kind = (*(p.requires_grad for p in self._parameters), *keys)
        if kind not in self._graphs:
            rows = torch.arange(_EXAMPLE_STORED, device=data.device) % len(data)
            with shielded_children(), torch.random.fork_rng(), _kept_buffers(self._loss):
                self._graphs[kind] = _Graph(
                    self._loss, self._optimizer, data[rows], keys, self._max_grad_norm
                )
        return self._graphs[kind]

    def _check_parameters(self) -> None:
        now = [p for group in self._optimizer.param_groups for p in group["params"]]
        same = len(now) == len(self._parameters) and all(map(operator.is_, now, self._parameters))
        if not same or any(owner._parameters.get(n) is not p for owner, n, p in self._places):
            raise ValueError(
                "the parameters of the loss or of the optimizer are other tensors than when the "
                "step was made: change them in place (load_state_dict does), or build a new "
                "UpdateStep"
            )


class _Graph:
    """The compiled function, and what gathers its arguments."""

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        example: TensorDictBase,
        keys: Sequence[NestedKey],
        max_grad_norm: float | None,
    ) -> None:
        module = PlainModule(loss)
        emitted, parameters = _examine(loss, optimizer, example[:_EXAMPLE_ROWS])
        if max_grad_norm is not None:
            emitted["grad_norm"] = torch.zeros_like(total_loss(emitted))
        self.packer = MetricPacker(emitted, _EXAMPLE_ROWS)
        self._adam = AdamState(optimizer, parameters)
        self._keys = keys
        self._device = parameters[0].device
        self._every_row: dict[int, torch.Tensor] = {}
        self._copies: dict[int, Tensors] = {}
        step = build_step(
            module,
            module.slots(parameters),
            self._keys,
            self.packer,
            self._adam.decoupled,
            max_grad_norm,
        )
        self._step: Step = compile_step(step)
        try:
            self._run_idle(example)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise RuntimeError(
                f"the compiler failed on {type(loss).__name__}, as is told above: "
                f"{COMPILER_NEEDS}; or use compile=False"
            ) from error
        except torch._dynamo.exc.TorchDynamoException as error:
            raise RuntimeError(
                f"{type(loss).__name__} cannot be compiled as one graph: use compile=False; "
                "what stands in the way is told above"
            ) from error
        if self._device.type == "cuda":
            self._step = CudaGraphs(self._step, list(module.buffers()))

    def leaves(self, data: TensorDictBase) -> Tensors:
        """The entries that the graph reads, in its order."""
        return [_plain(data[key]) for key in self._keys]

    def whole(self, minibatch: TensorDictBase) -> tuple[Tensors, torch.Tensor]:
        """The entries of a minibatch, and the index of all its rows."""
        rows = len(minibatch)
        stored = self.leaves(minibatch)
        if rows not in self._every_row:
            self._every_row[rows] = torch.arange(rows, device=self._device)
        if self._device.type == "cuda":  # a CUDA graph reads where it was captured
            stored = self._copied(stored, rows)
        return stored, self._every_row[rows]

    def _copied(self, stored: Tensors, rows: int) -> Tensors:
        if rows not in self._copies:
            self._copies[rows] = [entry.clone() for entry in stored]
        for copy, entry in zip(self._copies[rows], stored, strict=True):
            copy.copy_(entry)
        return self._copies[rows]

    def updates(
        self, stored: Tensors, guard: NonFiniteGuard
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes an update on the rows of an index, and returns its metrics, packed.

        The optimiser is read here, once for all updates of an epoch.
        """
        adam = self._adam
        read = (adam.parameters, adam.tensors(), adam.hyperparameters(), guard.tensors, stored)
        return torch.no_grad()(functools.partial(self._step, *read))

    def _run_idle(self, example: TensorDictBase) -> None:
        """Builds the graph in a run that changes nothing, because its flag is up."""
        stored = self.leaves(example)
        index = torch.arange(_EXAMPLE_ROWS, device=self._device)
        for tensor in [*stored, index]:
            torch._dynamo.mark_dynamic(tensor, 0)
        self.updates(stored, NonFiniteGuard(self._device, raised=True))(index)


@contextmanager
def _kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Gives buffers that the loss writes in its forward pass back their objects and values."""
    kept = [
        (owner, name, buffer, buffer.clone())
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for owner, name, buffer, value in kept:
            owner._buffers[name] = buffer
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def _plain(entry: torch.Tensor) -> torch.Tensor:
    """The same memory, without the class of a memory-mapped tensor."""
    return entry if type(entry) is torch.Tensor else entry.as_subclass(torch.Tensor)


def _examine(
    loss: LossModule, optimizer: torch.optim.Optimizer, minibatch: TensorDictBase
) -> tuple[TensorDictBase, list[torch.nn.Parameter]]:
    """What the loss emits, and those of the optimiser's parameters that get a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = [p for p in parameters if p.requires_grad]
    with torch.enable_grad():
        emitted = loss(minibatch)
        gradients = torch.autograd.grad(total_loss(emitted), parameters, allow_unused=True)
    used = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return emitted.detach(), used


def _refuse(loss: LossModule) -> None:
    if loss.functional:
        raise ValueError(
            f"{type(loss).__name__} was built with functional=True, and its compiled gradients "
            "would silently be zero: build it with functional=False, or use compile=False"
        )
    devices = {p.device for p in loss.parameters()}
    if len(devices) > 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        raise ValueError(
            f"the loss's parameters are on {sorted(map(str, devices))}, and a compiled step runs "
            "on the CPU or on one CUDA device: move the loss, or use compile=False"
        )
