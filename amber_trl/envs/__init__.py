"""The tasks of the study, environments made of them, and their simulators' state."""

from amber_trl.envs.factory import SyncGymWrapper, make_env
from amber_trl.envs.simulators import SimulatorState
from amber_trl.envs.tasks import TASKS, Task

__all__ = ["TASKS", "SimulatorState", "SyncGymWrapper", "Task", "make_env"]
