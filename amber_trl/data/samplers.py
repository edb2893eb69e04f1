"""Samplers that draw minibatches from whole batches, of which only some are in use."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from amber_trl._checks import check_integer
from amber_trl.data._checks import check_divides, storage_device


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

    ran_out = False
    """Whether the last :meth:`sample` was the last of its epoch."""

    def __init__(self, frames_per_batch: int) -> None:
        self.frames_per_batch = check_integer("frames_per_batch", frames_per_batch)
        self._active: tuple[int, ...] | None = None
        self._batch_size = 0
        self.discard_epoch()

    @abstractmethod
    def _draw_epoch(self, slots: Tensor, batch_size: int) -> Tensor:
        """Row indices ``[minibatches, rows]`` of one epoch over ``slots``, on their device."""

    @abstractmethod
    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch when ``num_active`` batches are in use."""

    def set_active(self, slots: Sequence[int] | Tensor | None) -> None:
        """Choose the batches in use; the rest of a running epoch is discarded.

        Args:
            slots: slot numbers, or a boolean tensor ``[stored batches]``; ``None`` for every
                stored batch.

        Raises:
            TypeError: if a slot is not an integer.
            ValueError: if no slot is in use, a number is negative or repeated, or a tensor is not
                one-dimensional.
        """
        self._active = None if slots is None else _slot_numbers(slots)
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
        self.ran_out = False

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
                middle of an epoch, or an active slot is not stored.
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
        self.ran_out = self._remaining_batches == 0
        return index, {}

    def check_shape(self, shape: torch.Size) -> None:
        """Raise ``ValueError`` if this sampler cannot serve batches of this shape, ``[E, T]``.

        A buffer calls it with the shape of each batch, before it is flattened.
        """

    def epoch(self, storage: Storage, batch_size: int) -> Tensor:
        """Indices of one fresh epoch at once: what as many calls of :meth:`sample` would return.

        Args and errors are those of :meth:`sample`; the result is ``int64`` ``[minibatches, rows]``.
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
        slots = range(stored) if self._active is None else self._active
        if slots[-1] >= stored:
            raise ValueError(
                f"active slots {tuple(slots)} while {stored} batches are stored: call set_active "
                f"with slots below {stored}"
            )
        # Drawn where the generator is, read where the storage is.
        device = storage_device(storage)
        drawn_on = device if self._rng is None else self._rng.device
        return self._draw_epoch(torch.tensor(slots, device=drawn_on), batch_size).to(device)

    def extend(self, index: Tensor) -> None:
        """Make every stored batch active and discard the epoch, as rows were written."""
        self.set_active(None)

    def add(self, index: int) -> None:
        """As :meth:`extend`, for one row."""
        self.set_active(None)

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
            "ran_out": self.ran_out,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; the epoch continues where it was.

        Raises:
            ValueError: if the state is of a sampler of another class or with other arguments.
        """
        if (saved := state_dict.get("settings")) != self._settings():
            raise ValueError(
                f"state of a sampler with {saved} given to one with {self._settings()}: build the "
                "sampler as the saved one was"
            )
        active, epoch = state_dict["active"], state_dict["epoch"]
        self._active = None if active is None else tuple(active)
        self._epoch = None if epoch is None else epoch.clone()
        self._position = state_dict["position"]
        self._batch_size = state_dict["batch_size"]
        self.ran_out = state_dict["ran_out"]

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
        self.load_state_dict(torch.load(Path(path) / "sampler.pt", weights_only=True))


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
        order = torch.randperm(len(rows), generator=self._rng, device=rows.device)
        # k N rows in minibatches of M_PPO k: N / M_PPO of them, whatever k is.
        return rows[order].view(-1, self.minibatch_size(batch_size, len(slots)))


def _slot_numbers(slots: Sequence[int] | Tensor) -> tuple[int, ...]:
    if isinstance(slots, Tensor):
        if slots.ndim != 1:
            raise ValueError(
                f"slots={slots.tolist()} of shape {tuple(slots.shape)}: give a one-dimensional "
                "tensor, of slot numbers or of one boolean per stored batch"
            )
        slots = (slots.nonzero().flatten() if slots.dtype == torch.bool else slots).tolist()
    numbers = tuple(sorted(check_integer("slots", slot, low=0) for slot in slots))
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"slots={list(numbers)}: give at least one slot number, each once, or None for every "
            "stored batch"
        )
    return numbers
