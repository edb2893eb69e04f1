"""Environment, actor, critic and normaliser for the loops that the reductions compare."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE

from amber_trl.envs import make_env
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor, value_critic

FRAMES, ENVS, MINIBATCH, EPOCHS = 64, 2, 16, 2


@dataclass
class Parts:
    """What two loops share, rebuilt for each from the same seed."""

    env: EnvBase
    actor: TensorDictModuleBase
    critic: TensorDictModuleBase
    normalizer: ObservationNormalizer | None

    def weights(self) -> dict[str, Tensor]:
        """A copy of parameters and statistics."""
        return {
            f"{name}.{key}": value.clone()
            for name, module in (("actor", self.actor), ("critic", self.critic))
            for key, value in module.state_dict().items()
        }

    def collect(self, iterations: int) -> Collector:
        torch.manual_seed(1)
        return Collector(
            self.env,
            self.actor,
            frames_per_batch=FRAMES,
            total_frames=FRAMES * iterations,
            auto_register_policy_transforms=False,
        )

    def take_in(self, batch: TensorDictBase) -> TensorDictBase:
        if self.normalizer is not None:
            self.normalizer.update(batch["observation"])
        return batch

    def advantage(self) -> GAE:
        return GAE(gamma=0.99, lmbda=0.95, value_network=self.critic, average_gae=True)


def make_parts(
    env_id: str, *, normalizer_dtype: torch.dtype | None = torch.float32, **env_kwargs: Any
) -> Parts:
    """The parts, from seed 0; without a dtype they lack a normaliser."""
    torch.manual_seed(0)
    env = make_env(env_id, ENVS, seed=0, **env_kwargs)
    size = env.observation_spec["observation"].shape[-1]
    normalizer = None
    if normalizer_dtype is not None:
        normalizer = ObservationNormalizer(size, dtype=normalizer_dtype)
    if env_id == "CartPole-v1":
        actor = categorical_actor(size, 2, normalizer=normalizer)
    else:
        actor = gaussian_actor(size, env.action_spec.shape[-1], normalizer=normalizer)
    return Parts(env, actor, value_critic(size, normalizer=normalizer), normalizer)


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """The names under which two sets of weights differ in any bit."""
    assert ours.keys() == theirs.keys()
    return [name for name, value in ours.items() if not torch.equal(value, theirs[name])]
