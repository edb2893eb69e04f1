"""What a multi-batch buffer may be built of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torchrl.data import LazyTensorStorage, Storage
from torchrl.data.replay_buffers.samplers import Sampler

from amber_trl.data.samplers import storage_device
from amber_trl.transforms.staleness import ISStalenessFilter

REFUSED = {
    "batch_size": "it is minibatch_size times the batches in use",
    "writer": "whole batches are written by its own MultiBatchWriter",
    "prefetch": "prefetched minibatches would come from before a refresh",
    "dim_extend": "[E, T] batches are flattened environment by environment",
}
_PASSED = ("collate_fn", "pin_memory", "checkpointer")


def refuse_arguments(names: Iterable[str]) -> None:
    """Raise ``TypeError`` by the name of the first argument that is not passed on to TorchRL."""
    for name in names:
        if name not in _PASSED:
            reason = REFUSED.get(name, f"of TorchRL's arguments it takes {', '.join(_PASSED)}")
            raise TypeError(f"MultiBatchReplayBuffer takes no {name}=: {reason}")


def refuse_filter(transform: Any) -> None:
    """Raise ``TypeError`` if a transform is a staleness filter or holds one."""
    modules = transform.modules() if isinstance(transform, nn.Module) else ()
    if any(isinstance(module, ISStalenessFilter) for module in modules):
        raise TypeError(
            "ISStalenessFilter given as a transform, where it would see minibatches only: give it "
            "to MultiBatchReplayBuffer as staleness="
        )


def make_storage(storage: Storage | Callable[[], Storage] | None, rows: int) -> Storage:
    """The storage given, or that a function makes, or a new one; it must have ``rows`` rows."""
    if storage is None:
        return LazyTensorStorage(rows)
    made = storage if isinstance(storage, Storage) else storage()
    if getattr(made, "max_size", None) != rows:
        raise ValueError(
            f"storage {type(made).__name__} of max_size={getattr(made, 'max_size', None)}: it must "
            f"have num_batches * frames_per_batch = {rows} rows, as LazyTensorStorage({rows}) has"
        )
    return made


def make_sampler(
    sampler: Sampler | Callable[[], Sampler], frames_per_batch: int, *, filtered: bool
) -> Sampler:
    """The sampler given, or that a function makes; it must fit the buffer and its filter."""
    made = sampler if isinstance(sampler, Sampler) else sampler()
    if filtered and not callable(getattr(made, "set_active", None)):
        raise ValueError(
            f"sampler of type {type(made).__name__} has no set_active, so it cannot leave out what "
            "staleness= drops: use AdaptiveMinibatchSampler, or no staleness"
        )
    frames = getattr(made, "frames_per_batch", frames_per_batch)
    if frames != frames_per_batch:
        raise ValueError(
            f"sampler of frames_per_batch={frames} given to a buffer of frames_per_batch="
            f"{frames_per_batch}: build the sampler with the buffer's number"
        )
    return made


def make_generator(storage: Storage) -> torch.Generator:
    """A generator on the storage's device, seeded from torch's global one."""
    generator = torch.Generator(device=storage_device(storage))
    return generator.manual_seed(int(torch.randint(2**63 - 1, ()).item()))
