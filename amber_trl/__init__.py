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
