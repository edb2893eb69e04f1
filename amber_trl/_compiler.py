"""Whether torch's compiler works here, whether it pays, and how to shield it from signals."""

import functools
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from amber_trl._checks import check_integer

COMPILE_FROM_FRAMES = 100_000
"""Total frames from which compiling pays. Shorter runs take longer to compile than they save."""

COMPILER_NEEDS = (
    "a C++ compiler is needed (on Debian and Ubuntu: g++ and python3-dev), and a sound cache "
    "(after a crash or a full disk, remove the directory that TORCHINDUCTOR_CACHE_DIR names, by "
    "default torchinductor_USER among the temporary files)"
)


def should_compile(
    choice: Literal["auto", "on", "off"],
    *,
    total_frames: int,
    device: torch.device | str = "cpu",
) -> bool:
    """Decides whether a run compiles its update step.

    Args:
        choice: ``"on"`` and ``"off"`` decide. ``"auto"`` compiles runs of at least 100 000 frames if a
            compiler works, and warns if none does.
        total_frames: the length of the run, in frames, at least 1.
        device: device of the networks.

    Returns:
        the value of ``compile`` for :class:`~amber_trl.training.UpdateStep`.

    Raises:
        TypeError: if ``total_frames`` is not an integer.
        ValueError: if ``choice`` is not one of these, or ``total_frames`` is below 1.
        RuntimeError: if ``choice`` is ``"on"`` and no compiler works.

    Examples:
        >>> from amber_trl.training import should_compile
        >>> should_compile("auto", total_frames=2048)
        False
    """
    if choice not in ("auto", "on", "off"):
        raise ValueError(f"choice={choice!r} is unknown: pass 'auto', 'on' or 'off'")
    check_integer("total_frames", total_frames)
    if choice == "off" or (choice == "auto" and total_frames < COMPILE_FROM_FRAMES):
        return False
    reason = why_not_compiled(torch.device(device).type)
    if reason is None:
        return True
    if choice == "on":
        raise RuntimeError(f"the update step cannot be compiled: {reason}; or pass 'off'")
    warnings.warn(
        f"the update step runs eagerly, several times slower than compiled: {reason}",
        stacklevel=2,
    )
    return False


@functools.cache
def why_not_compiled(device_type: str) -> str | None:
    """Compiles one addition; returns None if that works, otherwise the reason and the remedy in one line."""
    if device_type not in ("cpu", "cuda"):
        return f"compiled steps run on CPU and CUDA, not on {device_type}"
    try:
        with shielded_children():
            torch.compile(lambda x: x + 1, fullgraph=True)(torch.zeros(3, device=device_type))
    except Exception as error:  # the answer is the same for anything missing or broken
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {' '.join(lines[:2])}"
        return f"{reason}; {COMPILER_NEEDS}"
    return None


@contextmanager
def shielded_children() -> Iterator[None]:
    """Shields processes started inside the context, such as compilers, from Ctrl-C and SIGTERM.

    A terminal or a scheduler sends them to the whole process group, and compilation fails if its
    compiler dies. This process receives them when the context ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
