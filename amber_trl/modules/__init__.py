"""Actor, critic, observation normaliser and reward scaler."""

from amber_trl.modules.networks import categorical_actor, gaussian_actor, value_critic
from amber_trl.modules.normalizer import ObservationNormalizer
from amber_trl.modules.reward_scaler import RewardScaler

__all__ = [
    "ObservationNormalizer",
    "RewardScaler",
    "categorical_actor",
    "gaussian_actor",
    "value_critic",
]
