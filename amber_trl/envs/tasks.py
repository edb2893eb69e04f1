"""The twelve tasks of the study."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Task:
    """One of the twelve tasks of the AMBER paper (Han & Sung, arXiv 1710.04423), in its current version.

    Args:
        env_id: Gymnasium id that stands for the task here.
        paper_id: its id in Gym when the paper was written.
        change: how it differs from the paper's task; empty if practically not at all.

    Example:
        >>> from amber_trl.envs import TASKS
        >>> task = TASKS["Hopper-v5"]
        >>> task.paper_id, task.paper_name
        ('Hopper-v1', 'Hopper')
    """

    env_id: str
    paper_id: str
    change: str = ""

    @property
    def paper_name(self) -> str:
        """Name in the paper's tables, such as ``Walker2d``."""
        return self.paper_id.rpartition("-")[0]


_TASKS = (
    Task("BipedalWalker-v3", "BipedalWalker-v2"),
    Task("BipedalWalkerHardcore-v3", "BipedalWalkerHardcore-v2", "lidar works since v3"),
    Task("HalfCheetah-v5", "HalfCheetah-v1"),
    Task("Hopper-v5", "Hopper-v1", "return differs by up to 1"),
    Task("Humanoid-v5", "Humanoid-v1", "observation of 348 numbers, was 376"),
    Task("HumanoidStandup-v5", "HumanoidStandup-v1", "observation of 348 numbers, was 376"),
    Task(
        "InvertedDoublePendulum-v5",
        "InvertedDoublePendulum-v1",
        "observation of 9 numbers, was 11; return differs by up to 10",
    ),
    Task("InvertedPendulum-v5", "InvertedPendulum-v1", "return differs by up to 1"),
    Task("Pendulum-v1", "Pendulum-v0"),
    Task("Reacher-v5", "Reacher-v1", "return higher by 0.1 to 0.2; Reacher-v4 has the old one"),
    Task("Swimmer-v5", "Swimmer-v1"),
    Task("Walker2d-v4", "Walker2d-v1", "v5 would change the friction of the right foot"),
)

TASKS: Mapping[str, Task] = MappingProxyType({task.env_id: task for task in _TASKS})
"""The twelve tasks of the study by Gymnasium id."""
