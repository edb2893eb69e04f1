"""Checks of the batches, storage and sampler of a multi-batch buffer."""

from collections.abc import Callable, Sequence

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, Storage

from amber_trl._checks import check_integer
from amber_trl.data.advantages import RecomputedAdvantages
from amber_trl.errors import NonFiniteDataError
from amber_trl.transforms.staleness import ISStalenessFilter


def check_divides(name: str, value: int, frames_per_batch: int) -> int:
    """Return ``value`` if it is a positive divisor of ``frames_per_batch``; raise otherwise."""
    value = check_integer(name, value)
    if frames_per_batch % value:
        raise ValueError(
            f"{name}={value} does not divide frames_per_batch={frames_per_batch}: choose one that "
            "does, so that every minibatch is whole"
        )
    return value


def refuse_filter(transforms: nn.Module) -> None:
    """Raise ``TypeError`` if a staleness filter is among a buffer's transforms."""
    if any(isinstance(module, ISStalenessFilter) for module in transforms.modules()):
        raise TypeError(
            "ISStalenessFilter given as a transform, where it would see minibatches only: give it "
            "to MultiBatchReplayBuffer as staleness="
        )


def check_advantages(
    advantages: RecomputedAdvantages | None, staleness: ISStalenessFilter | None
) -> RecomputedAdvantages | None:
    """Return ``advantages`` if the filter provides what it needs; raise otherwise."""
    if advantages is None:
        return None
    if not isinstance(advantages, RecomputedAdvantages):
        raise TypeError(f"advantages={advantages!r}: give a RecomputedAdvantages")
    if staleness is None:
        raise ValueError(
            "advantages= without staleness=, but refresh() recomputes them: give the buffer an "
            "ISStalenessFilter too, with report_only=True to drop nothing"
        )
    key = advantages.proximal_log_prob_key
    if advantages.reads_ratios and staleness.proximal_log_prob_key != key:
        raise ValueError(
            f"advantages= reads {key!r}, but the filter has proximal_log_prob_key="
            f"{staleness.proximal_log_prob_key!r}: give both the same key"
        )
    return advantages


def make_storage(storage: Storage | Callable[[], Storage] | None, rows: int) -> Storage:
    """The storage given, made by a function, or new; it must have ``rows`` rows."""
    if storage is None:
        return LazyTensorStorage(rows)
    made = storage if isinstance(storage, Storage) else storage()
    if getattr(made, "max_size", None) != rows:
        raise ValueError(
            f"storage {type(made).__name__} of max_size={getattr(made, 'max_size', None)}: it must "
            f"have num_batches * frames_per_batch = {rows} rows, as LazyTensorStorage({rows}) has"
        )
    return made


def make_generator(storage: Storage) -> torch.Generator:
    """A generator on the storage's device, seeded from torch's global one."""
    generator = torch.Generator(device=storage_device(storage))
    return generator.manual_seed(int(torch.randint(2**63 - 1, ()).item()))


def storage_device(storage: Storage) -> torch.device:
    """The device of a storage's rows; the CPU while it is still undecided."""
    device = getattr(storage, "device", None)
    return torch.device("cpu" if device in (None, "auto") else device)


def check_tensordict(batch: object) -> None:
    """Raise ``TypeError`` unless ``batch`` is a TensorDict."""
    if not isinstance(batch, TensorDictBase):
        raise TypeError(f"batch of type {type(batch).__name__}: give a TensorDict")


def check_batch(frames: TensorDictBase, frames_per_batch: int) -> None:
    """Raise unless ``frames`` is a TensorDict of ``[frames_per_batch]`` frames."""
    check_tensordict(frames)
    if frames.ndim != 1:
        raise ValueError(
            f"batch of shape {tuple(frames.shape)}: give [frames], or [environments, time] to a "
            "MultiBatchReplayBuffer"
        )
    if len(frames) != frames_per_batch:
        raise ValueError(
            f"batch of {len(frames)} frames given to a buffer of frames_per_batch="
            f"{frames_per_batch}: collect {frames_per_batch} frames per iteration, or build the "
            f"buffer with frames_per_batch={len(frames)}; do not pass a multi-process collector the "
            "buffer as replay_buffer="
        )


def check_finite_frames(frames: TensorDictBase) -> None:
    """Raise with the name of the first floating key that has a NaN or an infinity."""
    for key, value in frames.items(True, True):
        if isinstance(value, Tensor) and value.is_floating_point():
            finite = value.isfinite()
            if not finite.all():
                rows = (~finite.reshape(len(frames), -1).all(1)).nonzero().flatten()
                raise NonFiniteDataError(
                    f"{key!r} is not finite in {len(rows)} of {len(frames)} frames, the first "
                    f"being frame {int(rows[0])}: nothing was stored; find out where it comes from, "
                    "or build the buffer with check_finite=False to store it anyway"
                )


def select_keys(frames: TensorDictBase, keys: Sequence[NestedKey]) -> TensorDictBase:
    """The frames with these keys only."""
    missing = [key for key in keys if frames.get(key, None) is None]
    if missing:
        raise KeyError(
            f"{missing} missing from the batch, but in the buffer's keys={list(keys)}: the batch has "
            f"{[*frames.keys(True, True)]}; compute what is missing before extend (an advantage by "
            "GAE, a log-probability by return_log_prob=True), or leave it out of keys="
        )
    return frames.select(*keys)


def check_layout(frames: TensorDictBase, stored: TensorDictBase) -> None:
    """Raise unless keys, shapes and dtypes of a batch match the stored batches."""
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
