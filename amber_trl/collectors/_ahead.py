"""Compiles a recorded actor ahead of time."""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from amber_trl._compiler import COMPILER_NEEDS, shielded_children
from amber_trl.collectors._program import Program


class CompiledFrame:
    """A program as machine code, which does in one call what the program does in a dozen.

    It draws the same random numbers and gives the same outputs, up to rounding: some functions,
    such as tanh, are computed by other code than torch's own.

    Args:
        program: what to compile, for inputs of the same shapes and strides only.
        inputs: the tensors of a frame.

    Raises:
        RuntimeError: it cannot be compiled, or no compiler works here.
    """

    def __init__(self, program: Program, inputs: Sequence[Tensor]) -> None:
        self.program = program
        self._forms = [_form(tensor) for tensor in program.kept()]
        example = (*inputs, *(tensor.detach() for tensor in program.kept()))
        try:
            with (
                shielded_children(),
                warnings.catch_warnings(action="ignore", category=FutureWarning),  # torch's own
                tempfile.TemporaryDirectory() as folder,
            ):
                package = torch._inductor.aoti_compile_and_package(
                    torch.export.export(_Closed(program), example),
                    package_path=str(Path(folder, "frame.pt2")),
                    inductor_configs={"fallback_random": True},
                )
                # Calling what is loaded would look for nested arguments at every frame.
                self._run = torch._inductor.aoti_load_package(package).loader.run
        except Exception as error:
            raise RuntimeError(
                f"the actor cannot be compiled ({type(error).__name__}: {error}): "
                f"{COMPILER_NEEDS}; or do not compile it (compile_policy=False)"
            ) from error

    def fits(self, program: Program) -> bool:
        """Whether it is the code of a program, whose parameters have the form they had."""
        return program is self.program and self._forms == [_form(t) for t in program.kept()]

    def begin(self) -> Callable[..., Sequence[Tensor]]:
        """The function from the inputs of a frame to its outputs, until the parameters change."""
        run, kept = self._run, [tensor.detach() for tensor in self.program.kept()]
        return lambda *inputs: run([*inputs, *kept])


def _form(tensor: Tensor) -> tuple[object, ...]:
    """What the code takes for granted, and would read out of bounds without."""
    return tensor.dtype, tensor.shape, tensor.stride()


class _Closed(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self._closed = program.closed

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._closed(*tensors)
