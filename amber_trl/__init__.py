"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""

from importlib.metadata import version

from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    MultiBatchWriter,
)
from amber_trl.envs import TASKS, Task, make_env
from amber_trl.evaluation import final_score, speed_score
from amber_trl.modules import (
    ObservationNormalizer,
    categorical_actor,
    gaussian_actor,
    value_critic,
)
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import (
    Episode,
    EpisodeRecorder,
    LinearSchedule,
    NonFiniteError,
    Range,
    RunDirectory,
    StopOnInterrupt,
    TrainingLog,
    UpdateStep,
    check_fields,
    should_compile,
)
from amber_trl.transforms import ISStalenessFilter, Reason, StalenessMetric

__version__ = version("amber_trl")

__all__ = [
    "TASKS",
    "AdaptiveMinibatchSampler",
    "AmberPPOLoss",
    "Episode",
    "EpisodeRecorder",
    "EpisodicMinibatchSampler",
    "GymCollector",
    "ISStalenessFilter",
    "LinearSchedule",
    "MultiBatchReplayBuffer",
    "MultiBatchSampler",
    "MultiBatchWriter",
    "NonFiniteError",
    "ObservationNormalizer",
    "Range",
    "Reason",
    "RunDirectory",
    "StalenessMetric",
    "StopOnInterrupt",
    "Task",
    "TrainingLog",
    "UpdateStep",
    "__version__",
    "categorical_actor",
    "check_fields",
    "final_score",
    "gaussian_actor",
    "make_env",
    "should_compile",
    "speed_score",
    "value_critic",
]
