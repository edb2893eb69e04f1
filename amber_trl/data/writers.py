"""A writer of whole batches that knows the age of each."""

import json
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import RoundRobinWriter, Storage, TensorStorage

from amber_trl._checks import check_integer
from amber_trl.data._checks import check_batch, check_layout, storage_device


class MultiBatchWriter(RoundRobinWriter):
    """Overwrites the oldest batch of a storage with a new one, always as a whole.

    TorchRL's ``RoundRobinWriter`` writes any number of rows, so one short batch shifts all later
    batches across the slots. This writer refuses a batch of another size or layout before it touches
    the storage. Its state is the position of the next batch, which determines every age. It does not
    work with ``ConsumingSampler`` (``consume_after_n_samples``), which writes single rows.

    Args:
        frames_per_batch: ``N``, the rows of one batch.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        >>> from amber_trl.data import MultiBatchWriter
        >>> writer = MultiBatchWriter(frames_per_batch=2)
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(6), writer=writer, batch_size=1
        ... )
        >>> for step in range(4):
        ...     index = buffer.extend(TensorDict({"step": torch.full((2,), step)}, [2]))
        >>> buffer[:]["step"], writer.age
        (tensor([3, 3, 1, 1, 2, 2]), tensor([0, 2, 1]))
    """

    def __init__(self, frames_per_batch: int) -> None:
        super().__init__()
        self.frames_per_batch = check_integer("frames_per_batch", frames_per_batch)

    def register_storage(self, storage: Storage) -> None:
        """Write to ``storage`` from now on; TorchRL's buffers call this.

        Raises:
            ValueError: unless the storage is an empty one-dimensional tensor storage of whole batches.
        """
        if storage is getattr(self, "_storage", None):
            return  # called again by a ReplayBufferEnsemble
        if (
            not isinstance(storage, TensorStorage)
            or storage.ndim != 1
            or storage.max_size % self.frames_per_batch
            or len(storage)
        ):
            raise ValueError(
                f"storage {type(storage).__name__} of ndim={storage.ndim}, max_size="
                f"{storage.max_size} and {len(storage)} rows: give an empty, one-dimensional "
                f"tensor storage with a multiple of frames_per_batch={self.frames_per_batch} rows, "
                "such as LazyTensorStorage, and fill it by extend() or loads()"
            )
        super().register_storage(storage)

    @property
    def age(self) -> Tensor:
        """Age of the batch in each slot, ``int64`` ``[stored batches]``, 0 for the newest."""
        slots = torch.arange(
            len(self._storage) // self.frames_per_batch, device=storage_device(self._storage)
        )
        newest = self._cursor // self.frames_per_batch - 1
        return (newest - slots) % self._num_batches

    @property
    def _num_batches(self) -> int:
        return self._storage.max_size // self.frames_per_batch

    def extend(self, data: TensorDictBase) -> Tensor:
        """Write a batch of ``frames_per_batch`` rows.

        Returns:
            ``int64`` ``[frames_per_batch]``, the rows written.

        Raises:
            TypeError: if ``data`` is not a TensorDict.
            ValueError: if its number of rows is wrong, or shapes or dtypes differ from the stored ones.
            KeyError: if its keys differ from the stored ones.
        """
        check_batch(data, self.frames_per_batch)
        # This also holds after emptying: the memory keeps the layout of earlier rows.
        if self._storage.initialized:
            check_layout(data, self._storage[:])
        return super().extend(data)

    def add(self, data: Any) -> int:
        """Raises ``TypeError``: a single row is not a batch."""
        raise TypeError("MultiBatchWriter writes whole batches: use extend, not add")

    def write_at(self, index: int | Tensor, data: Any) -> int | Tensor:
        """Raises ``TypeError``: writing single rows would break up batches."""
        raise TypeError(
            "MultiBatchWriter writes whole batches, not single rows: leave out "
            "consume_after_n_samples= and ConsumingSampler, or use TorchRL's own writer"
        )

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch and the size of its buffer."""
        return super().state_dict() | {
            "frames_per_batch": self.frames_per_batch,
            "num_batches": self._num_batches,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; a state of another buffer size raises ``ValueError``."""
        self.check_state(state_dict)
        super().load_state_dict(state_dict)

    def check_state(self, state_dict: dict[str, Any]) -> None:
        """Raise ``ValueError`` if a state belongs to a buffer of another size."""
        for name, own in (
            ("frames_per_batch", self.frames_per_batch),
            ("num_batches", self._num_batches),
        ):
            if (other := state_dict.get(name)) != own:
                raise ValueError(
                    f"state of {name}={other} given to a buffer of {name}={own}: build the buffer "
                    f"with {name}={other}"
                )

    def dumps(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to ``path/writer.json``."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "writer.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: str | Path) -> None:
        """Restore what :meth:`dumps` wrote."""
        self.load_state_dict(self.read(path))

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The state that :meth:`dumps` wrote."""
        return json.loads((Path(path) / "writer.json").read_text())
