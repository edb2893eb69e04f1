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
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import (
    ObservationNormalizer,
    categorical_actor,
    gaussian_actor,
    value_critic,
)
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import (
    CheckpointError,
    Checkpoints,
    CollectionState,
    Episode,
    EpisodeRecorder,
    FileRecord,
    LinearSchedule,
    Manifest,
    NonFiniteError,
    PolicyRecord,
    Range,
    Restored,
    RunDirectory,
    StopOnInterrupt,
    TrainingLog,
    UpdateStep,
    best_checkpoint,
    check_fields,
    list_checkpoints,
    read_component,
    should_compile,
    verify_checkpoint,
    verify_run,
)
from amber_trl.transforms import ISStalenessFilter, Reason, StalenessMetric

if TYPE_CHECKING:
    from amber_trl.evaluation import *  # noqa: F403

__version__ = version("amber_trl")

__all__ = [
    "TASKS",
    "AdaptiveMinibatchSampler",
    "AmberPPOLoss",
    "CheckpointError",
    "Checkpoints",
    "CollectionState",
    "Episode",
    "EpisodeRecorder",
    "EpisodicMinibatchSampler",
    "FileRecord",
    "GymCollector",
    "ISStalenessFilter",
    "LinearSchedule",
    "Manifest",
    "MultiBatchReplayBuffer",
    "MultiBatchSampler",
    "MultiBatchWriter",
    "NonFiniteDataError",
    "NonFiniteError",
    "ObservationNormalizer",
    "PolicyRecord",
    "Range",
    "Reason",
    "Restored",
    "RunDirectory",
    "SimulatorState",
    "StalenessMetric",
    "StopOnInterrupt",
    "Task",
    "TrainingLog",
    "UpdateStep",
    "__version__",
    "best_checkpoint",
    "categorical_actor",
    "check_fields",
    "gaussian_actor",
    "list_checkpoints",
    "make_env",
    "read_component",
    "should_compile",
    "value_critic",
    "verify_checkpoint",
    "verify_run",
]
__all__ += evaluation.__all__

if not TYPE_CHECKING:  # what needs pandas is imported on first use

    def __getattr__(name: str) -> Any:
        if name in evaluation.__all__:
            return getattr(evaluation, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
