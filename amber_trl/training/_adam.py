"""Adam and AdamW over the state tensors of ``torch.optim``, written to be compiled."""

from collections.abc import Sequence

import torch

_REFUSED = ("amsgrad", "maximize", "differentiable")


def check_supported(optimizer: torch.optim.Optimizer) -> None:
    """Raises for an optimiser, or an option of one, that cannot be compiled."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, and only torch.optim.Adam and AdamW can "
            "be compiled: use one of them, or compile=False"
        )
    for group in optimizer.param_groups:
        used = [f"{option}=True" for option in _REFUSED if group.get(option)]
        if isinstance(group["lr"], torch.Tensor):
            used.append("a tensor as lr")
        if used:
            raise ValueError(
                f"the optimizer was built with {' and '.join(used)}, which the compiled step does "
                "not support: leave it out (lr is a float there), or use compile=False"
            )
        on_cuda = any(p.is_cuda for p in group["params"])
        if on_cuda and not (group["capturable"] or group["fused"]):
            raise ValueError(
                "on CUDA this optimizer keeps its step count on the CPU, where a CUDA graph "
                "cannot count: build it with capturable=True or fused=True, or use compile=False"
            )


class AdamState:
    """Reads the state of a ``torch.optim.Adam`` or ``AdamW`` at every call.

    Hyperparameters are passed to the graph as a tensor, so annealing them causes no recompilation. The
    state tensors are the optimiser's own, so its ``state_dict`` is always up to date. ``parameters`` are
    those of the optimiser that the loss depends on, in the optimiser's order.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self.parameters = list(parameters)
        self._optimizer = optimizer
        wanted = {id(p) for p in self.parameters}
        self._group_of = [
            number
            for number, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if id(p) in wanted
        ]
        self._values: list[tuple[object, ...]] = []
        self._table = torch.empty(
            len(self.parameters), 5, dtype=torch.float64, device=self.parameters[0].device
        )

    @property
    def decoupled(self) -> list[bool]:
        """Whether each parameter's weight decay is AdamW's."""
        groups = self._optimizer.param_groups
        return [bool(groups[n].get("decoupled_weight_decay")) for n in self._group_of]

    def hyperparameters(self) -> torch.Tensor:
        """Learning rate, two betas, epsilon and weight decay per parameter, ``[parameters, 5]``."""
        groups = self._optimizer.param_groups
        values = [
            (g["lr"], *g["betas"], g["eps"], g["weight_decay"], *(g.get(o) for o in _REFUSED))
            for g in groups
        ]
        if values != self._values:
            check_supported(self._optimizer)
            rows = [values[n][:5] for n in self._group_of]
            self._table.copy_(torch.tensor(rows, dtype=torch.float64))
            self._values = values
        return self._table

    def tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """The optimiser's own ``exp_avg``, ``exp_avg_sq`` and ``step``, each per parameter."""
        state = self._optimizer.state
        entries = [state[p] or self._start(p) for p in self.parameters]
        return (
            [entry["exp_avg"] for entry in entries],
            [entry["exp_avg_sq"] for entry in entries],
            [_as_vector(entry["step"]) for entry in entries],
        )

    def _start(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """Creates the state that ``torch.optim.Adam`` creates at its first step."""
        groups = self._optimizer.param_groups
        fused = any(group["fused"] for group in groups)
        on_device = fused or any(group["capturable"] for group in groups)
        double = torch.get_default_dtype() == torch.float64 and not fused
        entry: dict[str, torch.Tensor] = self._optimizer.state[parameter]
        entry["step"] = torch.zeros(
            (),
            dtype=torch.float64 if double else torch.float32,
            device=parameter.device if on_device else torch.device("cpu"),
        )
        entry["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        entry["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return entry


def _as_vector(step: torch.Tensor) -> torch.Tensor:
    # torch 2.13 silently drops writes of a compiled graph to a float64 scalar on the CPU.
    return step.view(1) if step.dtype == torch.float64 else step


def adam_update(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    state: tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]],
    hyperparameters: torch.Tensor,
    decoupled: Sequence[bool],
    skip: torch.Tensor,
) -> None:
    """One step of Adam, in place, which has no effect if ``skip`` is true.

    Kingma and Ba, arXiv 1412.6980, Algorithm 1; with ``decoupled`` weight decay it is AdamW, arXiv
    1711.05101, Algorithm 2. Bias corrections are in float64, like those that ``torch.optim.Adam``
    computes in Python. State, hyperparameters and ``decoupled`` are those of :class:`AdamState`.
    """
    lr, beta1, beta2, eps, decay = hyperparameters.unbind(1)
    # t <- t + 1
    t = torch.stack([step.reshape(()) for step in state[2]]).to(torch.float64) + 1.0
    step_size = lr / (1.0 - beta1**t)
    correction = (1.0 - beta2**t).sqrt()
    # Stacked values are computed once. Inductor would recompute loose scalars for each element.
    table = torch.stack(
        [step_size, correction, 1.0 - beta1, beta2, 1.0 - beta2, eps, decay, 1.0 - lr * decay]
    )
    for i, (w, g, m, v, step) in enumerate(zip(parameters, gradients, *state, strict=True)):
        size, bias, weight1, keep2, weight2, epsilon, d, shrink = table[:, i].to(w.dtype).unbind()
        start = w * shrink if decoupled[i] else w  # AdamW: w <- (1 - lr d) w
        slope = g if decoupled[i] else g + d * w  # Adam: g <- g + d w
        new_m = m + weight1 * (slope - m)  # m <- b1 m + (1 - b1) g
        new_v = keep2 * v + weight2 * slope * slope  # v <- b2 v + (1 - b2) g^2
        # w <- w - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
        new_w = start - size * (new_m / (new_v.sqrt() / bias + epsilon))
        w.copy_(torch.where(skip, w, new_w))
        m.copy_(torch.where(skip, m, new_m))
        v.copy_(torch.where(skip, v, new_v))
        step.copy_(torch.where(skip, step, step + 1.0))
