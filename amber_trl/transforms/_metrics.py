"""Staleness metrics: how far a stored batch is from the current actor, as one number."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor
from torch.distributions import Distribution

from amber_trl.functional import effective_sample_size, kl_estimate, mean_abs_deviation

MetricName: TypeAlias = Literal[
    "mean_abs_deviation", "per_dimension", "kl", "effective_sample_size", "age"
]


@dataclass(frozen=True)
class DistributionMetric:
    """A staleness metric that sees both distributions of each stored frame; usable as a decorator.

    A batch's staleness is the mean over its frames of the values that ``function`` returns. The current
    distribution is the actor's. The behaviour policy's distribution is rebuilt from the parameters that
    were recorded with the frame, under the keys to which the actor writes them (such as ``loc`` and
    ``scale``); the filter's ``in_keys`` then include these. Frames are passed in chunks of the filter's
    ``chunk_size``, which bounds memory.

    Attributes:
        function: maps the current and the behaviour policy's distribution, both over the actions of
            ``[frames]``, to one number ``>= 0`` per frame, ``[frames]``.

    Examples:
        The exact KL divergence of the current policy from the behaviour policy:

        >>> from torch.distributions import kl_divergence
        >>> from amber_trl.transforms import DistributionMetric
        >>> @DistributionMetric
        ... def exact_kl(current, behaviour):
        ...     return kl_divergence(behaviour, current)

        Here the two means of each frame are one standard deviation apart, so the divergence is 1/2:

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.transforms import ISStalenessFilter
        >>> actor = gaussian_actor(observation_size=3, action_size=1)
        >>> batches = actor(TensorDict({"observation": torch.randn(2, 64, 3)}, [2, 64])).detach()
        >>> batches["loc"][1] += batches["scale"][1]
        >>> ISStalenessFilter(actor, metric=exact_kl).measure(batches)["staleness"]
        tensor([0.0000, 0.5000])
    """

    function: Callable[[Distribution, Distribution], Tensor]

    def __call__(self, current: Distribution, behaviour: Distribution) -> Tensor:
        """The result of the function, ``[frames]``."""
        return self.function(current, behaviour)

    def __reduce__(self) -> tuple[Any, ...]:
        # After decoration, the function's name refers to the metric, so the metric is importable.
        module, name = (getattr(self.function, of, "") for of in ("__module__", "__qualname__"))
        if getattr(sys.modules.get(module), name, None) is self:
            return resolve_name, (f"{module}:{name}",)
        return type(self), (self.function,)


StalenessMetric: TypeAlias = MetricName | DistributionMetric | Callable[[Tensor], Tensor]
"""A name, a metric of two distributions, or a function from the log-ratios ``[..., N]`` of a batch to
its ``d >= 0``, ``[...]``."""


OF_LOG_RATIO: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_abs_deviation": mean_abs_deviation,
    "kl": kl_estimate,
    "effective_sample_size": lambda log_ratio: 1 - effective_sample_size(log_ratio),
}


def check_metric(metric: StalenessMetric) -> StalenessMetric:
    """Return ``metric`` if it is known or callable; raise ``ValueError`` otherwise."""
    if not callable(metric) and metric not in get_args(MetricName):
        raise ValueError(
            f"metric={metric!r} is unknown: choose one of {', '.join(get_args(MetricName))}, or "
            "pass a function of the log-ratios [..., N], or a DistributionMetric"
        )
    return metric
