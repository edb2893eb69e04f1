"""A replay buffer of the last ``L`` on-policy batches, written and measured whole."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    Storage,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.envs import Transform

from amber_trl._actors import dtype_of
from amber_trl._checks import check_integer
from amber_trl.data._checks import (
    check_advantages,
    check_batch,
    check_divides,
    check_finite_frames,
    check_layout,
    check_tensordict,
    make_generator,
    make_storage,
    refuse_filter,
    select_keys,
)
from amber_trl.data.advantages import RecomputedAdvantages
from amber_trl.data.samplers import AdaptiveMinibatchSampler, MultiBatchSampler
from amber_trl.data.writers import MultiBatchWriter
from amber_trl.transforms.staleness import ISStalenessFilter


class MultiBatchReplayBuffer(TensorDictReplayBuffer):
    r"""Keeps the last :math:`L` on-policy batches and samples from those still in use.

    The replay memory of Algorithm 1 of the AMBER paper
    (`arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_). Once per iteration, :meth:`extend`
    stores a whole batch of :math:`N` frames in place of the oldest, and :meth:`refresh` measures the
    staleness of every stored batch. Each ``for minibatch in replay`` is then one epoch: one pass over
    the :math:`k` active batches in :math:`N / M_{PPO}` minibatches of :math:`M_{PPO} k` frames. Until
    ``L`` batches have been stored, all stored batches count.

    It is a :class:`torchrl.data.TensorDictReplayBuffer` over an ordinary one-dimensional storage
    of ``L * N`` rows. It differs in three ways: it only writes whole batches; :meth:`extend` and
    :meth:`refresh` end a running epoch (where ``SamplerWithoutReplacement`` keeps the remainder); and
    the minibatch grows with the number of batches in use. It stores ``L * N`` frames of the keys
    kept. Only one process writes to it: a collector with several workers yields its batches, and the
    loop extends the buffer.

    Without ``staleness`` every stored batch is in use (the paper's MBER), and with
    ``num_batches=1`` this is the buffer of plain PPO.

    Args:
        num_batches: ``L``, the number of batches kept.
        frames_per_batch: ``N``, the frames of one batch, at least 2.
        minibatch_size: ``M_PPO``, minibatch frames per batch in use; must divide ``N``.

    Keyword Args:
        staleness: the filter that :meth:`refresh` uses. Referenced; not part of the buffer's state.
        advantages: recomputes advantages and value targets at every :meth:`refresh`; new batches
            then need none. Referenced only. By default, stored advantages and targets stay unchanged.
        keys: the keys of a batch to keep. Defaults to all keys of the first batch.
        storage: an empty tensor storage (or a function that makes one) of ``max_size`` ``L * N``.
            Defaults to ``LazyTensorStorage``.
        sampler: a sampler, or a function that makes one.
            Defaults to :class:`~amber_trl.data.AdaptiveMinibatchSampler`.
        generator: generator for the minibatches. Defaults to a new one on the storage's device,
            seeded from torch's global generator.
        transform: a transform of minibatches, as in any TorchRL buffer. :meth:`refresh` also applies it
            to the stored batches. :meth:`extend` applies its inverse to the batch in its original shape
            ``[E, T]``.
        age_key: where the age of its batch is stored for each frame, ``int64``, 0 for the newest.
            :class:`~amber_trl.objectives.DISCLoss` reads it. By default it is not stored.
        check_finite: refuse a batch with a NaN or an infinity in any floating key.
        collate_fn: as in any TorchRL buffer, like ``pin_memory`` and ``checkpointer``. TorchRL's other
            arguments do not exist here, since batches are written whole and never sampled ahead.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if a number is out of range or does not divide, the storage has another
            size, or the sampler does not fit.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer
        >>> replay = MultiBatchReplayBuffer(num_batches=8, frames_per_batch=64, minibatch_size=16)
        >>> for iteration in range(3):
        ...     index = replay.extend(TensorDict({"reward": torch.randn(4, 16, 1)}, [4, 16]))
        >>> len(replay), replay.num_active, replay.batch_size
        (192, 3, 48)
        >>> len([minibatch for minibatch in replay])
        4
    """

    _batch_size: int

    def __init__(
        self,
        num_batches: int,
        frames_per_batch: int,
        minibatch_size: int,
        *,
        staleness: ISStalenessFilter | None = None,
        advantages: RecomputedAdvantages | None = None,
        keys: Sequence[NestedKey] | None = None,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        generator: torch.Generator | None = None,
        transform: Transform | Callable[[Any], Any] | None = None,
        age_key: NestedKey | None = None,
        check_finite: bool = True,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        checkpointer: Any = None,
    ) -> None:
        self.num_batches = check_integer("num_batches", num_batches)
        # One frame gives no meaningful staleness, and no deviation to standardise by.
        self.frames_per_batch = check_integer("frames_per_batch", frames_per_batch, low=2)
        check_divides("minibatch_size", minibatch_size, frames_per_batch)
        if staleness is not None and not isinstance(staleness, ISStalenessFilter):
            raise TypeError(f"staleness is a {type(staleness).__name__}: give an ISStalenessFilter")
        self.staleness = staleness
        self.advantages = check_advantages(advantages, staleness)
        self.keys = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
        self.age_key = age_key
        self.check_finite = check_finite
        proximal = None if staleness is None else staleness.proximal_log_prob_key
        computed = [] if advantages is None else advantages.out_keys
        self._own_keys = [key for key in (age_key, proximal, *computed) if key is not None]
        read = [
            *(staleness.in_keys if staleness else ()),
            *(advantages.in_keys if advantages else ()),
        ]
        if clash := [key for key in self._own_keys if key in read or self._own_keys.count(key) > 1]:
            raise ValueError(
                f"{clash} would be overwritten: give age_key= and the filter's proximal_log_prob_key= "
                "names that no column has"
            )
        if self.keys is not None:  # its own columns are stored in any case
            self.keys = [key for key in self.keys if key not in self._own_keys]
        self._epoch_number = 0
        self._needs_refresh = staleness is not None
        storage = make_storage(storage, num_batches * frames_per_batch)
        super().__init__(
            storage=storage,
            sampler=self._make_sampler(sampler or AdaptiveMinibatchSampler(frames_per_batch)),
            writer=MultiBatchWriter(frames_per_batch),
            batch_size=minibatch_size,
            generator=generator or make_generator(storage),
            transform=transform,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            checkpointer=checkpointer,
        )

    @property
    def num_active(self) -> int:
        """Number of batches in use: all stored batches, or those that :meth:`refresh` kept active."""
        if isinstance(self._sampler, MultiBatchSampler):
            return self._sampler.num_active(self._storage)
        return len(self) // self.frames_per_batch

    @property
    def batch_size(self) -> int:
        """Rows of the current minibatch: ``minibatch_size`` times the batches in use."""
        if isinstance(self._sampler, MultiBatchSampler):
            return self._sampler.minibatch_size(self._batch_size, max(1, self.num_active))
        return self._batch_size

    @property
    def age(self) -> Tensor:
        """Age of the batch in each slot, ``int64`` ``[stored batches]``, 0 for the newest."""
        return self._writer.age

    def extend(self, tensordict: TensorDictBase, *, update_priority: bool | None = None) -> Tensor:
        """Store a batch in place of the oldest and end a running epoch; an error changes nothing.

        Args:
            tensordict: ``[N]``, ``[E, T]`` or ``[workers, E, T]`` with ``N`` frames in total, time last.
                It is stored environment by environment, and not changed.
            update_priority: as in ``torchrl.data.TensorDictReplayBuffer``.

        Returns:
            ``int64`` ``[N]``, the rows written.

        Raises:
            TypeError: if ``tensordict`` is not a TensorDict, or a transform is a staleness filter.
            ValueError: if the number of frames is not ``N``, shapes or dtypes differ from those
                stored, or the sampler would mix the environments of ``[E, T]``.
            NonFiniteDataError: if a floating key is not finite and ``check_finite`` is true.
            KeyError: if a key is missing, or earlier batches lacked one. If the buffer has a transform,
                what the networks lack after it is named by :meth:`refresh` only.
        """
        check_tensordict(tensordict)
        batch = tensordict
        if len(self._transform):  # before flattening, since an inverse may need time
            refuse_filter(self._transform)
            batch = self._transform.inv(tensordict.clone(False))
        frames = batch.reshape(-1) if batch.ndim > 1 else batch
        check_batch(frames, self.frames_per_batch)
        if isinstance(self._sampler, MultiBatchSampler):
            self._sampler.check_shape(batch.shape)
        if self.check_finite:
            check_finite_frames(frames)
        if self.keys is not None:
            frames = select_keys(frames, self.keys)
        transformed = len(self._transform) > 0  # which may make what the networks read
        if self.staleness is not None and not transformed:
            self.staleness.check_frames(frames)
        if self.advantages is not None:
            self.advantages.check_shape(batch.shape)
            if not transformed:
                self.advantages.check_keys(frames)
        # Detached: a storage would otherwise keep every graph written to it. TensorDictReplayBuffer's
        # extend is not used, since it would apply the inverse transforms again.
        index = self._extend(self._with_own_columns(frames.detach()))
        if self.age_key is not None:  # every stored batch is now older
            age = self.age.repeat_interleave(self.frames_per_batch)
            self._storage[:].set_(self.age_key, age)
        priority = frames.get(self.priority_key, None)
        if priority is not None and update_priority is not False:
            self.update_priority(index, priority)
        self._end_epoch()
        self._needs_refresh = self.staleness is not None
        return index

    def _with_own_columns(self, frames: TensorDictBase) -> TensorDictBase:
        """A new batch with zeros in the columns that this buffer writes."""
        frames = TensorDict(dict(frames.items()), frames.shape, device=frames.device)  # not locked
        if self.age_key is not None:
            frames.set(self.age_key, torch.zeros(len(frames), dtype=torch.int64))
        if self.staleness is not None and (key := self.staleness.proximal_log_prob_key) is not None:
            frames.set(key, torch.zeros(len(frames), dtype=dtype_of(self.staleness.actor)))
        if self.advantages is not None:
            dtype = dtype_of(self.advantages.critic)
            for key in self.advantages.out_keys:
                frames.set(key, torch.zeros(len(frames), 1, dtype=dtype))
        return frames

    def refresh(self) -> TensorDict:
        """Measure every stored batch under the current actor, and choose the batches in use.

        Call it after :meth:`extend` and before the iteration's first update. It ends a running epoch, and
        writes the columns that the filter (``proximal_log_prob_key``) and ``advantages`` compute.

        Returns:
            The ledger of :meth:`~amber_trl.transforms.ISStalenessFilter.measure` with ``slot``,
            newest batch first: row ``l`` describes the batch of age ``l``.

        Raises:
            RuntimeError: if the buffer has no filter, or nothing is stored.
        """
        if self.staleness is None:
            raise RuntimeError(
                "refresh() without a staleness filter: build the buffer with staleness="
                "ISStalenessFilter(actor), or do not call refresh to use every stored batch"
            )
        if not len(self):
            raise RuntimeError("refresh() of an empty buffer: extend it with a batch first")
        stored = self._storage[:]  # with self[:], a transform could write to the storage
        if len(self._transform):
            stored = self._transform(stored.clone())
        stored, age = stored.reshape(-1, self.frames_per_batch), self.age
        # Algorithm 1, lines 10 to 12: R' decides whether a stored batch is in use.
        ledger = self.staleness.measure(stored, age.to(stored.device or age.device))
        if (key := self.staleness.proximal_log_prob_key) is not None:
            self._storage[:].set_(key, stored[key].reshape(-1))
        ledger["slot"] = torch.arange(len(age), device=ledger["age"].device)
        ledger = ledger[ledger["age"].argsort()]
        self._sampler.set_active(ledger["slot"][ledger["active"]], ledger)
        if self.advantages is not None:
            slots, active = ledger["slot"], ledger["active"]
            chosen = slots if self.advantages.every_batch else slots[active]
            self._recompute(stored, chosen.tolist())
        self._end_epoch()
        self._needs_refresh = False
        return ledger

    def _recompute(self, stored: TensorDictBase, slots: Sequence[int]) -> None:
        """Write advantages and value targets for the batches in these slots."""
        assert self.advantages is not None
        computed = self.advantages.compute(stored, slots)
        batches = self._storage[:].view(-1, self.frames_per_batch)
        for key in self.advantages.out_keys:
            column = computed[key].to(batches[key].dtype)  # networks may have been converted since
            batches.set_at_(key, column, slots)

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> Any:
        """The next minibatch of the epoch, as in any TorchRL buffer.

        Args:
            batch_size: frames per batch in use, in place of ``minibatch_size``.
            return_info: whether to return ``(minibatch, info)``.
            include_info: as in ``torchrl.data.TensorDictReplayBuffer``.

        Returns:
            A TensorDict ``[minibatch_size * active]`` with the rows sampled under ``"index"``.

        Raises:
            RuntimeError: if nothing is stored, or a filter is set and :meth:`refresh` has not been
                called since the last :meth:`extend` or load.
        """
        self._check_refreshed()
        return super().sample(batch_size, return_info, include_info)

    def epoch(self, *, every_batch: bool = False) -> Tensor:
        """The rows of one fresh epoch at once: those that iterating would sample.

        For updates that gather minibatches from ``replay.storage[:]`` themselves
        (:meth:`amber_trl.training.UpdateStep.epoch`).

        Args:
            every_batch: draw from every stored batch, as if all were in use. A critic can learn from these.

        Returns:
            ``int64`` ``[minibatches, rows]``.

        Raises:
            RuntimeError: as :meth:`sample` does.
            ValueError: if ``every_batch`` and value targets of batches not in use are not recomputed.
            TypeError: if the sampler is not one of this library's, or the buffer has a transform, which
                rows alone cannot apply.
        """
        self._check_refreshed()
        if len(self._transform) or not isinstance(self._sampler, MultiBatchSampler):
            raise TypeError(
                f"epoch() with a sampler of type {type(self._sampler).__name__} and "
                f"{len(self._transform)} transforms: it needs a MultiBatchSampler, and no transform, "
                "which rows alone cannot apply; iterate over the buffer instead"
            )
        recomputed = self.advantages is not None and self.advantages.every_batch
        if every_batch and self.staleness is not None and not recomputed:
            raise ValueError(
                "every_batch=True: value targets of batches not in use would be those of old critics; "
                "give the buffer RecomputedAdvantages(..., every_batch=True)"
            )
        self._end_epoch()
        return self._sampler.epoch(self._storage, self._batch_size, every_batch=every_batch)

    def _check_refreshed(self) -> None:
        if self._needs_refresh and len(self):
            raise RuntimeError(
                "sampling before refresh(): a batch was stored or loaded since the staleness of "
                "the batches was measured; call refresh() once after extend()"
            )

    def __iter__(self) -> Iterator[TensorDictBase]:
        """One fresh epoch; it ends early if the buffer is extended, refreshed, loaded or iterated."""
        self._end_epoch()
        number = self._epoch_number
        while True:
            yield self.sample()
            if self._sampler.ran_out or number != self._epoch_number:
                return

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether :meth:`sample` would return a minibatch."""
        return not self._needs_refresh and super().can_sample(batch_size)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget every batch."""
        super().empty(empty_write_count)
        self._end_epoch()

    def _end_epoch(self) -> None:
        self._epoch_number += 1
        if isinstance(self._sampler, MultiBatchSampler):
            self._sampler.discard_epoch()
        elif isinstance(self._sampler, SamplerWithoutReplacement):
            self._sampler._empty()

    def state_dict(self) -> dict[str, Any]:
        """The state of storage, writer (ages), sampler (activity, epoch) and generator.

        It shares no memory with the buffer, and contains nothing of the staleness filter. Rows that were
        never written are zero in it.
        """
        state: dict[str, Any] = deepcopy(super().state_dict())
        for rows in tree_leaves(state["_storage"]):
            if isinstance(rows, Tensor) and len(rows.shape) and len(rows) == self._storage.max_size:
                rows[len(self) :] = 0
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; with a filter, sampling raises until :meth:`refresh` is called.

        ``minibatch_size`` stays this buffer's. If the state's differs, a running epoch ends.

        Raises:
            ValueError: if the state belongs to a buffer of another ``num_batches`` or ``frames_per_batch``,
                or to another sampler, or this buffer stores other shapes or dtypes.
            KeyError: if this buffer stores other keys, or an entry is missing.
        """
        stored = TensorDict().load_state_dict(state_dict["_storage"]["_storage"], strict=False)
        self._check_saved(state_dict["_writer"], stored)
        saved, own = state_dict["_sampler"], self._sampler.state_dict()
        if saved.keys() != own.keys() or saved.get("settings") != own.get("settings"):
            raise ValueError(
                f"the state belongs to a buffer with another sampler than {type(self._sampler).__name__}"
                f"{f', {settings}' if (settings := own.get('settings')) else ''}"
            )
        with self._loading():
            super().load_state_dict(state_dict)
        storage = self._storage
        if type(storage) is LazyTensorStorage and storage.initialized and storage.device != "auto":
            # TorchRL gives an empty storage the state's tensors, and forgets its own device.
            storage._storage = storage._storage.to(storage.device)

    def loads(self, path: str | Path) -> None:
        """Restore what ``dumps`` wrote, as :meth:`load_state_dict` does for a state."""
        path = Path(path)
        stored = TensorDict.load_memmap(path / "storage")
        self._check_saved(MultiBatchWriter.read(path / "writer"), stored)
        with self._loading():
            super().loads(path)

    def _check_saved(self, writer: dict[str, Any], stored: TensorDictBase) -> None:
        """Raise unless saved batches have this buffer's size and layout."""
        self._writer.check_state(writer)
        # TorchRL would merge other keys into the stored ones, and cast other dtypes.
        if self._storage.initialized and not stored.is_empty():
            check_layout(stored, self._storage[:])
        missing = [key for key in self._own_keys if stored.get(key, None) is None]
        if missing and not stored.is_empty():
            raise KeyError(
                f"{missing} missing from the state, and this buffer writes them at every batch: load it "
                "into a buffer built as the saved one was"
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Keep the minibatch size, and the generator object, which others may reference."""
        generator, size = self._rng, self._batch_size
        try:
            yield
        finally:
            if generator is not None:
                generator.set_state(self._rng.get_state())
                self.set_rng(generator)
            self._epoch_number += 1
            if self._batch_size != size:
                self._batch_size = size
                self._end_epoch()
            self._needs_refresh = self.staleness is not None

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Use another sampler, with this buffer's generator, and return the previous one."""
        previous = super().set_sampler(self._make_sampler(sampler))
        if isinstance(self._sampler, MultiBatchSampler):
            self._sampler.newest_slot = int(self.age.argmin()) if len(self) else None
        self.set_rng(self._rng)
        self._end_epoch()
        self._needs_refresh = self.staleness is not None
        return previous

    def share(self, shared: bool = True) -> Self:
        """Raises ``TypeError`` if ``shared``: it would mix batches of several writers.

        TorchRL's multi-process collectors call this on the ``replay_buffer=`` they are given.
        """
        if shared:
            raise TypeError(
                "share() refused, since it would mix batches of several writers: leave out the "
                "multi-process collector's replay_buffer=, and extend the buffer with each batch "
                "that the collector yields"
            )
        return super().share(shared)

    def _make_sampler(self, sampler: Sampler | Callable[[], Sampler]) -> Sampler:
        made = sampler if isinstance(sampler, Sampler) else sampler()
        frames = getattr(made, "frames_per_batch", self.frames_per_batch)
        if frames != self.frames_per_batch:
            raise ValueError(
                f"sampler of frames_per_batch={frames} given to a buffer of frames_per_batch="
                f"{self.frames_per_batch}: build the sampler with the buffer's number"
            )
        if self.staleness is not None and not isinstance(made, MultiBatchSampler):
            raise ValueError(
                f"sampler of type {type(made).__name__} is not a MultiBatchSampler, so it cannot leave out "
                "the batches that staleness= drops: use AdaptiveMinibatchSampler, or no staleness"
            )
        return made
