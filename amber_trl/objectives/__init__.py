"""Losses."""

from amber_trl.objectives.disc import DISCLoss
from amber_trl.objectives.geppo import GePPOLoss
from amber_trl.objectives.gipo import GIPOLoss
from amber_trl.objectives.ppo import AmberPPOLoss

__all__ = ["AmberPPOLoss", "DISCLoss", "GIPOLoss", "GePPOLoss"]
