"""Whether torch's compiler works here, whether it pays, and how to let it work undisturbed."""

import functools
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from amber_trl._checks import check_integer

COMPILE_FROM_FRAMES = 100_000
"""Total frames from which compiling pays. A shorter run takes longer to compile than it saves."""

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
        choice: ``"on"`` and ``"off"`` decide; ``"auto"`` compiles runs of at least 100 000 frames
            where a compiler works, and warns where none does.
        total_frames: the length of the run, in frames, at least 1.
        device: where the networks are.

    Returns:
        what to give :class:`~amber_trl.training.UpdateStep` as ``compile``.

    Raises:
        TypeError: if ``total_frames`` is not an integer.
        ValueError: if ``choice`` is another word, or ``total_frames`` is below 1.
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
    """Compiles one addition to learn whether compilation works here.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or another of torch's.

    Returns:
        None if it works, else the reason and the way out, in one line.
    """
    if device_type not in ("cpu", "cuda"):
        return f"compiled steps run on CPU and CUDA, not on {device_type}"
    try:
        with shielded_children():
            torch.compile(_add_one, fullgraph=True)(torch.zeros(3, device=device_type))
    except Exception as error:  # whatever is missing or broken, the answer is the same
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {' '.join(lines[:2])}"
        return f"{reason}; {COMPILER_NEEDS}"
    return None


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@contextmanager
def shielded_children() -> Iterator[None]:
    """Keeps Ctrl-C and SIGTERM from the processes started inside, such as compilers.

    A terminal or a scheduler sends them to the whole group, and the compilation fails if its
    compiler dies. This process gets them at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
