"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""

from importlib.metadata import version

from amber_trl.checkpoints import Checkpoints
from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    MultiBatchWriter,
)
from amber_trl.envs import SimulatorState, make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import (
    ObservationNormalizer,
    categorical_actor,
    gaussian_actor,
    value_critic,
)
from amber_trl.objectives import AmberPPOLoss
from amber_trl.runs import TrainingRun
from amber_trl.training import LinearSchedule, UpdateStep
from amber_trl.transforms import ISStalenessFilter, Reason

__version__ = version("amber_trl")

__all__ = [
    "AdaptiveMinibatchSampler",
    "AmberPPOLoss",
    "Checkpoints",
    "EpisodicMinibatchSampler",
    "GymCollector",
    "ISStalenessFilter",
    "LinearSchedule",
    "MultiBatchReplayBuffer",
    "MultiBatchSampler",
    "MultiBatchWriter",
    "NonFiniteDataError",
    "ObservationNormalizer",
    "Reason",
    "SimulatorState",
    "TrainingRun",
    "UpdateStep",
    "__version__",
    "categorical_actor",
    "gaussian_actor",
    "make_env",
    "value_critic",
]
