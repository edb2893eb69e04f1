"""Compiles a recorded actor ahead of time."""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from amber_trl._compiler import COMPILER_NEEDS, shielded_children
from amber_trl.collectors._recording import Recording


class CompiledFrame:
    """A recording's ``each`` as machine code, for observations of one shape and stride only.

    It draws the same random numbers and gives the same outputs up to rounding: some functions, such
    as tanh, are computed by different code from torch's own.
    """

    def __init__(self, recording: Recording, observation: Tensor) -> None:
        self._form = _form(recording)
        example = (*(tensor.detach() for tensor in recording.kept), observation)
        try:
            with (
                shielded_children(),
                warnings.catch_warnings(action="ignore", category=FutureWarning),  # by torch
                tempfile.TemporaryDirectory() as folder,
            ):
                package = torch._inductor.aoti_compile_and_package(
                    torch.export.export(recording.each, example),
                    package_path=str(Path(folder, "frame.pt2")),
                    inductor_configs={"fallback_random": True},
                )
                # Calling the loaded object would search for nested arguments at every frame.
                self._run = torch._inductor.aoti_load_package(package).loader.run
        except Exception as error:
            raise RuntimeError(
                f"the actor cannot be compiled ({type(error).__name__}: {error}): "
                f"{COMPILER_NEEDS}; or pass compile_policy=False"
            ) from error

    def fits(self, recording: Recording) -> bool:
        """Whether it matches a recording, for parameters of their current form."""
        return self._form == _form(recording)

    def begin(self, recording: Recording) -> Callable[[Tensor], Sequence[Tensor]]:
        """The function from an observation to the outputs, for the current parameters."""
        run, kept = self._run, [tensor.detach() for tensor in recording.kept]
        return lambda observation: run([*kept, observation])


def _form(recording: Recording) -> tuple[object, ...]:
    """The operations, and what the machine code assumes and could otherwise read out of bounds."""
    kept = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in recording.kept]
    return recording.each.code, kept
