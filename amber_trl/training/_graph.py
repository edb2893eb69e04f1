"""Gather, loss, gradients and Adam as one function of tensors, and how it is compiled."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch.func import functional_call, grad_and_value
from torchrl.objectives import LossModule

from amber_trl.training._adam import adam_update
from amber_trl.training._guard import admit_update
from amber_trl.training._metrics import MetricPacker, total_loss

Tensors: TypeAlias = list[torch.Tensor]
AdamTensors: TypeAlias = tuple[Tensors, Tensors, Tensors]
GuardTensors: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Step: TypeAlias = Callable[
    [Sequence[torch.Tensor], AdamTensors, torch.Tensor, GuardTensors, Tensors, torch.Tensor],
    torch.Tensor,
]
"""Of parameters, Adam's state, hyperparameters, guard, stored entries and index; the metrics."""

_KEPT_GUARDS = {
    *("TENSOR_MATCH", "DUPLICATE_INPUT", "SHAPE_ENV"),
    *("GLOBAL_STATE", "DETERMINISTIC_ALGORITHMS"),
}


class PlainModule(torch.nn.Module):
    """A loss under a plain module, as ``functional_call`` wants it."""

    def __init__(self, loss: LossModule) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """What the loss emits."""
        emitted: TensorDictBase = self.loss(minibatch)
        return emitted

    def slots(self, parameters: Sequence[torch.Tensor]) -> list[tuple[str, int]]:
        """The name of every place that holds one of ``parameters``, and its position there.

        Once per place: ``functional_call`` would swap a module that actor and critic share twice,
        and leave it with the tensors of the trace.
        """
        position = {id(parameter): number for number, parameter in enumerate(parameters)}
        return [
            (f"{path}.{name}", position[id(parameter)])
            for path, module in self.named_modules()
            for name, parameter in module._parameters.items()
            if id(parameter) in position
        ]


def build_step(
    module: PlainModule,
    slots: Sequence[tuple[str, int]],
    keys: Sequence[NestedKey],
    packer: MetricPacker,
    decoupled: Sequence[bool],
    max_grad_norm: float | None,
) -> Step:
    """Writes the step out as a function of tensors alone.

    Args:
        module: the loss.
        slots: where in ``module`` each parameter to update is used, and its position.
        keys: the names of the stored entries.
        packer: what the metrics are packed with.
        decoupled: per parameter, whether its weight decay is AdamW's.
        max_grad_norm: the norm above which the gradient is rescaled, or None.

    Returns:
        a function that updates its first, second and fourth argument in place.
    """
    emitted_keys = packer.keys if max_grad_norm is None else packer.keys[:-1]

    def step(
        parameters: Sequence[torch.Tensor],
        state: AdamTensors,
        hyperparameters: torch.Tensor,
        guard: GuardTensors,
        stored: Tensors,
        index: torch.Tensor,
    ) -> torch.Tensor:
        entries = {key: value[index] for key, value in zip(keys, stored, strict=True)}
        minibatch = TensorDict(entries, batch_size=[index.shape[0]])

        def objective(weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
            used = {name: weights[position] for name, position in slots}
            emitted = functional_call(module, used, (minibatch,), tie_weights=False)
            return total_loss(emitted), [emitted.get(key).detach() for key in emitted_keys]

        gradients, (total, metrics) = grad_and_value(objective, has_aux=True)(parameters)
        norm = _norm(gradients)
        if max_grad_norm is not None:
            scale = (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            gradients = [scale * g for g in gradients]
            metrics = [*metrics, norm]
        skip = admit_update(torch.isfinite(total) & torch.isfinite(norm), *guard)
        adam_update(parameters, gradients, state, hyperparameters, decoupled, skip)
        return packer.pack(metrics)

    return step


def _norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(operator.add, [t.square().sum() for t in tensors]).sqrt()


def compile_step(step: Step) -> Step:
    """Compiles ``step`` as one graph that checks only what may change from call to call.

    By default every call would check about 1 500 facts about the loss's modules, which takes
    longer than the step itself; kept are those of tensors, sizes and train or eval mode. The
    compiled code's own checks of the same sizes, a tenth of a step of 64 frames, are left out.

    Args:
        step: what ``build_step`` returned.

    Returns:
        the compiled function; it is built at its first call.
    """
    options: dict[str, Any] = {"guard_filter_fn": _keep_guards, "size_asserts": False}
    # Compiled code belongs to a code object: with so few checks, another step's would pass.
    own = types.FunctionType(
        step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__
    )
    compiled: Step = torch.compile(own, fullgraph=True, options=options)
    return compiled


def _keep_guards(entries: Sequence[Any]) -> list[bool]:
    return [e.guard_type in _KEPT_GUARDS or e.name.endswith(".training") for e in entries]
