"""CUDA graphs of a compiled step, one per minibatch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from amber_trl.training._graph import AdamTensors, GuardTensors, Step, Tensors

_WARM_UP_RUNS = 3
_MAX_GRAPHS = 32


@dataclass
class _Captured:
    """A graph, the buffer it reads its index from, what it returns, and what must stay alive."""

    graph: torch.cuda.CUDAGraph
    index: torch.Tensor
    metrics: torch.Tensor
    bound: Tensors


class CudaGraphs:
    """Replays a compiled step from CUDA graphs, captured when a minibatch size first comes up.

    A graph reads and writes the memory it was captured with, and only the index is copied for each
    call. If parameters, optimiser state or buffers have moved (``load_state_dict`` makes new state
    tensors), all graphs are captured again; if the stored entries have, the one in question is.

    Args:
        step: the compiled step; it changes nothing when the guard's flag, ``guard[0]``, is true.
        buffers: what the step reads besides its arguments.
    """

    def __init__(self, step: Step, buffers: Sequence[torch.Tensor]) -> None:
        self._step = step
        self._buffers = list(buffers)
        self._fixed: tuple[int, ...] = ()
        self._captured: dict[tuple[int, ...], _Captured] = {}

    def __call__(
        self,
        parameters: Sequence[torch.Tensor],
        state: AdamTensors,
        hyperparameters: torch.Tensor,
        guard: GuardTensors,
        stored: Tensors,
        index: torch.Tensor,
    ) -> torch.Tensor:
        """Does what the step does."""
        flat = [*parameters, *state[0], *state[1], *state[2], hyperparameters, *guard]
        bound = [*flat, *self._buffers]
        fixed = tuple(t.data_ptr() for t in bound)
        if fixed != self._fixed:
            self._captured.clear()
            self._fixed = fixed
        key = (len(index), len(stored[0]), *(t.data_ptr() for t in stored))
        if key not in self._captured:
            if len(self._captured) == _MAX_GRAPHS:
                del self._captured[next(iter(self._captured))]
            own_index = index.clone()
            arguments = (parameters, state, hyperparameters, guard, stored, own_index)
            self._warm_up(*arguments)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                metrics = self._step(*arguments)
            self._captured[key] = _Captured(graph, own_index, metrics, [*bound, *stored])
        captured = self._captured[key]
        captured.index.copy_(index)
        captured.graph.replay()
        return captured.metrics.clone()

    def _warm_up(
        self,
        parameters: Sequence[torch.Tensor],
        state: AdamTensors,
        hyperparameters: torch.Tensor,
        guard: GuardTensors,
        stored: Tensors,
        index: torch.Tensor,
    ) -> None:
        """Runs idly on a stream of its own, as capture asks: loads kernels, fills workspaces."""
        idle = (torch.ones_like(guard[0]), guard[1].clone(), guard[2].clone())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                self._step(parameters, state, hyperparameters, idle, stored, index)
        torch.cuda.current_stream().wait_stream(stream)
