"""The stored batches in use, as a sampler sees them."""

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ActiveBatches:
    """The ``k`` stored batches in use, newest first, from which a sampler draws.

    Entry ``i`` of each attribute describes the same batch. Slots are the positions of batches in the
    storage; once it is full, their order says nothing about age, since a new batch takes the oldest
    batch's slot.

    Attributes:
        slots: slot number of each batch, ``int64`` ``[k]``.
        age: age of each batch, counted in batches, ``int64`` ``[k]``, ascending; 0 is the newest stored one.
        ledger: the rows of the last refresh's ledger for these batches, ``[k]``; None if nothing was
            measured, as in a buffer without a staleness filter.
        frames_per_batch: ``N``, the rows of one slot.

    Examples:
        >>> import torch
        >>> from amber_trl.data import ActiveBatches
        >>> slots, age = torch.tensor([0, 2]), torch.tensor([0, 1])
        >>> ActiveBatches(slots, age, None, frames_per_batch=4).rows
        tensor([[ 0,  1,  2,  3],
                [ 8,  9, 10, 11]])
    """

    slots: Tensor
    age: Tensor
    ledger: TensorDict | None
    frames_per_batch: int

    @property
    def rows(self) -> Tensor:
        """Storage rows of each batch, ``int64`` ``[k, N]``, in the order of its frames."""
        frame = torch.arange(self.frames_per_batch, device=self.slots.device)
        return self.slots[:, None] * self.frames_per_batch + frame
