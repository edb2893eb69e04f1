"""What a number, and a batch, must be before it may enter a buffer."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor

from amber_trl.errors import NonFiniteDataError


def check_positive(name: str, value: int) -> int:
    """Return ``value`` if it is a positive integer, raise ``ValueError`` with ``name`` if not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} is out of range: give a positive integer")
    return value


def check_divides(name: str, value: int, frames_per_batch: int) -> int:
    """Return ``value`` if it is a positive divisor of ``frames_per_batch``, raise if not."""
    check_positive(name, value)
    if frames_per_batch % value:
        raise ValueError(
            f"{name}={value} does not divide frames_per_batch={frames_per_batch}: choose one that "
            "does, so that every minibatch is whole"
        )
    return value


def check_batch(frames: TensorDictBase, frames_per_batch: int) -> None:
    """Raise unless this is a TensorDict of ``[frames_per_batch]`` frames with some key."""
    if not isinstance(frames, TensorDictBase):
        raise TypeError(f"batch of type {type(frames).__name__}: give a TensorDict")
    if frames.ndim != 1:
        raise ValueError(
            f"batch of shape {tuple(frames.shape)}: give [frames], or [environments, time] to a "
            "MultiBatchReplayBuffer"
        )
    if len(frames) != frames_per_batch:
        raise ValueError(
            f"batch of {len(frames)} frames given to a buffer of frames_per_batch="
            f"{frames_per_batch}: collect {frames_per_batch} frames per iteration, or build the "
            f"buffer with frames_per_batch={len(frames)}"
        )
    if frames.is_empty():
        raise KeyError(
            "batch without a key, or keys=[]: give and keep what the loss and the filter read"
        )


def flatten_batch(tensordict: TensorDictBase) -> TensorDictBase:
    """``[N]`` or ``[E, T]`` as ``[N]``, environment by environment."""
    if isinstance(tensordict, TensorDictBase) and tensordict.ndim == 2:
        return tensordict.reshape(-1)
    return tensordict


def check_finite_frames(frames: TensorDictBase) -> None:
    """Raise by the name of the first floating key with a NaN or an infinity."""
    for key, value in frames.items(True, True):
        if isinstance(value, Tensor) and value.is_floating_point():
            finite = value.isfinite()
            if not finite.all():
                rows = (
                    (~finite.flatten(1).all(1)).nonzero().flatten()
                    if value.ndim > 1
                    else (~finite).nonzero().flatten()
                )
                raise NonFiniteDataError(
                    f"{key!r} is not finite in {len(rows)} of {len(frames)} frames, the first "
                    f"being frame {int(rows[0])}: nothing was stored; find where it comes from, "
                    "or build the buffer with check_finite=False to store it all the same"
                )


def select_keys(frames: TensorDictBase, keys: Sequence[NestedKey]) -> TensorDictBase:
    """The frames with these keys only."""
    missing = [key for key in keys if frames.get(key, None) is None]
    if missing:
        raise KeyError(
            f"{missing} missing of the keys={list(keys)} that the buffer keeps: the batch has "
            f"{[*frames.keys(True, True)]}; compute what is missing before extend (an advantage by "
            "GAE, a log-probability by return_log_prob=True), or leave it out of keys="
        )
    return frames.select(*keys)


def check_layout(frames: TensorDictBase, stored: TensorDictBase) -> None:
    """Raise unless keys, shapes and dtypes of a batch are those of the stored ones."""
    new, old = _layout(frames), _layout(stored)
    if new.keys() != old.keys():
        raise KeyError(
            f"keys differ from the stored batches: missing {sorted(old.keys() - new.keys(), key=str)}, "
            f"added {sorted(new.keys() - old.keys(), key=str)}; give every batch the same keys, or "
            "name those to keep with keys="
        )
    for key, layout in new.items():
        if layout != old[key]:
            raise ValueError(
                f"{key!r} has shape {layout[0]} and dtype {layout[1]} per frame, stored batches "
                f"have {old[key][0]} and {old[key][1]}: give every batch the same layout"
            )


def _layout(frames: TensorDictBase) -> dict[NestedKey, tuple[tuple[int, ...], object]]:
    return {
        unravel_key(key): (tuple(value.shape[1:]), value.dtype)
        for key, value in frames.items(True, True)
    }
