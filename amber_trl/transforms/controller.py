"""A drop factor that follows the staleness of the stored batches."""

import torch
from torch import Tensor

from amber_trl._checks import check_integer, check_number


class DropFactorController:
    r"""Chooses the drop factor so that a target amount of stored data is in use.

    Let :math:`d_{(1)} \le d_{(2)} \le \dots` be the staleness of the stored batches in ascending order, where
    that of the newest batch, which is always in use, counts as 0. The drop factor is

    .. math:: \epsilon_b = \min\left(\epsilon_{max},\, d_{(k)}\right), \qquad
        k = \min\Big\{ j : \sum_{i \le j} w_{(i)} \ge W \Big\}

    with :math:`w = 1` and :math:`W` the target number of batches, or with :math:`w` the effective share
    of a batch's frames, Kish's :math:`ESS / N`, and :math:`W` the target effective sample size in
    batches. (Their sum is an upper bound on the effective sample size of all frames in use together.) So
    the :math:`k` batches closest to the current actor are in use, or fewer if some exceed the bound
    :math:`\epsilon_{max}`. If fewer batches are stored than the target, all within the bound are in use.

    AMBER's own drop factor is an annealed number, which leaves hardly any old batch in use when actions
    have many dimensions. Here the amount is fixed, and the bound, in units of the filter's metric,
    limits the bias accepted for it. No state is kept between measurements.
    :class:`~amber_trl.training.LinearSchedule` refuses a filter with a controller.

    Args:
        batches: target number of batches in use, including the newest.

    Keyword Args:
        ess: instead, the target effective sample size, in batches; above 0.
        max_drop_factor: the bound, at least 0 and finite.

    Raises:
        TypeError: if not exactly one of ``batches`` and ``ess`` is given, or it is not a number.
        ValueError: if a number is out of range.

    Examples:
        >>> import torch
        >>> from amber_trl.transforms import DropFactorController
        >>> staleness, ess = torch.tensor([0.01, 0.5, 0.3, 0.4]), torch.tensor([1.0, 0.5, 0.8, 0.6])
        >>> age = torch.arange(4)
        >>> round(DropFactorController(3)(staleness, ess, age), 2)  # the newest, then 0.3 and 0.4
        0.4
        >>> round(DropFactorController(ess=1.5)(staleness, ess, age), 2)
        0.3
        >>> DropFactorController(3, max_drop_factor=0.35)(staleness, ess, age)
        0.35
    """

    def __init__(
        self, batches: int | None = None, *, ess: float | None = None, max_drop_factor: float = 1.0
    ) -> None:
        if (batches is None) == (ess is None):
            raise TypeError(f"batches={batches} and ess={ess}: give one of the two")
        self.batches = None if batches is None else check_integer("batches", batches)
        self.ess = None if ess is None else check_number("ess", ess, above=0)
        self._wanted: float = self.batches or self.ess or 0.0
        self.max_drop_factor = check_number("max_drop_factor", max_drop_factor)
        if self.max_drop_factor == float("inf"):
            raise ValueError("max_drop_factor=inf: give a finite bound, as inf keeps every batch")

    def __call__(self, staleness: Tensor, ess: Tensor, age: Tensor | None = None) -> float:
        """Chooses the drop factor for these batches.

        Args:
            staleness: ``d`` of each batch, ``[batches]``; a batch whose ``d`` is not finite is never used.
            ess: effective share of each batch's frames, ``[batches]``.
            age: age of each batch, 0 for the newest, ``[batches]``; None if none is the newest.

        Returns:
            The drop factor, at most ``max_drop_factor``; 0 if the newest batch alone is enough.
        """
        # Rounding may give -0.0001.
        distance = torch.where(staleness.isfinite(), staleness.clamp(min=0), torch.inf)
        if age is not None:
            distance[age == 0] = 0.0
        amount = torch.ones_like(distance) if self.ess is None else ess.nan_to_num(0.0)
        order = distance.argsort(stable=True)
        enough = (amount[order].cumsum(0) >= self._wanted).nonzero()
        if not len(enough):
            return self.max_drop_factor
        return min(self.max_drop_factor, float(distance[order][int(enough[0])]))

    def __repr__(self) -> str:
        wanted = f"{self.batches}" if self.ess is None else f"ess={self.ess}"
        return f"{type(self).__name__}({wanted}, max_drop_factor={self.max_drop_factor})"
