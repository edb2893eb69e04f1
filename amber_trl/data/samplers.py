"""Samplers that draw minibatches from whole batches, of which only some are in use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from amber_trl.data.states import check_active, check_count, check_epoch, check_keys
from amber_trl.data.validation import check_divides, check_positive

__all__ = ["AdaptiveMinibatchSampler", "EpisodicMinibatchSampler", "MultiBatchSampler"]


class MultiBatchSampler(Sampler):
    """Base of the samplers over a storage that is made of whole batches.

    A storage of ``L * N`` rows is read as ``L`` slots of ``N`` rows. An epoch is drawn at once,
    as a matrix of row indices with one minibatch per row; :meth:`sample` hands out one after the
    other and sets ``ran_out`` with the last, so that TorchRL's ``for minibatch in buffer`` ends
    there. The next :meth:`sample` draws a new epoch.

    Writing to the buffer discards the rest of an epoch and makes every stored batch active again,
    since its slots no longer mean what they did.

    Args:
        frames_per_batch: ``N``, the rows of one slot.

    Raises:
        ValueError: if ``frames_per_batch`` is not a positive integer.

    Examples:
        >>> class InOrder(MultiBatchSampler):
        ...     def minibatch_size(self, batch_size, num_active):
        ...         return batch_size
        ...
        ...     def _draw_epoch(self, slots, batch_size):
        ...         rows = slots[:, None] * self.frames_per_batch + torch.arange(self.frames_per_batch)
        ...         return rows.view(-1, batch_size)
        >>> from torchrl.data import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=InOrder(4), batch_size=2)
        >>> _ = buffer.extend(torch.arange(8))
        >>> buffer.sampler.set_active([1])
        >>> [minibatch.tolist() for minibatch in buffer]
        [[4, 5], [6, 7]]
    """

    def __init__(self, frames_per_batch: int) -> None:
        self.frames_per_batch = check_positive("frames_per_batch", frames_per_batch)
        self._active: tuple[int, ...] | None = None
        self._mask_length: int | None = None
        self._batch_size = 0
        self.discard_epoch()

    @abstractmethod
    def _draw_epoch(self, slots: Tensor, batch_size: int) -> Tensor:
        """Row indices ``[minibatches, rows]`` of one epoch over ``slots``."""

    @abstractmethod
    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch when ``num_active`` batches are in use."""

    def set_active(self, slots: Sequence[int] | Tensor | None) -> None:
        """Choose the batches in use; the rest of a running epoch is discarded.

        Args:
            slots: slot numbers, or a boolean tensor ``[stored batches]``; ``None`` for every
                stored batch.

        Raises:
            TypeError: if a slot is no integer.
            ValueError: if no slot is in use, a number is negative or repeated, or a tensor is not
                one-dimensional. A mask of another number of batches than stored raises when
                sampling.
        """
        self._active = None if slots is None else _slot_numbers(slots)
        is_mask = isinstance(slots, Tensor) and slots.dtype == torch.bool
        self._mask_length = len(slots) if slots is not None and is_mask else None
        self.discard_epoch()

    @property
    def active(self) -> tuple[int, ...] | None:
        """Slots in use, ascending; ``None`` when every stored batch is."""
        return self._active

    def num_active(self, storage: Storage) -> int:
        """Number of batches in use among those stored."""
        if self._active is not None:
            return len(self._active)
        return len(storage) // self.frames_per_batch

    def discard_epoch(self) -> None:
        """Forget what is left of the epoch: the next :meth:`sample` draws a new one."""
        self._epoch: Tensor | None = None
        self._position = 0
        self._ran_out = False

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Indices of the next minibatch.

        Args:
            storage: a one-dimensional storage of whole batches.
            batch_size: frames per active batch (``M_PPO``); it must divide ``frames_per_batch``
                and stay the same during an epoch.

        Returns:
            ``int64`` indices ``[rows]`` and an empty info dictionary.

        Raises:
            RuntimeError: if the storage is empty, or holds a part of a batch.
            ValueError: if ``batch_size`` does not divide ``frames_per_batch``, changes in the
                middle of an epoch, an active slot is not stored, or the mask of active slots is of
                another number of batches.
        """
        if self._epoch is None or self._position == len(self._epoch):
            self._epoch = self._new_epoch(storage, batch_size)
            self._batch_size = batch_size
            self._position = 0
        elif batch_size != self._batch_size:
            raise ValueError(
                f"batch_size={batch_size} in the middle of an epoch of batch_size="
                f"{self._batch_size}: finish the epoch, or call discard_epoch() first"
            )
        index = self._epoch[self._position].to(storage_device(storage))
        self._position += 1
        self._remaining_batches = len(self._epoch) - self._position
        self._ran_out = self._remaining_batches == 0
        return index, {}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether :meth:`sample` takes this ``batch_size`` now; TorchRL's buffers ask this."""
        running = self._epoch is not None and self._position < len(self._epoch)
        fits = batch_size == self._batch_size if running else True
        whole = batch_size > 0 and self.frames_per_batch % batch_size == 0
        return super().can_sample(storage, batch_size) and fits and whole

    def check_shape(self, shape: torch.Size) -> None:
        """Refuse a batch of this shape, ``[N]`` or ``[E, T]``, if its frames would be mistaken.

        Raises:
            ValueError: if the sampler takes frames of two environments for those of one.
        """

    def epoch(self, storage: Storage, batch_size: int) -> Tensor:
        """Indices of one fresh epoch at once: what as many calls of :meth:`sample` would return.

        Args:
            storage: as in :meth:`sample`.
            batch_size: as in :meth:`sample`.

        Returns:
            ``int64`` ``[minibatches, rows]``.

        Raises:
            RuntimeError, ValueError: as :meth:`sample` does.
        """
        self.discard_epoch()
        return self._new_epoch(storage, batch_size)

    def _new_epoch(self, storage: Storage, batch_size: int) -> Tensor:
        rows = len(storage)
        if rows == 0:
            raise RuntimeError("Cannot sample from an empty storage: extend the buffer first")
        if storage.ndim != 1 or rows % self.frames_per_batch:
            raise RuntimeError(
                f"storage of ndim={storage.ndim} with {rows} rows: {type(self).__name__} reads a "
                f"one-dimensional storage of whole batches of frames_per_batch="
                f"{self.frames_per_batch} rows"
            )
        check_divides("batch_size", batch_size, self.frames_per_batch)
        stored = rows // self.frames_per_batch
        if self._mask_length not in (None, stored):
            raise ValueError(
                f"active slots by a mask of {self._mask_length} while {stored} batches are stored: "
                f"call set_active with a mask of {stored}, or with slot numbers"
            )
        slots = range(stored) if self._active is None else self._active
        if slots[-1] >= stored:
            raise ValueError(
                f"active slots {tuple(slots)} while {stored} batches are stored: call set_active "
                f"with slots below {stored}"
            )
        return self._draw_epoch(torch.tensor(slots, device=storage_device(storage)), batch_size)

    def _randint(self, high: int, size: int, like: Tensor) -> Tensor:
        device = self._rng.device if self._rng is not None else like.device
        return torch.randint(high, (size,), generator=self._rng, device=device).to(like.device)

    def extend(self, index: Tensor) -> None:
        """Make every stored batch active and discard the epoch, as rows were written."""
        self.set_active(None)

    def add(self, index: int) -> None:
        """Make every stored batch active and discard the epoch, as a row was written."""
        self.set_active(None)

    @property
    def ran_out(self) -> bool:
        """Whether the last :meth:`sample` was the last of its epoch."""
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)

    def _empty(self) -> None:
        self.set_active(None)

    def state_dict(self) -> dict[str, Any]:
        """Activity and the epoch (on the CPU), sharing no memory with the sampler."""
        return {
            "settings": self._settings(),
            "active": None if self._active is None else list(self._active),
            "epoch": None if self._epoch is None else self._epoch.to("cpu", copy=True),
            "position": self._position,
            "batch_size": self._batch_size,
            "ran_out": self._ran_out,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; the epoch goes on where it was.

        Raises:
            KeyError, ValueError: as :meth:`check_state` does. The sampler is as it was.
        """
        self.check_state(state_dict)
        active, epoch = state_dict["active"], state_dict["epoch"]
        self._active = None if active is None else tuple(int(slot) for slot in active)
        self._mask_length = None
        self._epoch = None if epoch is None else epoch.clone()
        self._position = int(state_dict["position"])
        self._batch_size = int(state_dict["batch_size"])
        self._ran_out = bool(state_dict["ran_out"])

    def check_state(self, state_dict: dict[str, Any], rows: int | None = None) -> None:
        """Raise unless :meth:`load_state_dict` could load a state.

        Args:
            state_dict: what :meth:`state_dict` returned.
            rows: the rows of the storage that it is to sample from, if known.

        Raises:
            KeyError: if a key is missing.
            ValueError: if it is of a sampler of another class or with other arguments, or a value
                is out of range.
        """
        check_keys(type(self).__name__, state_dict, self.state_dict())
        if state_dict["settings"] != self._settings():
            raise ValueError(
                f"state of a sampler with {state_dict['settings']} given to one with "
                f"{self._settings()}: build the sampler as the saved one was"
            )
        epoch = state_dict["epoch"]
        check_active(state_dict["active"], None if rows is None else rows // self.frames_per_batch)
        check_epoch(epoch, rows)
        check_count("position", state_dict["position"], 0 if epoch is None else len(epoch))
        check_count("batch_size", state_dict["batch_size"], self.frames_per_batch)

    def _settings(self) -> dict[str, Any]:
        """What a saved epoch depends on."""
        return {"sampler": type(self).__name__, "frames_per_batch": self.frames_per_batch}

    def dumps(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to ``path/sampler.pt``."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), path / "sampler.pt")

    def loads(self, path: str | Path) -> None:
        """Restore what :meth:`dumps` wrote; no code of the file is executed."""
        self.load_state_dict(self.read(path))

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The state that :meth:`dumps` wrote."""
        state: dict[str, Any] = torch.load(Path(path) / "sampler.pt", weights_only=True)
        return state

    def __repr__(self) -> str:
        active = "all" if self._active is None else list(self._active)
        return f"{type(self).__name__}(frames_per_batch={self.frames_per_batch}, active={active})"


class AdaptiveMinibatchSampler(MultiBatchSampler):
    r"""One pass without replacement over the active batches, in a fixed number of minibatches.

    With :math:`k` batches in use, a minibatch has :math:`M = M_{PPO} k` rows, drawn uniformly from
    all active rows, and an epoch has :math:`N / M_{PPO}` minibatches, whatever :math:`k` is
    (Algorithm 1 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_, lines 17 and 21 to 23).
    The paper draws each minibatch uniformly; one epoch here is exactly one pass.

    It works in any TorchRL replay buffer over a one-dimensional storage of whole batches.
    The buffer's ``batch_size`` is then ``M_PPO``, the frames *per active batch*. Unlike
    ``torchrl.data.SamplerWithoutReplacement`` it knows of batches, never hands out a row of an
    inactive one, and forgets the rest of an epoch when the buffer is extended. An epoch's indices
    take 8 bytes per active row.

    Args:
        frames_per_batch: ``N``, the rows of one batch.
        scale_minibatch: if ``False``, minibatches keep ``M_PPO`` rows and an epoch has
            :math:`k N / M_{PPO}` of them (the paper's ablation).

    Raises:
        ValueError: if ``frames_per_batch`` is not a positive integer.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> sampler = AdaptiveMinibatchSampler(frames_per_batch=4)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(12), sampler=sampler, batch_size=2
        ... )
        >>> _ = buffer.extend(TensorDict({"row": torch.arange(12)}, [12]))
        >>> sampler.set_active([0, 2])
        >>> epoch = torch.stack([minibatch["row"] for minibatch in buffer])
        >>> epoch.shape
        torch.Size([2, 4])
        >>> epoch.flatten().sort().values
        tensor([ 0,  1,  2,  3,  8,  9, 10, 11])
    """

    def __init__(self, frames_per_batch: int, *, scale_minibatch: bool = True) -> None:
        super().__init__(frames_per_batch)
        self.scale_minibatch = scale_minibatch

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"scale_minibatch": self.scale_minibatch}

    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch: ``batch_size * num_active``, or ``batch_size`` unscaled."""
        return batch_size * num_active if self.scale_minibatch else batch_size

    def _draw_epoch(self, slots: Tensor, batch_size: int) -> Tensor:
        frame = torch.arange(self.frames_per_batch, device=slots.device)
        rows = (slots[:, None] * self.frames_per_batch + frame).flatten()
        device = self._rng.device if self._rng is not None else rows.device
        order = torch.randperm(len(rows), generator=self._rng, device=device).to(rows.device)
        return rows[order].view(-1, self.minibatch_size(batch_size, len(slots)))


class EpisodicMinibatchSampler(MultiBatchSampler):
    r"""Minibatches of consecutive frames, the paper's comparison with random ones.

    Each minibatch is one run of :math:`M_{PPO} k` consecutive frames of one environment in one of
    the :math:`k` active batches, its place drawn uniformly; an epoch has :math:`N / M_{PPO}`
    minibatches (Section 6.2 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_). Runs
    overlap and may cross the end of an episode. ``torchrl.data.SliceSampler`` draws slices within
    trajectories instead.

    Args:
        frames_per_batch: ``N``, the rows of one batch, stored environment by environment, as
            ``[E, T]`` batches are when flattened.
        frames_per_lane: ``T``, the consecutive frames of one environment; it must divide ``N``.
            Defaults to ``N``, one environment.

    Raises:
        ValueError: if a number is not a positive integer, or ``frames_per_lane`` does not divide
            ``frames_per_batch``; when sampling, if a run is longer than a lane; when a buffer of
            this library is given ``[E, T]``, if a lane is of two environments.

    Examples:
        >>> sampler = EpisodicMinibatchSampler(frames_per_batch=8, frames_per_lane=4)
        >>> sampler.minibatch_size(batch_size=2, num_active=2)
        4
    """

    def __init__(self, frames_per_batch: int, frames_per_lane: int | None = None) -> None:
        super().__init__(frames_per_batch)
        lane = frames_per_batch if frames_per_lane is None else frames_per_lane
        self.frames_per_lane = check_divides("frames_per_lane", lane, frames_per_batch)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"frames_per_lane": self.frames_per_lane}

    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch: ``batch_size * num_active``."""
        return batch_size * num_active

    def check_shape(self, shape: torch.Size) -> None:
        """Refuse ``[E, T]`` unless a lane is within one environment.

        Raises:
            ValueError: if ``frames_per_lane`` does not divide ``T``.
        """
        if len(shape) == 2 and shape[1] % self.frames_per_lane:
            raise ValueError(
                f"batch of shape {list(shape)} with frames_per_lane={self.frames_per_lane}: runs "
                f"would cross from one environment to the next; give the sampler frames_per_lane="
                f"{shape[1]}"
            )

    def _draw_epoch(self, slots: Tensor, batch_size: int) -> Tensor:
        length = self.minibatch_size(batch_size, len(slots))
        if length > self.frames_per_lane:
            raise ValueError(
                f"a run of batch_size * active = {batch_size} * {len(slots)} = {length} frames is "
                f"longer than frames_per_lane={self.frames_per_lane}: use a smaller batch_size, "
                "fewer batches or fewer environments"
            )
        minibatches = self.frames_per_batch // batch_size
        lanes = self.frames_per_batch // self.frames_per_lane
        slot = slots[self._randint(len(slots), minibatches, slots)]
        lane = self._randint(lanes, minibatches, slots)
        offset = self._randint(self.frames_per_lane - length + 1, minibatches, slots)
        first = slot * self.frames_per_batch + lane * self.frames_per_lane + offset
        return first[:, None] + torch.arange(length, device=slots.device)


def _slot_numbers(slots: Sequence[int] | Tensor) -> tuple[int, ...]:
    if isinstance(slots, Tensor):
        if slots.ndim != 1:
            raise ValueError(
                f"slots={slots.tolist()} of shape {tuple(slots.shape)}: give a one-dimensional "
                "tensor, of slot numbers or of one boolean per stored batch"
            )
        slots = (slots.nonzero().flatten() if slots.dtype == torch.bool else slots).tolist()
    if any(isinstance(slot, bool) or not isinstance(slot, Integral) for slot in slots):
        raise TypeError(f"slots={slots}: give slot numbers, or a boolean tensor of one per slot")
    numbers = tuple(sorted(int(slot) for slot in slots))
    if not numbers or numbers[0] < 0 or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"slots={list(numbers)}: give at least one slot number, each once and none negative, "
            "or None for every stored batch"
        )
    return numbers


def storage_device(storage: Storage) -> torch.device:
    """Where a storage keeps its rows; the CPU while it does not know yet."""
    device = getattr(storage, "device", None)
    return torch.device("cpu" if device in (None, "auto") else device)
