"""Reuse past on-policy batches safely: TensorDict-native components for TorchRL."""

from importlib.metadata import version

from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    MultiBatchWriter,
)
from amber_trl.objectives import AmberPPOLoss
from amber_trl.transforms import ISStalenessFilter, Reason, StalenessMetric

__version__ = version("amber_trl")

__all__ = [
    "AdaptiveMinibatchSampler",
    "AmberPPOLoss",
    "EpisodicMinibatchSampler",
    "ISStalenessFilter",
    "MultiBatchReplayBuffer",
    "MultiBatchSampler",
    "MultiBatchWriter",
    "Reason",
    "StalenessMetric",
    "__version__",
]
