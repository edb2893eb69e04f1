"""Where a loss or gradient that is not finite comes from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torchrl.objectives import LossModule

from amber_trl.training._metrics import total_loss


class NonFiniteCause(NamedTuple):
    """What was not finite, and in which row of the minibatch (None: in no row alone)."""

    quantity: str
    row: int | None


def find_cause(loss: LossModule, minibatch: TensorDictBase) -> NonFiniteCause:
    """Evaluates a minibatch again, at the loss's parameters as they are.

    Looks at the parameters, at what was stored, at each loss term and at each gradient, in this
    order, and then for the first row that shows the same alone. Changes no gradient and no
    generator.

    Args:
        loss: the loss module.
        minibatch: frames of which the loss or a gradient was not finite, ``[rows]``.

    Returns:
        the first quantity found that is not finite.
    """
    for name, parameter in loss.named_parameters():
        if not parameter.isfinite().all():
            return NonFiniteCause(f"the parameter {name}", None)
    for key, value in minibatch.items(True, True):
        if value.is_floating_point() and not value.isfinite().all():
            rows = ~value.isfinite().reshape(len(minibatch), -1).all(1)
            return NonFiniteCause(f"the stored {key!r}", int(rows.nonzero()[0]))
    with torch.random.fork_rng():
        quantity = _evaluate(loss, minibatch)
        for row in range(len(minibatch)):
            # Twice, since a loss may standardise over its minibatch.
            if (alone := _evaluate(loss, minibatch[[row, row]])) is not None:
                return NonFiniteCause(alone, row)
    if quantity is None:
        return NonFiniteCause("nothing on a second evaluation", None)
    return NonFiniteCause(quantity, None)


@torch.enable_grad()
def _evaluate(loss: LossModule, minibatch: TensorDictBase) -> str | None:
    """The first loss term or gradient that is not finite."""
    emitted = loss(minibatch.clone(recurse=False))
    for key, value in emitted.items():
        if key.startswith("loss_") and not value.isfinite().all():
            return key
    named = [(name, p) for name, p in loss.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(total_loss(emitted), [p for _, p in named], allow_unused=True)
    for (name, _), gradient in zip(named, gradients, strict=True):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
    return None if norm.isfinite() else "the norm of the gradient"
