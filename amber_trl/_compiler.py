"""torch's compiler: whether it works here, and how to let it work undisturbed."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch

COMPILER_NEEDS = (
    "a C++ compiler is needed (on Debian and Ubuntu: g++ and python3-dev), and a sound cache "
    "(after a crash or a full disk, remove the directory that TORCHINDUCTOR_CACHE_DIR names, by "
    "default torchinductor_USER among the temporary files)"
)


@functools.cache
def why_not_compiled(device_type: str) -> str | None:
    """Compiles one addition to learn whether compilation works here.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or another of torch's.

    Returns:
        None if it works, else the reason and what to do, in one line.
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
    """Lets no Ctrl-C and no SIGTERM reach the processes started inside, such as compilers.

    A terminal or a scheduler sends them to the whole group, and a compiler that dies fails the
    compilation. This process gets them at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
