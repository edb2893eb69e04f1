"""The update step and the schedules."""

from amber_trl._compiler import should_compile
from amber_trl.training._guard import NonFiniteError
from amber_trl.training.schedules import LinearSchedule
from amber_trl.training.update import UpdateStep

__all__ = ["LinearSchedule", "NonFiniteError", "UpdateStep", "should_compile"]
