"""A small PPO problem: seeded networks and minibatches that use only TorchRL."""

from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, LossModule

OBSERVATION_SIZE, ACTION_SIZE = 17, 6
_PPO = {"clip_epsilon": 0.3, "max_importance_ratio": 1e3}


def make_loss(
    loss_type: type[LossModule] = ClipPPOLoss, *, seed: int = 0, **kwargs: Any
) -> LossModule:
    """Two tanh networks under the paper's preset; the same parameters for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = torch.nn.Sequential(*_tanh_layers(2 * ACTION_SIZE), NormalParamExtractor())
        actor = ProbabilisticActor(
            TensorDictModule(network, ["observation"], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        )
        critic = ValueOperator(torch.nn.Sequential(*_tanh_layers(1)), ["observation"])
    preset: dict[str, Any] = {"loss_critic_type": "l2", "entropy_bonus": False}
    if issubclass(loss_type, ClipPPOLoss):
        preset |= _PPO
    return loss_type(actor, critic, **(preset | kwargs))


def _tanh_layers(out: int) -> list[torch.nn.Module]:
    return [
        torch.nn.Linear(OBSERVATION_SIZE, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, out),
    ]


def make_minibatch(rows: int = 64, *, seed: int = 0) -> TensorDict:
    """Frames with the keys that PPO reads, ``[rows]``, in the default dtype."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> torch.Tensor:
        return torch.randn(rows, size, generator=generator)

    return TensorDict(
        {
            "observation": normal(OBSERVATION_SIZE),
            "action": normal(ACTION_SIZE),
            "action_log_prob": normal(1).squeeze(-1) * 0.3 - 8.0,
            "advantage": normal(1),
            "value_target": normal(1),
        },
        [rows],
    )
