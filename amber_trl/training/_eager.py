"""The update step as TorchRL's stock loop, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torchrl.objectives import LossModule

from amber_trl.training._guard import NonFiniteGuard
from amber_trl.training._metrics import total_loss


class EagerStep:
    """``loss(minibatch)``, ``backward()`` and ``optimizer.step()``, for any optimiser.

    Args:
        loss: any loss module.
        optimizer: any optimiser over its parameters.
        guard: what a non-finite loss or gradient raises.
        max_grad_norm: the norm above which the gradient is rescaled, or None.
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        guard: NonFiniteGuard,
        max_grad_norm: float | None,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._guard = guard
        self._max_grad_norm = max_grad_norm

    def step(self, minibatch: TensorDictBase, index: torch.Tensor | None) -> TensorDict:
        """Learns from ``minibatch``, which was gathered from ``index``."""
        self._optimizer.zero_grad()
        emitted = self._loss(minibatch)
        total = total_loss(emitted)
        torch.autograd.backward(total)
        metrics: TensorDict = emitted.detach()
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self._max_grad_norm is None:
            norm = torch.cat([g.flatten() for g in gradients]).norm()
        else:
            norm = metrics["grad_norm"] = get_total_norm(gradients)
            clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        # The one place that waits for the device: stock optimisers cannot skip a step there.
        if self._guard.admits(math.isfinite((total.detach() + norm).item())):
            self._optimizer.step()
        self._guard.remember(index)
        return metrics

    def epoch(self, stored: TensorDictBase, indices: Iterable[torch.Tensor]) -> TensorDict:
        """Learns from ``stored[index]`` for each ``index`` in turn."""
        metrics = [self.step(stored[index], index) for index in indices]
        if not metrics:
            raise ValueError(NO_INDICES)
        return torch.stack(metrics)


NO_INDICES = "indices is empty: give one int64 tensor of rows per minibatch"
