"""Networks, losses and frames for the tests of the loss."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import LossModule

from amber_trl.modules import categorical_actor, gaussian_actor, value_critic


def networks(
    kind: str = "gaussian", dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[ProbabilisticActor, ValueOperator]:
    """An actor and a critic, small and the same for the same seed."""
    sizes: dict[str, Any] = {"hidden_sizes": (8,)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        critic = value_critic(3, **sizes)
        if kind == "gaussian":
            actor = gaussian_actor(3, 2, **sizes)
        else:
            actor = categorical_actor(3, 4, one_hot=kind == "one_hot", **sizes)
        return actor.to(dtype), critic.to(dtype)


def collect(actor: ProbabilisticActor, rows: int = 16, seed: int = 0) -> TensorDict:
    """Frames as a policy near the actor's would have left them, ``[rows]``."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        dtype = next(actor.parameters()).dtype
        frames: TensorDict = actor(
            TensorDict({"observation": torch.randn(rows, 3).to(dtype)}, [rows])
        )
        for key in ("advantage", "value_target", "state_value"):
            frames[key] = torch.randn(rows, 1).to(dtype)
        frames["action_log_prob"] += 0.3 * torch.randn(rows).to(dtype)
    return frames


def step(loss: LossModule, frames: TensorDictBase) -> tuple[TensorDictBase, dict[str, Tensor]]:
    """A loss's output, and the gradient of its sum for every parameter that has one."""
    loss.zero_grad()
    emitted = loss(frames)
    terms = [value.sum() for key, value in emitted.items() if key.startswith("loss_")]
    torch.stack(terms).sum().backward()
    grads = {
        name: parameter.grad.clone()
        for name, parameter in loss.named_parameters()
        if parameter.grad is not None
    }
    return emitted.detach(), grads
