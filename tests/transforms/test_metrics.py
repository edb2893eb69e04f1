"""Each metric of the filter, and functions given as one."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.transforms import DistributionMetric, ISStalenessFilter, Reason
from tests.transforms.problem import ACTORS, collect, drift, gaussian, set_ratios


@pytest.fixture
def actor() -> Any:
    return gaussian().double()


@pytest.fixture
def frames(actor: Any) -> TensorDict:
    ratios = torch.tensor([[1.0, 1, 1], [0.5, 1, 3]], dtype=torch.float64)
    return set_ratios(collect(actor, 2, 3), ratios)


# The numbers of test_functional.py; the actions' ratios come from the stored log-probabilities
# alone, so the Gaussian parameters stored beside them still say that nothing has changed.
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mean_abs_deviation", 5 / 6),
        ("per_dimension", 0),
        ("kl", (1.5 + math.log(2) - math.log(3)) / 3),
        ("effective_sample_size", 1 - 27 / 41),
        (lambda log_ratio: log_ratio.abs().amax(-1), math.log(3)),
    ],
)
def test_by_hand(actor: Any, frames: TensorDict, metric: Any, expected: float) -> None:
    ledger = ISStalenessFilter(actor, drop_factor=1.5, metric=metric).measure(frames)
    torch.testing.assert_close(
        ledger["staleness"], torch.tensor([0, expected], dtype=torch.float64)
    )
    # The other columns do not depend on the metric.
    torch.testing.assert_close(ledger["importance_ratio"], torch.tensor([1, 11 / 6]).double())
    torch.testing.assert_close(ledger["ess"], torch.tensor([1, 27 / 41]).double())


def test_per_dimension_does_not_grow_with_the_dimensions() -> None:
    # The same shift of the mean in each of D dimensions.
    by_metric: dict[str, list[float]] = {"per_dimension": [], "mean_abs_deviation": []}
    for size in (1, 32):
        actor = gaussian(size).double()
        frames = collect(actor, 4096)
        with torch.no_grad():
            actor.module[0].module.mean.bias.add_(0.1)
        for metric, found in by_metric.items():
            ledger = ISStalenessFilter(actor, metric=metric).measure(frames)  # type: ignore[arg-type]
            found.append(ledger["staleness"].item())
    one, many = by_metric["per_dimension"]
    assert many == pytest.approx(one, rel=0.1)
    one, many = by_metric["mean_abs_deviation"]
    assert many > 4 * one


def test_age_counts_batches(actor: Any, frames: TensorDict) -> None:
    staleness = ISStalenessFilter(actor, drop_factor=2, metric="age")
    four = torch.cat([frames, frames])
    ledger = staleness.measure(four, torch.tensor([3, 0, 2, 1]))
    assert ledger["staleness"].tolist() == [3, 0, 2, 1]
    assert ledger["staleness"].dtype == torch.float64
    assert ledger["active"].tolist() == [False, True, True, True]
    assert ledger["reason"][0] == Reason.STALE
    for refused in (staleness.measure, staleness.select, staleness):
        with pytest.raises(RuntimeError, match="pass age="):
            refused(frames)


@pytest.mark.parametrize(
    "metric", ["mean_abs_deviation", "per_dimension", "kl", "effective_sample_size"]
)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_non_finite_batches_are_stale(actor: Any, metric: Any, value: float) -> None:
    frames = collect(actor, 2, 4)
    frames["action_log_prob"][0, 1] = value
    frames["loc"][0, 1] = value
    ledger = ISStalenessFilter(actor, drop_factor=1e6, metric=metric).measure(frames)
    bad, good = ledger["reason"].tolist()
    # A ratio of 0 (a behaviour that was infinitely sure) is finite for some metrics.
    finite_metric = value == math.inf and metric in ("mean_abs_deviation", "effective_sample_size")
    assert bad == (Reason.FRESH if finite_metric else Reason.NON_FINITE)
    assert good == Reason.FRESH


@pytest.mark.parametrize(
    "metric",
    [
        lambda log_ratio: log_ratio,
        lambda log_ratio: log_ratio.mean(),
        lambda log_ratio: log_ratio.mean(-1).tolist(),
    ],
)
def test_functions_of_another_shape_are_refused(
    actor: Any, frames: TensorDict, metric: Callable[[Tensor], Any]
) -> None:
    with pytest.raises(ValueError, match=r"metric .* returned .*\[batches\]"):
        ISStalenessFilter(actor, metric=metric).measure(frames)


@pytest.mark.parametrize(
    "metric",
    [lambda x: -x.square().mean(-1) - 1, DistributionMetric(lambda a, b: a.mean[:, 0] - 9)],
)
def test_a_negative_staleness_is_refused(actor: Any, frames: TensorDict, metric: Any) -> None:
    with pytest.raises(ValueError, match=r"metric .* returned -"):
        ISStalenessFilter(actor, metric=metric).measure(frames)


@pytest.mark.parametrize("metric", ["deviation", "", None, 3, ["kl"]])
def test_unknown_metrics_are_refused_by_name(actor: Any, metric: Any) -> None:
    with pytest.raises(ValueError, match=r"metric=.*mean_abs_deviation, per_dimension, kl"):
        ISStalenessFilter(actor, metric=metric)


@DistributionMetric
def exact_kl(current: Any, behaviour: Any) -> Tensor:
    return kl_divergence(behaviour, current)


@pytest.mark.parametrize("name", ["gaussian", "categorical", "nested"])
def test_an_exact_kl_sees_both_distributions_of_each_stored_frame(name: str) -> None:
    actor = ACTORS[name]().double()
    staleness = ISStalenessFilter(actor, drop_factor=math.inf, metric=exact_kl, chunk_size=5)
    replay = MultiBatchReplayBuffer(2, 8, 2, staleness=staleness, keys=staleness.in_keys)
    for seed in range(2):
        replay.extend(collect(actor, 8, seed=seed))
    before = replay.storage[:].clone()
    assert replay.refresh()["staleness"].tolist() == [0, 0]
    drift(actor)
    with torch.no_grad():
        after = actor.get_dist(before.select(*actor.in_keys[:1]))
    recorded: Distribution
    if name == "categorical":
        recorded = Categorical(logits=before["logits"])
    else:
        recorded = Independent(Normal(before["loc"], before["scale"]), 1)
    by_hand = kl_divergence(recorded, after).view(2, 8).mean(1).flip(0)  # the newest first
    assert (by_hand > 1e-3).all()
    torch.testing.assert_close(replay.refresh()["staleness"], by_hand)


def test_a_decorated_metric_is_pickled_by_its_name(actor: Any) -> None:
    staleness = ISStalenessFilter(actor, metric=exact_kl)
    assert pickle.loads(pickle.dumps(staleness)).metric is exact_kl
    plain = DistributionMetric(kl_divergence)
    assert pickle.loads(pickle.dumps(plain)) == copy.deepcopy(plain) == plain


@pytest.mark.parametrize(
    "wrong", [lambda _, b: kl_divergence(b.base_dist, b.base_dist), lambda *_: 1.0, lambda *_: None]
)
def test_a_metric_of_distributions_returns_a_number_per_frame(actor: Any, wrong: Any) -> None:
    staleness = ISStalenessFilter(actor, metric=DistributionMetric(wrong))
    with pytest.raises(ValueError, match=r"metric .* returned .*\[frames\]"):
        staleness.measure(collect(actor, 8))


@pytest.mark.parametrize("metric", ["per_dimension", exact_kl])
def test_the_behaviour_s_parameters_must_be_stored(actor: Any, metric: Any) -> None:
    staleness = ISStalenessFilter(actor, metric=metric)
    with pytest.raises(KeyError, match=r"scale.*metric=.*keys="):
        staleness.measure(collect(actor, 8).exclude("scale"))


def test_per_dimension_of_a_categorical_actor_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"per_dimension.*Categorical"):
        ISStalenessFilter(ACTORS["categorical"](), metric="per_dimension")
