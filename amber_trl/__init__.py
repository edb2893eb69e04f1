"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_ROOMS = (
    *("functional", "transforms", "modules", "envs", "data", "objectives", "collectors"),
    *("training", "checkpoints", "runs", "evaluation", "errors"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports a name when it is first used; torch and TorchRL take seconds."""
        if name in _ROOMS:
            return import_module(f"amber_trl.{name}")
        if name in __all__:
            rooms = (import_module(f"amber_trl.{room}") for room in _ROOMS)
            return next(getattr(room, name) for room in rooms if name in room.__all__)
        raise AttributeError(f"module 'amber_trl' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*{*globals(), *__all__, *_ROOMS}]
