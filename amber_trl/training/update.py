"""One gradient step of a TorchRL loss on a minibatch."""

from __future__ import annotations

import functools
import math
import operator

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.objectives import LossModule


class UpdateStep:
    """Takes one optimiser step on the sum of a loss module's ``loss_*`` entries.

    For parameters ``w`` and loss terms ``l_k`` it computes ``g = d/dw sum_k l_k(w)`` on the
    minibatch, rescales ``g`` to the norm ``max_grad_norm`` where it is longer, and lets the
    optimiser apply it. The result is bit-identical to the loop that TorchRL's documentation
    shows: ``loss(minibatch)``, ``backward()``, ``optimizer.step()``, ``optimizer.zero_grad()``.

    It reads the keys that the loss reads, holds no state of its own, and never waits for the
    device: metrics are tensors, and turning them into numbers is left to the caller.

    Args:
        loss: a TorchRL loss module that emits scalar ``loss_*`` entries.
        optimizer: an optimiser over exactly the parameters of ``loss`` that require a gradient.
        max_grad_norm: the largest Euclidean norm of the whole gradient, positive and finite;
            ``None`` (default) leaves the gradient as it is, which is what the AMBER paper does.

    Raises:
        TypeError: if ``loss`` is not a ``LossModule``.
        ValueError: if the optimiser's parameters are not those of the loss, or if
            ``max_grad_norm`` is not positive and finite.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.objectives import LossModule
        >>> class Regression(LossModule):
        ...     def __init__(self, network):
        ...         super().__init__()
        ...         self.network = network
        ...     def forward(self, tensordict):
        ...         error = self.network(tensordict)["y"] - tensordict["target"]
        ...         return TensorDict({"loss_fit": error.square().mean()})
        >>> network = TensorDictModule(torch.nn.Linear(2, 1), in_keys=["x"], out_keys=["y"])
        >>> loss = Regression(network)
        >>> update = UpdateStep(loss, torch.optim.Adam(loss.parameters(), lr=1e-2))
        >>> minibatch = TensorDict({"x": torch.ones(8, 2), "target": torch.ones(8, 1)}, [8])
        >>> first, second = update(minibatch), update(minibatch)
        >>> bool(second["loss_fit"] < first["loss_fit"])
        True
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = None,
    ) -> None:
        if not isinstance(loss, LossModule):
            raise TypeError(
                f"loss is a {type(loss).__name__}, not a torchrl.objectives.LossModule: "
                "wrap the networks in one, such as ClipPPOLoss"
            )
        if max_grad_norm is not None and not (0.0 < max_grad_norm < math.inf):
            raise ValueError(
                f"max_grad_norm={max_grad_norm} must be positive and finite: "
                "pass None for no clipping"
            )
        _check_same_parameters(loss, optimizer)
        self.loss = loss
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def __call__(self, minibatch: TensorDictBase) -> TensorDict:
        """Takes one step.

        Args:
            minibatch: the frames to learn from, ``[rows]``, with the keys that the loss reads.

        Returns:
            every entry that the loss emits, detached, with batch size ``[]``, and with
            ``max_grad_norm`` also ``grad_norm``, the norm before clipping, shape ``[]``.

        Raises:
            KeyError: if the loss emits no entry whose name starts with ``loss_``.
            ValueError: if such an entry is not a scalar.
        """
        self.optimizer.zero_grad()
        emitted = self.loss(minibatch)
        torch.autograd.backward(total_loss(emitted))
        metrics = emitted.detach()
        if self.max_grad_norm is not None:
            metrics["grad_norm"] = torch.nn.utils.clip_grad_norm_(
                self._parameters, self.max_grad_norm
            )
        self.optimizer.step()
        return metrics

    def __repr__(self) -> str:
        return (
            f"UpdateStep(loss={type(self.loss).__name__}, "
            f"optimizer={type(self.optimizer).__name__}, max_grad_norm={self.max_grad_norm})"
        )


def total_loss(emitted: TensorDictBase) -> torch.Tensor:
    """Adds up the ``loss_*`` entries of what a loss module emitted.

    Args:
        emitted: the output of a TorchRL loss module.

    Returns:
        the sum, a scalar of shape ``[]``.

    Raises:
        KeyError: if there is no such entry.
        ValueError: if one is not a scalar.
    """
    terms = {key: value for key, value in emitted.items() if key.startswith("loss_")}
    if not terms:
        raise KeyError(
            f"the loss emitted {sorted(emitted.keys())}, and no key starts with 'loss_': "
            "name the terms to minimise 'loss_...', as TorchRL's losses do"
        )
    for key, term in terms.items():
        if term.numel() != 1:
            raise ValueError(
                f"{key} has shape {tuple(term.shape)} and must be a scalar: "
                "build the loss with reduction='mean' or 'sum'"
            )
    return functools.reduce(operator.add, terms.values()).reshape(())


def _check_same_parameters(loss: LossModule, optimizer: torch.optim.Optimizer) -> None:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = {id(p): name for name, p in loss.named_parameters()}
    if strangers := len(trained - named.keys()):
        raise ValueError(
            f"{strangers} of the optimizer's {len(trained)} parameters are not the loss's: "
            "build the optimizer from loss.parameters()"
        )
    forgotten = [
        name for name, p in loss.named_parameters() if p.requires_grad and id(p) not in trained
    ]
    if forgotten:
        raise ValueError(
            f"the optimizer lacks the loss's parameters {forgotten}: build it from "
            "loss.parameters(), or call requires_grad_(False) on what is not to be trained"
        )
