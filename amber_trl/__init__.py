"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from amber_trl import evaluation
from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    MultiBatchWriter,
)
from amber_trl.envs import TASKS, SimulatorState, Task, make_env
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

if TYPE_CHECKING:
    from amber_trl.evaluation import *  # noqa: F403

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
    "SimulatorState",
    "StalenessMetric",
    "StopOnInterrupt",
    "Task",
    "TrainingLog",
    "UpdateStep",
    "__version__",
    "categorical_actor",
    "check_fields",
    "gaussian_actor",
    "make_env",
    "should_compile",
    "value_critic",
]
__all__ += evaluation.__all__

if not TYPE_CHECKING:  # what needs pandas is imported on first use

    def __getattr__(name: str) -> Any:
        if name in evaluation.__all__:
            return getattr(evaluation, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
