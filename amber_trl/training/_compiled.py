"""The update step as one compiled graph: gather, loss, gradients and Adam."""

from __future__ import annotations  # torch cannot trace those of the function inside a step

import functools
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule
from tensordict.nn.functional_modules import _exclude_td_from_pytree
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_leaves
from torchrl.objectives import LossModule

from amber_trl._actors import forked_generators
from amber_trl._compiler import COMPILER_NEEDS, shielded_children, why_not_compiled
from amber_trl.training._adam import AdamState, adam_update, check_supported
from amber_trl.training._guard import NonFiniteGuard, Rows, admit_update, each
from amber_trl.training._metrics import MetricPacker, total_loss

Tensors: TypeAlias = list[torch.Tensor]
Step: TypeAlias = Callable[..., torch.Tensor]
"""Maps parameters, Adam's state, hyperparameters, guard, stored entries and index to metrics."""

_EXAMPLE_ROWS = 64
_EXAMPLE_STORED = 129
"""The one shape that is compiled. Its sizes differ, so that none is taken for another."""
_MAX_CUDA_GRAPHS = 64
_KEPT_GUARDS = {
    *("TENSOR_MATCH", "DUPLICATE_INPUT", "SHAPE_ENV"),
    *("GLOBAL_STATE", "DETERMINISTIC_ALGORITHMS"),
}


class CompiledStep:
    """Gather, loss, gradients and Adam as one graph for any minibatch size.

    The graph is built at the first call, from frames of one fixed size, so that it does not depend on
    the size of the first minibatch. Other keys, or other frozen parameters, get another graph. Building
    one leaves the loss unchanged, whether or not it succeeds.
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        guard: NonFiniteGuard,
        max_grad_norm: float | None,
    ) -> None:
        if loss.functional:
            raise ValueError(
                f"{type(loss).__name__} was built with functional=True, and its compiled gradients "
                "would silently be zero: build it with functional=False, or use compile=False"
            )
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

    def step(self, minibatches: Sequence[TensorDictBase], index: Rows | None) -> TensorDict:
        """Learns from all rows of the one minibatch, which was gathered from ``index``."""
        (minibatch,) = minibatches
        graph = self._graph(minibatch)
        stored, every_row = graph.whole(minibatch)
        packed = graph.updates(stored, self._guard)(every_row)
        self._guard.remember(index)
        return graph.packer.unpack(packed)

    def epoch(self, stored: TensorDictBase, indices: Iterable[Rows]) -> TensorDict:
        """Learns from the rows ``index`` of ``stored``, for each ``index`` in turn."""
        indices = list(indices)
        graph = self._graph(stored, len(each(indices[0])))
        update = graph.updates(graph.leaves(stored), self._guard)
        packed = []
        for index in indices:
            packed.append(update(*each(index)))
            self._guard.remember(index)
        return graph.packer.unpack(torch.stack(packed))

    def _graph(self, data: TensorDictBase, minibatches: int = 1) -> _Graph:
        self._check_parameters()
        # A stock buffer's "index" records where a minibatch comes from; the loss does not read it.
        entries = data.exclude("index").items(True, True)
        keys = sorted((key for key, value in entries if isinstance(value, torch.Tensor)), key=str)
        kind = (minibatches, *(p.requires_grad for p in self._parameters), *keys)
        if kind not in self._graphs:
            rows = torch.arange(_EXAMPLE_STORED, device=data.device) % len(data)
            generators = forked_generators(self._parameters[0].device)
            with shielded_children(), generators, _kept_buffers(self._loss):
                self._graphs[kind] = _Graph(
                    self._loss, self._optimizer, data[rows], keys, self._max_grad_norm, minibatches
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
    """The compiled function, and the gathering of its arguments."""

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        example: TensorDictBase,
        keys: Sequence[NestedKey],
        max_grad_norm: float | None,
        minibatches: int,
    ) -> None:
        sizes = range(_EXAMPLE_ROWS, _EXAMPLE_ROWS + minibatches)
        emitted, parameters = _examine(loss, optimizer, [example[:size] for size in sizes])
        if max_grad_norm is not None:
            emitted["grad_norm"] = torch.zeros_like(total_loss(emitted))
        self.packer = MetricPacker(emitted, _EXAMPLE_ROWS)
        self._adam = AdamState(optimizer, parameters)
        self._keys = keys
        self._device = parameters[0].device
        self._every_row: dict[int, torch.Tensor] = {}
        self._copies: dict[tuple[object, ...], Tensors] = {}
        step = _build_step(loss, parameters, keys, self.packer, self._adam.decoupled, max_grad_norm)
        self._step = _compile(step)
        self._cuda_graphs: _CudaGraphs | None = None
        try:
            self._run_idle(example, sizes)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise RuntimeError(
                f"the compiler failed on {type(loss).__name__}, as reported above: "
                f"{COMPILER_NEEDS}; or use compile=False"
            ) from error
        except torch._dynamo.exc.TorchDynamoException as error:
            raise RuntimeError(
                f"{type(loss).__name__} cannot be compiled as one graph, for the reason reported "
                "above: use compile=False"
            ) from error
        if self._device.type == "cuda":
            self._cuda_graphs = _CudaGraphs(loss)

    def leaves(self, data: TensorDictBase) -> Tensors:
        """The entries that the graph reads, in its order."""
        # The same memory, without the memory-mapped tensor class.
        return [
            entry if type(entry) is torch.Tensor else entry.as_subclass(torch.Tensor)
            for entry in (data[key] for key in self._keys)
        ]

    def whole(self, minibatch: TensorDictBase) -> tuple[Tensors, torch.Tensor]:
        """The entries of a minibatch, and the index of all its rows."""
        rows = len(minibatch)
        stored = self.leaves(minibatch)
        if rows not in self._every_row:
            self._every_row[rows] = torch.arange(rows, device=self._device)
        if self._cuda_graphs is not None:  # they read the memory that they were captured with
            kind = tuple((entry.shape, entry.dtype) for entry in stored)
            if kind not in self._copies:
                self._copies[kind] = [torch.empty_like(entry) for entry in stored]
            for copy, entry in zip(self._copies[kind], stored, strict=True):
                copy.copy_(entry)
            stored = self._copies[kind]
        return stored, self._every_row[rows]

    def updates(self, stored: Tensors, guard: NonFiniteGuard) -> Callable[..., torch.Tensor]:
        """Returns a function that makes an update on the rows of an index and returns packed metrics.

        The function takes one index for each minibatch that the loss reads. The optimiser is read here, once
        for all updates of an epoch.
        """
        adam = self._adam
        read = (adam.parameters, adam.tensors(), adam.hyperparameters(), guard.tensors, stored)
        if self._cuda_graphs is None:
            return torch.no_grad()(functools.partial(self._step, *read))
        return torch.no_grad()(self._cuda_graphs.bind(self._step, *read))

    def _run_idle(self, example: TensorDictBase, sizes: Iterable[int]) -> None:
        """Builds the graph in a run without effect, because the guard's flag is raised."""
        stored = self.leaves(example)
        indices = [torch.arange(size, device=self._device) for size in sizes]
        for tensor in [*stored, *indices]:
            torch._dynamo.mark_dynamic(tensor, 0)
        self.updates(stored, NonFiniteGuard(self._device, raised=True))(*indices)


