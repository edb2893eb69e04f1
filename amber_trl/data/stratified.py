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
    r"""Minibatches in which each batch in use has a fixed share, which may depend on its age.

    With :math:`k` batches in use, of ages :math:`a_1 < \dots < a_k`, a minibatch has
    :math:`M = M_{PPO} k` rows, as that of :class:`AdaptiveMinibatchSampler`, of which

    .. math:: M \, \nu(a_i) / \sum_j \nu(a_j)

    are of batch :math:`i`, rounded so that they add up to :math:`M`: the largest remainders are
    rounded up, those of newer batches first. An epoch has :math:`N / M_{PPO}` minibatches, whatever
    :math:`k` and the shares are. Shares are relative: while fewer batches are stored than shares are
    given, or some batches are dropped, those of the batches in use count.

    Rows of a batch are drawn without replacement, and all of them are drawn before any is drawn
    again: with equal shares an epoch is one pass, with others a batch of a large share is passed
    more than once, and one of a small share not whole.

    Equal shares are the minibatches of DISC, which has :math:`M_{PPO}` frames of the newest batch in
    each (Han & Sung 2019, `arXiv 1905.02363 <https://arxiv.org/abs/1905.02363>`_). Shares by age
    are the weights of GePPO (Queeney et al. 2021,
    `arXiv 2111.00072 <https://arxiv.org/abs/2111.00072>`_), which multiplies the losses of frames
    drawn uniformly by them; the expectation is the same.

    Args:
        frames_per_batch: ``N``, the rows of one batch.
        shares: ``nu`` of each age, the newest first, at least 0 and above 0 for the newest. Defaults
            to equal shares.

    Raises:
        TypeError: if a share is not a number.
        ValueError: if a share is out of range; when sampling, if a batch in use is older than
            there are shares, or every batch in use has a share of 0.

    Examples:
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer
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
        """What an epoch depends on."""
        return super().settings() | {"shares": self.shares}

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Each batch's share of each minibatch, newest batch first."""
        minibatches = self.frames_per_batch // batch_size
        counts = self._counts(batches.age, self.minibatch_size(batch_size, len(batches.age)))
        drawn = [
            _passes(rows, minibatches * count, generator).view(minibatches, count)
            for rows, count in zip(batches.rows, counts, strict=True)
        ]
        return torch.cat(drawn, 1)

    def _counts(self, age: Tensor, size: int) -> list[int]:
        """Rows of each batch in a minibatch of ``size``, which they add up to."""
        exact = torch.ones(len(age), dtype=torch.float64)
        if self.shares is not None:
            if int(age[-1]) >= len(self.shares) or not any(self.shares[a] for a in age.tolist()):
                raise ValueError(
                    f"shares={self.shares} and batches of ages {age.tolist()} in use: give as many "
                    "shares as the buffer keeps batches, and use one with a share above 0"
                )
            exact = torch.tensor(self.shares)[age.cpu()].double()
        exact = exact / exact.sum() * size
        counts = exact.floor()
        left = size - int(counts.sum())
        counts[(exact - counts).argsort(descending=True, stable=True)[:left]] += 1
        return counts.long().tolist()


def _passes(rows: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` of the rows in random order, none of them again before all were drawn."""
    passes = [
        rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
        for _ in range(-(-count // len(rows)))
    ]
    return torch.cat([rows[:0], *passes])[:count]
