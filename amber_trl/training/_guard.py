"""Stops training at the first non-finite loss or gradient, without waiting for the device."""

import reprlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Rows: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
"""The rows of an update's minibatch, or of each minibatch if the loss reads several."""

_MAX_REMEMBERED = 4096
"""Updates after which the guard itself checks the flag, if the caller never does."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient was not finite; parameters and optimiser state are those before it.

    Attributes:
        update: the number of the update, counted from 0 since the last check.
        rows: the rows of its minibatch in the data that it was gathered from, ``[rows]``, or None if
            unknown.
        ages: the ages of the batches that these rows belong to, ascending, or None if unknown.

    Examples:
        >>> from amber_trl.training import NonFiniteError
        >>> NonFiniteError(3).update
        3
    """

    def __init__(
        self, update: int, rows: torch.Tensor | None = None, ages: Sequence[int] | None = None
    ) -> None:
        self.update, self.rows, self.ages = update, rows, ages
        where = "" if rows is None else f" on rows {reprlib.repr(rows.tolist())}"
        if ages is not None:
            where += f" of batches of age {', '.join(map(str, ages))}"
        super().__init__(
            f"the loss or a gradient of update {update} since the last check was not finite"
            f"{where}. Parameters and optimizer state are those before it, and every later update "
            "was skipped. Look for huge values in its minibatch, lower the learning rate, or set "
            "max_grad_norm; clear_nonfinite() lets training continue"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.update, self.rows, self.ages)

    def with_ages(self, batch_age: torch.Tensor, frames: int) -> "NonFiniteError":
        """The same error, with the ages of the rows' batches; each has an equal share of the frames."""
        if self.rows is None:
            return self
        batches = (self.rows // (frames // len(batch_age))).unique()
        ages = sorted(batch_age.to(batches.device)[batches].tolist())
        return NonFiniteError(self.update, self.rows, ages)


class NonFiniteGuard:
    """Keeps a flag on the device that the first inadmissible update raises.

    Reading the flag waits for the device, so it is read once per epoch, not once per update.
    """

    def __init__(self, device: torch.device, *, raised: bool = False) -> None:
        self.raised = torch.full((), raised, dtype=torch.bool, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.tensors = (self.raised, self.count, self.first)
        self._indices: list[Rows | None] = []

    def remember(self, index: Rows | None) -> None:
        """Records the rows used by the last update; raises if the caller has not checked for long."""
        self._indices.append(index)
        if len(self._indices) >= _MAX_REMEMBERED and (error := self.error()) is not None:
            raise error

    def error(self) -> NonFiniteError | None:
        """The error to raise, or None if all is well; forgets updates known to be finite."""
        if not self.raised.item():
            self.clear()
            return None
        update = int(self.first.item())
        index = self._indices[update]
        return NonFiniteError(update, torch.cat(index) if isinstance(index, tuple) else index)

    def clear(self) -> None:
        """Lowers the flag and restarts the count."""
        self.raised.zero_()
        self.count.zero_()
        self._indices.clear()


def each(index: Rows) -> tuple[torch.Tensor, ...]:
    """The rows of each minibatch of an update."""
    return index if isinstance(index, tuple) else (index,)


def admit_update(
    finite: torch.Tensor, raised: torch.Tensor, count: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Updates the guard's tensors in place; returns whether to skip the update, boolean ``[]``.

    ``finite`` says whether this update's loss and gradient are, ``count`` is the number of updates so
    far, and ``first`` which of them raised the flag.
    """
    skip = raised | ~finite
    first.copy_(torch.where(raised, first, count))
    raised.copy_(skip)
    count.add_(1)
    return skip
