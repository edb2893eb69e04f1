"""Writing the states of components by TorchRL's checkpoint, where they fit and can be read again."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.checkpoint import Checkpoint, StateDictCheckpointAdapter

from amber_trl.checkpoints._files import CheckpointError

_STATE = "state"
_MARGIN = 8 * 2**20  # bytes left for file formats, the manifest and the logs beside


class _State:
    """A state that was taken already, for TorchRL's writer."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        return self._state


def write_states(stage: Path, states: Mapping[str, Any]) -> dict[str, str]:
    """Writes each component's file; returns their paths in the checkpoint by component."""
    writer = Checkpoint()
    for name, state in states.items():
        adapter = StateDictCheckpointAdapter(payload_format="torch")
        writer.register(name, _State(state), adapter=adapter)
    try:
        writer.save(stage / _STATE)
    except OSError:
        raise
    except Exception as error:
        reason, free = str(error).partition("\n")[0], shutil.disk_usage(stage).free
        raise CheckpointError(
            f"the states could not be written to {stage}, where {free} bytes are free: {reason}"
        ) from error
    records = Checkpoint.manifest(stage / _STATE)["components"]
    files = {}
    for name in states:
        (file,) = records[name]["files"]
        files[name] = f"{_STATE}/{records[name]['path']}/{file}"
        _check_loadable(name, stage / files[name])
    return files


def _check_loadable(name: str, file: Path) -> None:
    if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(file):
        raise CheckpointError(
            f"the state of component {name!r} holds {', '.join(sorted(unsafe))}, which "
            "torch.load(weights_only=True) refuses: let its state_dict return tensors, numbers, "
            "strings, and lists and dicts of them"
        )


def check_space(directory: Path, states: Mapping[str, Any]) -> None:
    """Refuses to begin what would not fit."""
    needed = sum(_num_bytes(state, set()) for state in states.values()) + _MARGIN
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"a checkpoint needs {needed} bytes, and the disk has {free} free: make room, or "
            "checkpoint elsewhere; nothing was written",
            str(directory),
        )


def _num_bytes(state: Any, seen: set[int]) -> int:
    """Bytes of the storages that ``torch.save`` would write, each once."""
    if isinstance(state, Tensor):
        storage = state.untyped_storage()
        if storage.data_ptr() in seen:
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(state, Mapping):
        return sum(_num_bytes(value, seen) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(_num_bytes(value, seen) for value in state)
    return 0
