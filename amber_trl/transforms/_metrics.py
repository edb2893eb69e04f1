"""Staleness metrics: how far a stored batch is from the current actor, as one number."""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from amber_trl.functional import effective_sample_size, kl_estimate, mean_abs_deviation

MetricName: TypeAlias = Literal[
    "mean_abs_deviation", "per_dimension", "kl", "effective_sample_size", "age"
]
StalenessMetric: TypeAlias = MetricName | Callable[[Tensor], Tensor]
"""A name, or a function of the log-ratios ``[..., N]`` of a batch to its ``d >= 0``, ``[...]``."""


OF_LOG_RATIO: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_abs_deviation": mean_abs_deviation,
    "kl": kl_estimate,
    "effective_sample_size": lambda log_ratio: 1 - effective_sample_size(log_ratio),
}


def check_metric(metric: StalenessMetric) -> StalenessMetric:
    """Return ``metric`` if it is known or callable, raise ``ValueError`` if not."""
    if not callable(metric) and metric not in get_args(MetricName):
        raise ValueError(
            f"metric={metric!r} is unknown: choose one of {', '.join(get_args(MetricName))}, or "
            "pass a function of the log-ratios [..., N]"
        )
    return metric
