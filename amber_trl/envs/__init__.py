"""The tasks of the study, environments for them, and the state of their simulators."""

from amber_trl.envs.factory import SyncGymWrapper, make_env
from amber_trl.envs.simulators import SimulatorState
from amber_trl.envs.tasks import TASKS, Task

__all__ = ["TASKS", "SimulatorState", "SyncGymWrapper", "Task", "make_env"]
