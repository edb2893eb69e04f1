"""Replay of whole on-policy batches."""

from amber_trl.data.active_batches import ActiveBatches
from amber_trl.data.advantages import RecomputedAdvantages
from amber_trl.data.episodic import EpisodicMinibatchSampler
from amber_trl.data.multi_batch import MultiBatchReplayBuffer
from amber_trl.data.samplers import AdaptiveMinibatchSampler, MultiBatchSampler
from amber_trl.data.stratified import StratifiedMinibatchSampler
from amber_trl.data.writers import MultiBatchWriter

__all__ = [
    "ActiveBatches",
    "AdaptiveMinibatchSampler",
    "EpisodicMinibatchSampler",
    "MultiBatchReplayBuffer",
    "MultiBatchSampler",
    "MultiBatchWriter",
    "RecomputedAdvantages",
    "StratifiedMinibatchSampler",
]
