"""Log-probabilities of stored actions: what a distribution says, and what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import CompositeDistribution, set_composite_lp_aggregate
from torch import Tensor, nn
from torch.distributions import Distribution
from torchrl.envs.utils import ExplorationType, set_exploration_type


@contextmanager
def evaluation(actor: nn.Module) -> Iterator[None]:
    """Eval mode and no sampling, each module's own mode restored after."""
    training = [module for module in actor.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            yield
    finally:
        for module in training:
            module.training = True


def joint_log_prob(dist: Distribution, frames: TensorDictBase, keys: Sequence[NestedKey]) -> Tensor:
    """Log-probability of the stored actions, one number per frame."""
    if not isinstance(dist, CompositeDistribution):
        return dist.log_prob(frames.get(keys[0]))
    with set_composite_lp_aggregate(False):
        return sum_per_frame([dist.log_prob(frames.select(*keys))])


def sum_per_frame(log_probs: Sequence[Tensor | TensorDictBase]) -> Tensor:
    """The joint log-probability of the parts of an action."""
    leaves = [
        leaf
        for value in log_probs
        for leaf in ([value] if isinstance(value, Tensor) else value.values(True, True))
    ]
    return leaves[0] if len(leaves) == 1 else torch.stack([x.flatten() for x in leaves]).sum(0)


def check_one_per_frame(name: object, log_prob: Tensor, frames: int) -> None:
    """Raise ``ValueError`` unless there is one floating number per frame."""
    if not log_prob.is_floating_point() or log_prob.numel() != frames:
        raise ValueError(
            f"{name} of shape {tuple(log_prob.shape)} and dtype {log_prob.dtype} for {frames} "
            "frames: expected one floating number per frame; an action of several dimensions "
            "needs their joint log-probability (IndependentNormal, not Normal)"
        )


def device_of(actor: nn.Module) -> torch.device | None:
    """Where an actor computes; ``None`` if it has neither parameters nor buffers."""
    for tensor in (*actor.parameters(), *actor.buffers()):
        return tensor.device
    return None
