"""Custom parts that tests name on the recipes' command line."""

from functools import partial
from typing import Any

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence
from torchrl.data import Composite, TensorSpec
from torchrl.modules import IndependentNormal, ProbabilisticActor

from amber_trl.data import ActiveBatches, MultiBatchSampler
from amber_trl.modules import ObservationNormalizer
from amber_trl.transforms import DistributionMetric


def state_dependent(
    observation_spec: Composite, action_spec: TensorSpec, *, normalizer: ObservationNormalizer
) -> ProbabilisticActor:
    """A Gaussian whose deviation depends on the state, with keys of its own."""
    actions, observations = action_spec.shape[-1], observation_spec["observation"].shape[-1]
    network = nn.Sequential(
        normalizer, nn.Linear(observations, 2 * actions), NormalParamExtractor()
    )
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["mean", "deviation"]),
        in_keys={"loc": "mean", "scale": "deviation"},
        out_keys=["action"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
        log_prob_key="log_mu",
    )


def raw(observation_spec: Any, action_spec: Any, *, normalizer: Any, **other: Any) -> Any:
    """One that reads raw observations; ``other`` replaces its arguments."""
    made = {"in_key": "observation", "out_keys": ["action"], "return_log_prob": True, **other}
    size = made.pop("size", action_spec.shape[-1])
    first = made.pop("first", nn.Identity())
    network = nn.Sequential(first, nn.Linear(3, 2 * size), NormalParamExtractor())
    module = TensorDictModule(network, [made.pop("in_key")], ["loc", "scale"])
    return ProbabilisticActor(
        module, ["loc", "scale"], distribution_class=IndependentNormal, **made
    )


batch_normalized = partial(raw, first=nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()))
silent = partial(raw, return_log_prob=False)
misnamed = partial(raw, out_keys=["torque"])
of_pixels = partial(raw, in_key="pixels")
too_many = partial(raw, size=3)


def critic(*specs: Any, normalizer: Any) -> Any:
    return nn.Linear(3, 1)


@DistributionMetric
def exact_kl(current: Distribution, behaviour: Distribution) -> Tensor:
    return kl_divergence(behaviour, current)


class NewestTwice(MultiBatchSampler):
    """Draws the newest batch twice as often as any other."""

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        assert batches.ledger is not None
        weights = (1 + (batches.age == 0)).repeat_interleave(self.frames_per_batch)
        minibatches = self.frames_per_batch // batch_size
        rows = minibatches * self.minibatch_size(batch_size, len(batches.age))
        drawn = weights.float().multinomial(rows, replacement=True, generator=generator)
        return batches.rows.flatten()[drawn].view(minibatches, -1)
