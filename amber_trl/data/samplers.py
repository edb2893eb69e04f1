"""Samplers that draw minibatches from whole stored batches, only some of which are in use."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from amber_trl._checks import check_integer
from amber_trl.data._checks import check_divides, storage_device
from amber_trl.data.active_batches import ActiveBatches


class MultiBatchSampler(Sampler):
    """Base class of samplers over a storage of whole batches.

    A storage of ``L * N`` rows is read as ``L`` slots of ``N`` rows. :meth:`draw_epoch` draws a whole
    epoch; it is the only method that a custom sampler has to define. :meth:`sample` returns one
    minibatch after the other and sets ``ran_out`` with the last, so that TorchRL's
    ``for minibatch in buffer`` ends there. The next :meth:`sample` draws a new epoch.

    Writing to the buffer discards the rest of an epoch and makes every stored batch active again,
    since slots then hold other batches.

    Ages follow from the order of writes. :class:`~amber_trl.data.MultiBatchReplayBuffer` tells a new
    sampler which slot is the newest. In a stock TorchRL buffer, a new sampler takes the last slot for the
    newest until the next write.

    Args:
        frames_per_batch: ``N``, the rows of one slot.

    Examples:
        Draw with replacement, half as often from each batch as from the next newer one:

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer, MultiBatchSampler
        >>> class Fading(MultiBatchSampler):
        ...     def draw_epoch(self, batches, batch_size, generator):
        ...         weights = (0.5**batches.age).repeat_interleave(batches.frames_per_batch)
        ...         size = self.minibatch_size(batch_size, len(batches.age))
        ...         minibatches = batches.frames_per_batch // batch_size
        ...         drawn = weights.multinomial(
        ...             minibatches * size, replacement=True, generator=generator
        ...         )
        ...         return batches.rows.flatten()[drawn].view(minibatches, size)
        >>> replay = MultiBatchReplayBuffer(3, 8, minibatch_size=2, sampler=Fading(8))
        >>> for iteration in range(4):
        ...     _ = replay.extend(TensorDict({"iteration": torch.full((8,), iteration)}, [8]))
        >>> [len(minibatch) for minibatch in replay]
        [6, 6, 6, 6]
    """

    ran_out = False
    """Whether the last :meth:`sample` was the last of its epoch."""
    newest_slot: int | None = None
    """Slot of the batch written last; None before the first write."""

    def __init__(self, frames_per_batch: int) -> None:
        self.frames_per_batch = check_integer("frames_per_batch", frames_per_batch)
        self._active: tuple[int, ...] | None = None
        self._ledger: TensorDict | None = None
        self._batch_size = 0
        self.discard_epoch()

    @abstractmethod
    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Draw the rows of one epoch's minibatches; a custom sampler overrides this.

        The result is checked. State, saving and loading belong to the base class; arguments of a custom
        sampler that determine an epoch belong in :meth:`settings`.

        Args:
            batches: the batches in use, the newest first.
            batch_size: minibatch frames per batch in use (``M_PPO``); divides
                ``frames_per_batch``.
            generator: generator for every draw, on the device of ``batches``; None is torch's global one.

        Returns:
            Rows of ``batches.rows``, ``int64`` ``[minibatches, rows]``, where ``rows`` is
            :meth:`minibatch_size`.
        """

    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch when ``num_active`` batches are in use: ``batch_size * num_active``.

        A sampler with another size overrides it, since a buffer's ``batch_size`` is this number.
        """
        return batch_size * num_active

    def set_active(
        self, slots: Sequence[int] | Tensor | None, ledger: TensorDict | None = None
    ) -> None:
        """Choose the batches in use; the rest of a running epoch is discarded.

        Args:
            slots: slot numbers, or a boolean tensor ``[stored batches]``; ``None`` for every
                stored batch.
            ledger: what :meth:`draw_epoch` sees of the last measurement: a row for each stored batch, with
                its ``slot``. It is not part of the sampler's state.

        Raises:
            TypeError: if a slot is not an integer.
            ValueError: if no slot is in use, a number is negative or repeated, or a tensor is not
                one-dimensional.
        """
        self._active = None if slots is None else _slot_numbers(slots)
        self._ledger = ledger
        self.discard_epoch()

    @property
    def active(self) -> tuple[int, ...] | None:
        """Slots in use, ascending; ``None`` if every stored batch is in use."""
        return self._active

    def num_active(self, storage: Storage) -> int:
        """Number of batches in use among those stored."""
        if self._active is not None:
            return len(self._active)
        return len(storage) // self.frames_per_batch

    def discard_epoch(self) -> None:
        """Discard the rest of the epoch: the next :meth:`sample` draws a new one."""
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
            RuntimeError: if the storage is empty, or contains an incomplete batch.
            ValueError: if ``batch_size`` does not divide ``frames_per_batch``, changes in the
                middle of an epoch, an active slot is not stored, or :meth:`draw_epoch` returns
                anything other than rows of active batches.
        """
        if self._epoch is None or self._position == len(self._epoch):
            self._epoch = self._new_epoch(storage, batch_size)
            self._batch_size = batch_size
            self._position = 0
        elif batch_size != self._batch_size:
            raise ValueError(
                f"batch_size={batch_size} in the middle of an epoch of batch_size="
                f"{self._batch_size}: finish the epoch, or call the sampler's discard_epoch() first"
            )
        index = self._epoch[self._position].to(storage_device(storage))
        self._position += 1
        self._remaining_batches = len(self._epoch) - self._position
        self.ran_out = self._remaining_batches == 0
        return index, {}

    def check_shape(self, shape: torch.Size) -> None:
        """Raise ``ValueError`` if this sampler does not support batches of this shape, ``[E, T]``.

        A buffer calls it with the shape of each batch, before it is flattened.
        """

    def epoch(self, storage: Storage, batch_size: int, *, every_batch: bool = False) -> Tensor:
        """Indices of one fresh epoch at once, as repeated calls of :meth:`sample` would return them.

        Args and errors are those of :meth:`sample`; the result is ``int64`` ``[minibatches, rows]``.
        With ``every_batch`` it is drawn as if every stored batch were in use.
        """
        self.discard_epoch()
        return self._new_epoch(storage, batch_size, every_batch)

    def _new_epoch(self, storage: Storage, batch_size: int, every_batch: bool = False) -> Tensor:
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
        slots = range(stored) if every_batch or self._active is None else self._active
        if slots[-1] >= stored:
            raise ValueError(
                f"active slots {tuple(slots)} while {stored} batches are stored: call set_active "
                f"with slots below {stored}"
            )
        # Drawn on the generator's device, read on the storage's.
        device = storage_device(storage)
        drawn_on = device if self._rng is None else self._rng.device
        batches = self._newest_first(torch.tensor(slots, device=drawn_on), stored)
        epoch = self.draw_epoch(batches, batch_size, self._rng)
        self._check_epoch(epoch, batches, batch_size)
        return epoch.to(device)

    def _newest_first(self, slots: Tensor, stored: int) -> ActiveBatches:
        # Batches are written slot by slot, and again from slot 0 once all are full.
        newest = stored - 1 if self.newest_slot is None else self.newest_slot
        age, order = ((newest - slots) % stored).sort()
        slots, ledger = slots[order], self._ledger
        if ledger is not None:
            row_of_slot = ledger["slot"].argsort()
            ledger = ledger[row_of_slot[slots.to(row_of_slot.device)]]
        return ActiveBatches(slots, age, ledger, self.frames_per_batch)

    def _check_epoch(self, epoch: Any, batches: ActiveBatches, batch_size: int) -> None:
        name = f"{type(self).__name__}.draw_epoch"
        size = self.minibatch_size(batch_size, len(batches.slots))
        drawn = isinstance(epoch, Tensor) and epoch.dtype == torch.int64 and len(epoch.shape) == 2
        if not drawn or not len(epoch) or epoch.shape[1] != size:
            found = f"{epoch.dtype} {list(epoch.shape)}" if isinstance(epoch, Tensor) else epoch
            raise ValueError(
                f"{name} returned {found!s:.200}: give an int64 tensor [minibatches, {size}], as "
                "minibatch_size says"
            )
        slots = epoch.div(self.frames_per_batch, rounding_mode="floor")
        if (strange := epoch[~torch.isin(slots, batches.slots)]).numel():
            raise ValueError(
                f"{name} returned row {int(strange[0])}, which is not in the active slots "
                f"{batches.slots.tolist()} of {self.frames_per_batch} rows: draw from batches.rows"
            )

    def extend(self, index: Tensor) -> None:
        """Make every stored batch active and discard the epoch after rows were written."""
        self.newest_slot = int(index[-1]) // self.frames_per_batch
        self.set_active(None)

    def add(self, index: int) -> None:
        """As :meth:`extend`, for one row."""
        self.newest_slot = int(index) // self.frames_per_batch
        self.set_active(None)

    def _empty(self) -> None:
        self.newest_slot = None
        self.set_active(None)

    def state_dict(self) -> dict[str, Any]:
        """Activity and the epoch (on the CPU), sharing no memory with the sampler."""
        return {
            "settings": self.settings(),
            "active": None if self._active is None else list(self._active),
            "newest_slot": self.newest_slot,
            "epoch": _copy_to_cpu(self._epoch),
            "position": self._position,
            "batch_size": self._batch_size,
            "ran_out": self.ran_out,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; a running epoch continues.

        Raises:
            ValueError: if the state belongs to a sampler of another class or with other arguments.
        """
        if (saved := state_dict.get("settings")) != self.settings():
            raise ValueError(
                f"state of a sampler with {saved} given to one with {self.settings()}: build the "
                "sampler as the saved one was"
            )
        active, epoch = state_dict["active"], state_dict["epoch"]
        self._active = None if active is None else tuple(active)
        self.newest_slot = state_dict["newest_slot"]
        self._epoch = _copy_to_cpu(epoch)
        self._position = state_dict["position"]
        self._batch_size = state_dict["batch_size"]
        self.ran_out = state_dict["ran_out"]

    def settings(self) -> dict[str, Any]:
        """The arguments that determine an epoch, as plain values; loading a state requires equal ones.

        A custom sampler adds its own arguments, if any.
        """
        return {"sampler": type(self).__name__, "frames_per_batch": self.frames_per_batch}

    def dumps(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to ``path/sampler.pt``."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), path / "sampler.pt")

    def loads(self, path: str | Path) -> None:
        """Restore what :meth:`dumps` wrote; no code from the file is executed."""
        self.load_state_dict(torch.load(Path(path) / "sampler.pt", weights_only=True))


class AdaptiveMinibatchSampler(MultiBatchSampler):
    r"""One pass without replacement over the active batches, in a fixed number of minibatches.

    With :math:`k` batches in use, a minibatch has :math:`M = M_{PPO} k` rows, drawn uniformly from
    all active rows, and an epoch has :math:`N / M_{PPO}` minibatches, whatever :math:`k` is
    (Algorithm 1 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_, lines 17 and 21 to 23).
    The paper draws each minibatch uniformly; one epoch here is exactly one pass.

    It works in any TorchRL replay buffer with a one-dimensional storage of whole batches. The buffer's
    ``batch_size`` is then ``M_PPO``, the frames *per active batch*. Unlike
    ``torchrl.data.SamplerWithoutReplacement``, it never returns a row of an inactive batch, and it
    discards the rest of an epoch when the buffer is extended. An epoch's indices take 8 bytes per
    active row.

    Args:
        frames_per_batch: ``N``, the rows of one batch.
        scale_minibatch: if ``False``, minibatches keep ``M_PPO`` rows and an epoch has
            :math:`k N / M_{PPO}` of them (the paper's ablation).

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from amber_trl.data import AdaptiveMinibatchSampler
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

    def settings(self) -> dict[str, Any]:
        """The arguments that determine an epoch."""
        return super().settings() | {"scale_minibatch": self.scale_minibatch}

    def minibatch_size(self, batch_size: int, num_active: int) -> int:
        """Rows of one minibatch: ``batch_size * num_active``, or ``batch_size`` unscaled."""
        return batch_size * num_active if self.scale_minibatch else batch_size

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """One pass over the rows of the batches in use, ``[minibatches, rows]``."""
        rows = batches.rows[batches.slots.argsort()].flatten()  # the same, whichever is newest
        order = torch.randperm(len(rows), generator=generator, device=rows.device)
        # k N rows in minibatches of M_PPO k: N / M_PPO of them, whatever k is.
        return rows[order].view(-1, self.minibatch_size(batch_size, len(batches.slots)))


def _copy_to_cpu(rows: Tensor | None) -> Tensor | None:
    return None if rows is None else rows.to("cpu", copy=True)


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
