"""Environments and actors for the collectors' tests, and the equality of batches."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.envs import EnvBase, GymWrapper
from torchrl.modules import IndependentNormal, OneHotCategorical, ProbabilisticActor, TanhNormal

from amber_trl.modules import ObservationNormalizer, gaussian_actor


def single(env_id: str, *, integers: bool = True, **kwargs: Any) -> EnvBase:
    env = quietly(lambda: gym.make(env_id, **kwargs))
    return GymWrapper(env, categorical_action_encoding=integers)


def vector(
    env_id: str,
    num_envs: int,
    mode: AutoresetMode = AutoresetMode.DISABLED,
    *,
    integers: bool = True,
    **kwargs: Any,
) -> EnvBase:
    make_one = lambda: gym.make(env_id, **kwargs)  # noqa: E731
    envs = quietly(lambda: SyncVectorEnv([make_one] * num_envs, autoreset_mode=mode))
    return GymWrapper(envs, categorical_action_encoding=integers)


def quietly(make: Callable[[], Any]) -> Any:
    """SWIG warns when Box2D is first imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return make()


class Float32(nn.Module):
    """A network for observations of any dtype."""

    def __init__(self, observation_size: int, output_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(observation_size, 16), nn.Tanh(), nn.Linear(16, output_size)
        )

    def forward(self, observation: Tensor) -> Tensor:
        output: Tensor = self.layers(observation.float())
        return output


def gaussian(observation_size: int, action_size: int) -> ProbabilisticActor:
    """State-independent deviation, and statistics away from 0 and 1."""
    normalizer = ObservationNormalizer(observation_size)
    normalizer.update(torch.randn(64, observation_size) * 2 + 1)
    actor = gaussian_actor(observation_size, action_size, normalizer=normalizer)
    for parameter in actor.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return actor


def state_dependent(observation_size: int, action_size: int) -> ProbabilisticActor:
    return _drawing(_loc_and_scale(observation_size, action_size), ["loc", "scale"])


def nested(observation_size: int, action_size: int) -> ProbabilisticActor:
    """Writes the parameters of its distribution under nested keys."""
    keys = {name: ("parameters", name) for name in ("loc", "scale")}
    return _drawing(_loc_and_scale(observation_size, action_size), keys)


def squashed(observation_size: int, action_size: int) -> ProbabilisticActor:
    bounds = {"low": -2 * torch.ones(action_size), "high": 2 * torch.ones(action_size)}
    network = _loc_and_scale(observation_size, action_size)
    return _drawing(network, ["loc", "scale"], TanhNormal, distribution_kwargs=bounds)


def integer(observation_size: int, num_actions: int) -> ProbabilisticActor:
    return _drawing(Float32(observation_size, num_actions), ["logits"], Categorical)


def one_hot(observation_size: int, num_actions: int) -> ProbabilisticActor:
    return _drawing(Float32(observation_size, num_actions), ["logits"], OneHotCategorical)


def _loc_and_scale(observation_size: int, action_size: int) -> nn.Module:
    return nn.Sequential(Float32(observation_size, 2 * action_size), NormalParamExtractor())


def _drawing(
    network: nn.Module, keys: Any, distribution: type = IndependentNormal, **kwargs: Any
) -> ProbabilisticActor:
    out_keys = list(keys.values() if isinstance(keys, dict) else keys)
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=out_keys),
        in_keys=keys,
        distribution_class=distribution,
        return_log_prob=True,
        **kwargs,
    )


def assert_same_batch(actual: TensorDictBase, expected: TensorDictBase) -> None:
    """Whether keys, and each key's layout and values, are the same."""
    assert set(actual.keys(True)) == set(expected.keys(True))
    for one, other in ((actual, expected), (actual["next"], expected["next"])):
        assert one.batch_size == other.batch_size
        assert one.names == other.names
        assert one.device == other.device
    for key, value in expected.items(True, True):
        found = actual[key]
        assert (found.dtype, found.shape, found.device) == (value.dtype, value.shape, value.device)
        assert found.is_contiguous(), key
        assert torch.equal(found, value), key
