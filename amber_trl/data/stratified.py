"""Minibatches with a fixed share of frames from each batch in use."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from amber_trl._checks import check_number
from amber_trl.data.active_batches import ActiveBatches
from amber_trl.data.samplers import MultiBatchSampler


class StratifiedMinibatchSampler(MultiBatchSampler):
    r"""Minibatches with a fixed share of each batch in use, which may depend on the batch's age.

    With :math:`k` batches in use, of ages :math:`a_1 < \dots < a_k`, a minibatch has
    :math:`M = M_{PPO} k` rows, as with :class:`AdaptiveMinibatchSampler`. The number of rows

    .. math:: M \, \nu(a_i) / \sum_j \nu(a_j)

    comes from batch :math:`i`, rounded so that the numbers add up to :math:`M`: the largest remainders
    are rounded up, newer batches first. An epoch has :math:`N / M_{PPO}` minibatches, whatever :math:`k`
    and the shares are. Shares are relative: if fewer batches are stored than there are shares, or some
    batches are dropped, only the shares of the batches in use count.

    Rows of a batch are drawn without replacement, and all of them are drawn before any is drawn again.
    With equal shares, an epoch is one pass. With other shares, the rows of a batch with a large share are
    drawn more than once per epoch, and those of a batch with a small share only in part.

    Equal shares correspond to the minibatches of DISC (Han & Sung 2019, `arXiv 1905.02363
    <https://arxiv.org/abs/1905.02363>`_): :math:`M_{PPO}` frames of the newest batch, and
    :math:`M_{PPO} (k - 1)` of all older ones together, drawn with replacement. Shares by age
    correspond to the weights of GePPO (Queeney et al. 2021, `arXiv 2111.00072
    <https://arxiv.org/abs/2111.00072>`_), which draws frames uniformly and multiplies their losses by
    the weights. In both cases the expectation is the same.

    Args:
        frames_per_batch: ``N``, the rows of one batch.
        shares: ``nu`` of each age, newest first, at least 0, and above 0 for the newest. Defaults to
            equal shares.

    Raises:
        TypeError: if a share is not a number.
        ValueError: if a share is out of range; when sampling, if a batch in use is older than the last
            share, or every batch in use has a share of 0.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer, StratifiedMinibatchSampler
        >>> sampler = StratifiedMinibatchSampler(8, shares=(3, 2, 1))
        >>> replay = MultiBatchReplayBuffer(3, 8, minibatch_size=2, sampler=sampler)
        >>> for iteration in range(3):
        ...     _ = replay.extend(TensorDict({"iteration": torch.full((8,), iteration)}, [8]))
        >>> [minibatch["iteration"].tolist() for minibatch in replay][:2]
        [[2, 2, 2, 1, 1, 0], [2, 2, 2, 1, 1, 0]]
    """

    def __init__(self, frames_per_batch: int, shares: Sequence[float] | None = None) -> None:
        super().__init__(frames_per_batch)
        self.shares = shares
        if shares is not None:
            self.shares = [
                check_number(
                    f"shares[{age}]", share, above=0 if age == 0 else -1, high=sys.float_info.max
                )
                for age, share in enumerate(shares)  # the newest batch is always in use
            ]

    def settings(self) -> dict[str, Any]:
        """The arguments that determine an epoch."""
        return super().settings() | {"shares": self.shares}

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Draw each batch's share of each minibatch, newest batch first."""
        minibatches = self.frames_per_batch // batch_size
        counts = self._counts(batches.age, self.minibatch_size(batch_size, len(batches.age)))
        drawn = [
            _passes(rows, minibatches * count, generator).view(minibatches, count)
            for rows, count in zip(batches.rows, counts, strict=True)
        ]
        return torch.cat(drawn, 1)

    def _counts(self, age: Tensor, size: int) -> list[int]:
        """Rows of each batch in a minibatch of ``size`` rows in total."""
        exact = torch.ones(len(age), dtype=torch.float64)
        if self.shares is not None:
            if int(age[-1]) >= len(self.shares) or not any(self.shares[a] for a in age.tolist()):
                raise ValueError(
                    f"shares={self.shares} and batches of ages {age.tolist()} in use: give as many "
                    "shares as the buffer keeps batches, and use at least one batch with a share above 0"
                )
            exact = torch.tensor(self.shares, dtype=torch.float64)[age.cpu()]
            exact = exact / exact.max()  # so that no sum overflows
        exact = exact / exact.sum() * size
        counts = exact.floor()
        left = size - int(counts.sum())
        counts[(exact - counts).argsort(descending=True, stable=True)[:left]] += 1
        return counts.long().tolist()


def _passes(rows: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` rows in random order; no row repeats before all have been drawn."""
    passes = [
        rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
        for _ in range(-(-count // len(rows)))
    ]
    return torch.cat([rows[:0], *passes])[:count]
