"""Losses."""

from amber_trl.objectives.ppo import AmberPPOLoss

__all__ = ["AmberPPOLoss"]