class _PlainModule(torch.nn.Module):
    """A loss inside a plain module, as ``functional_call`` requires."""

    def __init__(self, loss: LossModule) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *minibatches: TensorDictBase) -> TensorDictBase:
        """The loss's output."""
        emitted: TensorDictBase = self.loss(*minibatches)
        return emitted


def _build_step(
    loss: LossModule,
    parameters: Sequence[torch.Tensor],
    keys: Sequence[NestedKey],
    packer: MetricPacker,
    decoupled: Sequence[bool],
    max_grad_norm: float | None,
) -> Step:
    """Builds the step as a function of tensors only, which updates its arguments in place."""
    module = _PlainModule(loss)
    position = {id(parameter): number for number, parameter in enumerate(parameters)}
    # One name for each place that holds a parameter. With one name per parameter, functional_call would
    # swap a module that actor and critic share twice, and leave the trace's tensors in it.
    slots = [
        (f"{path}.{name}", position[id(parameter)])
        for path, owner in module.named_modules()
        for name, parameter in owner._parameters.items()
        if id(parameter) in position
    ]
    emitted_keys = packer.keys if max_grad_norm is None else packer.keys[:-1]

    def step(
        weights: Sequence[torch.Tensor],
        adam: tuple[Tensors, Tensors, Tensors],
        hyperparameters: torch.Tensor,
        guard: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        stored: Tensors,
        *indices: torch.Tensor,
    ) -> torch.Tensor:
        # minibatch = stored[index]
        entries = [
            {key: value[index] for key, value in zip(keys, stored, strict=True)}
            for index in indices
        ]
        minibatches = tuple(
            TensorDict(entry, batch_size=[index.shape[0]])
            for entry, index in zip(entries, indices, strict=True)
        )

        # g = d/dw sum_k l_k(w)
        def objective(weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
            used = {name: weights[number] for name, number in slots}
            emitted = functional_call(module, used, minibatches, tie_weights=False)
            return total_loss(emitted), [emitted.get(key).detach() for key in emitted_keys]

        gradients, (total, metrics) = grad_and_value(objective, has_aux=True)(weights)

        # g <- g min(1, max_grad_norm / (|g| + 1e-6)), as torch.nn.utils.clip_grad_norm_ does
        norm = functools.reduce(operator.add, [g.square().sum() for g in gradients]).sqrt()
        if max_grad_norm is not None:
            scale = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            gradients = [scale * g for g in gradients]
            metrics = [*metrics, norm]

        # A step that must not be applied still runs, and writes back the old values.
        skip = admit_update(torch.isfinite(total) & torch.isfinite(norm), *guard)
        adam_update(weights, gradients, adam, hyperparameters, decoupled, skip)
        return packer.pack(metrics)

    return step


def _compile(step: Any) -> Step:
    """Compiles ``step`` as one graph that checks only what can change from call to call.

    By default, every call would check about 1500 facts about the loss's modules, which takes longer than
    the step itself. Only the checks of tensors, sizes, torch's global settings and train or eval mode
    are kept. The compiled code's own checks of the same sizes, which take a tenth of a step of 64
    frames, are left out.
    """
    options: dict[str, Any] = {"guard_filter_fn": _keep_guards, "size_asserts": False}
    # torch caches compiled code by code object, and with so few checks left it would mistake another
    # UpdateStep's code for this one's. So each step gets its own code object.
    own = types.FunctionType(
        step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__
    )
    compiled: Step = torch.compile(own, fullgraph=True, options=options)
    return compiled


def _keep_guards(entries: Sequence[Any]) -> list[bool]:
    return [e.guard_type in _KEPT_GUARDS or e.name.endswith(".training") for e in entries]


class _CudaGraphs:
    """Replays a compiled step from CUDA graphs, one per minibatch size.

    A CUDA graph replays what was captured: the same kernels on the same memory. It is captured again if
    arguments or buffers have moved (``load_state_dict`` of an optimiser makes new tensors) or changed
    their shape, or a module has switched between train and eval mode. Each of its first calls makes
    one update like any other.
    """

    def __init__(self, loss: LossModule) -> None:
        self._loss = loss
        self._graphs: dict[tuple[object, ...], tuple[CudaGraphModule, Tensors]] = {}

    def bind(self, step: Step, *read: Any) -> Callable[..., torch.Tensor]:
        """The step as a function of the index alone, for arguments that stay where they are."""
        tensors = [*tree_leaves(read), *self._loss.buffers()]
        modes = [module.training for module in self._loss.modules()]
        captured = (*modes, *((t.data_ptr(), t.shape) for t in tensors))

        def update(*indices: torch.Tensor) -> torch.Tensor:
            key = (*map(len, indices), *captured)
            if key not in self._graphs:
                if len(self._graphs) == _MAX_CUDA_GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
                # It would permanently remove TensorDict from PyTree, and none passes through here.
                with _exclude_td_from_pytree():
                    graph = CudaGraphModule(
                        functools.partial(step, *read), device=indices[0].device
                    )
                self._graphs[key] = graph, tensors  # kept alive, so that no address is reused
            metrics: torch.Tensor = self._graphs[key][0](*indices)
            return metrics

        return update


@contextmanager
def _kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Restores objects and values of the buffers that the loss writes in its forward pass."""
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


def _examine(
    loss: LossModule, optimizer: torch.optim.Optimizer, minibatches: Sequence[TensorDictBase]
) -> tuple[TensorDictBase, list[torch.nn.Parameter]]:
    """The loss's output, and the optimiser's parameters that get a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = [p for p in parameters if p.requires_grad]
    with torch.enable_grad():
        emitted = loss(*minibatches)
        gradients = torch.autograd.grad(total_loss(emitted), parameters, allow_unused=True)
    used = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
    return emitted.detach(), used
