"""The ledger: the measurements of every batch, and whether it is in use."""

import math
from enum import IntEnum

import torch
from tensordict import TensorDict
from torch import Tensor

from amber_trl.functional import (
    average_importance_ratio,
    effective_sample_size,
    is_stale,
    kl_estimate,
)


class Reason(IntEnum):
    """Why a batch is in use or not: the ``reason`` column of the ledger.

    With ``report_only=True``, it holds the verdict that would have applied.

    Examples:
        >>> from amber_trl.transforms import Reason
        >>> Reason(2).name
        'STALE'
    """

    FRESH = 0
    """In use: its staleness is within the drop factor."""
    NEWEST = 1
    """In use although stale, because the newest batch always is."""
    STALE = 2
    """Not in use: its staleness exceeds the drop factor."""
    NON_FINITE = 3
    """Not in use: its staleness is not finite."""
    UNLIMITED = 4
    """In use although its staleness is not finite, because ``drop_factor=inf`` keeps every batch."""


def make_ledger(
    log_ratio: Tensor,
    staleness: Tensor,
    age: Tensor | None,
    *,
    drop_factor: float,
    max_importance_ratio: float,
    report_only: bool,
) -> TensorDict:
    """Decide which batches are in use, and return all measurements as a TensorDict.

    The log-ratios are ``[batches, frames]``, the staleness ``d`` and the age ``[batches]``. The ledger has
    one row per batch, in the order given; ``age`` is included only if known.
    """
    reason = _verdicts(staleness, age, drop_factor)
    in_use = (reason != Reason.STALE) & (reason != Reason.NON_FINITE)
    columns = {
        "importance_ratio": average_importance_ratio(log_ratio),
        "staleness": staleness,
        "kl": kl_estimate(log_ratio),
        "ess": effective_sample_size(log_ratio),
        "max_log_ratio": log_ratio.amax(-1),
        "num_capped": (log_ratio > math.log(max_importance_ratio)).sum(-1),
        "num_non_finite": (~log_ratio.exp().isfinite()).sum(-1),
        "active": torch.ones_like(in_use) if report_only else in_use,
        "reason": reason,
    }
    if age is not None:
        columns = {"age": age} | columns
    return TensorDict(columns, batch_size=staleness.shape, device=staleness.device)


def _verdicts(staleness: Tensor, age: Tensor | None, drop_factor: float) -> Tensor:
    stale, finite = is_stale(staleness, drop_factor), staleness.isfinite()
    reason = torch.full_like(staleness, Reason.FRESH, dtype=torch.int64)
    reason[stale] = Reason.STALE
    reason[stale & ~finite] = Reason.NON_FINITE
    reason[~stale & ~finite] = Reason.UNLIMITED
    if age is not None:
        reason[stale & (age == 0)] = Reason.NEWEST
    return reason
