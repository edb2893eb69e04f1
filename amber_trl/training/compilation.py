"""Whether a run's update step is compiled: decided once, before it starts."""

from __future__ import annotations

import warnings
from typing import Literal

import torch

from amber_trl._compiler import why_not_compiled

COMPILE_FROM_FRAMES = 100_000
"""Total frames from which compiling pays: below, it takes longer than it saves."""


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
        what to give :class:`UpdateStep` as ``compile``.

    Raises:
        ValueError: if ``choice`` is another word, or ``total_frames`` is below 1.
        RuntimeError: if ``choice`` is ``"on"`` and no compiler works.

    Examples:
        >>> should_compile("auto", total_frames=2048)
        False
    """
    if choice not in ("auto", "on", "off"):
        raise ValueError(f"choice={choice!r} is unknown: pass 'auto', 'on' or 'off'")
    if total_frames < 1:
        raise ValueError(f"total_frames={total_frames} must be at least 1")
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
