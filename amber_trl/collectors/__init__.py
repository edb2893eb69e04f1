"""A fast collector for Gymnasium environments in this process, and the state of a collection."""

from amber_trl.collectors.collection import CollectionState
from amber_trl.collectors.gym_collector import GymCollector

__all__ = ["CollectionState", "GymCollector"]
