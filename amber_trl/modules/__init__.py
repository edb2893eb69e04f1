"""Actor, critic and observation normaliser."""

from amber_trl.modules.networks import categorical_actor, gaussian_actor, value_critic
from amber_trl.modules.normalizer import ObservationNormalizer

__all__ = ["ObservationNormalizer", "categorical_actor", "gaussian_actor", "value_critic"]
