"""A faster collector for Gymnasium environments in this process."""

from amber_trl.collectors.gym_collector import GymCollector

__all__ = ["GymCollector"]
