"""What a saved state must be before any of it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


def check_keys(name: str, state: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise ``KeyError`` with ``name`` and the keys that a state lacks."""
    missing = [key for key in keys if key not in state]
    if missing:
        raise KeyError(
            f"{missing} missing of the state of {name}, which has {[*state]}: give all that "
            "state_dict() returned"
        )


def check_count(name: str, value: Any, largest: int, step: int = 1) -> int:
    """Return ``value`` if it is a multiple of ``step`` in ``[0, largest]``, raise if not."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= largest or value % step:
        raise ValueError(
            f"{name}={value!r} of the state must be a multiple of {step} in [0, {largest}]: "
            "the state is damaged, or of another buffer; load another one"
        )
    return int(value)


def check_active(active: Any, stored: int | None) -> None:
    """Raise unless these are ascending slots of ``stored`` batches (None: of any number)."""
    if active is None:
        return
    listed = isinstance(active, list | tuple) and len(active) > 0
    if (
        not listed
        or any(isinstance(slot, bool) or not isinstance(slot, int) or slot < 0 for slot in active)
        or sorted({*active}) != [*active]
    ):
        raise ValueError(
            f"active={active} of the state must be None or ascending slot numbers: load another one"
        )
    if stored is not None and active[-1] >= stored:
        raise ValueError(
            f"active={active} of the state, which holds {stored} batches, must be slots below "
            f"{stored}: load another one"
        )


def check_epoch(epoch: Any, rows: int | None) -> None:
    """Raise unless this is ``int64`` ``[minibatches, rows]``, of ``rows`` rows (None: any)."""
    if epoch is None:
        return
    if not isinstance(epoch, Tensor) or epoch.dtype != torch.int64 or epoch.ndim != 2:
        found = (tuple(epoch.shape), epoch.dtype) if isinstance(epoch, Tensor) else epoch
        raise ValueError(
            f"epoch={found} of the state must be None or int64 [minibatches, rows]: load another"
        )
    low, high = (int(bound) for bound in epoch.aminmax()) if epoch.numel() else (0, -1)
    if not epoch.numel() or low < 0 or (rows is not None and high >= rows):
        limit = "" if rows is None else f" and below {rows}, the rows stored"
        raise ValueError(
            f"epoch of the state, of shape {tuple(epoch.shape)} with rows {low} to {high}: rows "
            f"must be 0 or more{limit}; load another state"
        )


def check_generator(saved: Any, generator: torch.Generator | None) -> None:
    """Raise unless ``saved``, a pair of state and device, is one of a generator like this one."""
    if saved is None and generator is None:
        return
    try:
        state, device = saved
        torch.Generator(device if generator is None else generator.device).set_state(state)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = "no generator" if generator is None else f"a generator on {generator.device}"
        raise ValueError(
            f"_rng={saved!r:.80} of the state does not fit a buffer with {kind}: give the state of "
            "a buffer with such a one, or set_rng() one like the saved one's first"
        ) from error


def check_transforms(transform: nn.Module, saved: Any) -> None:
    """Raise unless this transform could load the state ``saved``."""
    try:
        deepcopy(transform).load_state_dict(saved)
    except (TypeError, RuntimeError, KeyError, AttributeError) as error:
        found = [*saved] if isinstance(saved, Mapping) else saved
        raise ValueError(
            f"_transforms={found} of the state must have the entries "
            f"{[*transform.state_dict()]} of this buffer's transforms: build the buffer with the "
            "transforms of the saved one"
        ) from error
