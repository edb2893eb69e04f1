"""The paper's equations against numbers worked out by hand, and the properties that they must have."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vtrace_advantage_estimate,
)

from amber_trl.functional import (
    average_importance_ratio,
    effective_sample_size,
    gae_v,
    is_stale,
    kl_estimate,
    linear_anneal,
    mean_abs_deviation,
    per_dimension_deviation,
    vtrace,
)

OF_FRAMES = [average_importance_ratio, mean_abs_deviation, kl_estimate, effective_sample_size]
INF, NAN = math.inf, math.nan

examples = settings(derandomize=True, deadline=None, max_examples=40, database=None)
log_ratios = st.lists(st.floats(-20, 20), min_size=1, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def log_of(*ratios: float) -> Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


# Ratios 1/2, 1, 3: |r - 1| = 1/2, 0, 2, mean 5/6.
# r - 1 - log r = -1/2 + log 2, 0, 2 - log 3, mean (3/2 + log 2 - log 3) / 3.
# ESS / N = (9/2)^2 / (3 (1/4 + 1 + 9)) = (81/4) / (3 * 41/4) = 27/41.
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (average_importance_ratio, 11 / 6),
        (mean_abs_deviation, 5 / 6),
        (kl_estimate, (1.5 + math.log(2) - math.log(3)) / 3),
        (effective_sample_size, 27 / 41),
    ],
)
def test_by_hand(function: Callable[[Tensor], Tensor], expected: float) -> None:
    assert function(log_of(0.5, 1, 3)).item() == pytest.approx(expected, rel=1e-14)


def test_of_a_discrete_policy_by_hand() -> None:
    # Old policy (1/2, 1/4, 1/4), new (1/4, 1/4, 1/2); four frames in the old one's proportions.
    log_ratio = log_of(0.5, 0.5, 1, 2)
    # Total variation = 1/2 (1/4 + 0 + 1/4) = 1/4, and R' - 1 is twice that.
    assert average_importance_ratio(log_ratio).item() == pytest.approx(1 + 2 * 0.25, rel=1e-14)
    # KL(old, new) = 1/2 log 2 + 0 - 1/4 log 2.
    assert kl_estimate(log_ratio).item() == pytest.approx(math.log(2) / 4, rel=1e-14)
    # (4)^2 / (4 (1/4 + 1/4 + 1 + 4)) = 16/22.
    assert effective_sample_size(log_ratio).item() == pytest.approx(8 / 11, rel=1e-14)


def test_per_dimension_by_hand() -> None:
    log_ratio = log_of(0.5, 1, 2, 3, 1, 1).view(3, 2)
    assert per_dimension_deviation(log_ratio).item() == pytest.approx((0.5 + 1 + 2) / 6, rel=1e-14)
    # The whole actions' ratios are 1/2, 6, 1: the deviation of the product is not that average.
    assert mean_abs_deviation(log_ratio.sum(-1)).item() == pytest.approx((0.5 + 5) / 3, rel=1e-14)


def test_per_dimension_of_one_dimension_is_the_deviation() -> None:
    log_ratio = torch.randn(4, 7, dtype=torch.float64)
    assert torch.equal(
        per_dimension_deviation(log_ratio.unsqueeze(-1)), mean_abs_deviation(log_ratio)
    )


@pytest.mark.parametrize("function", OF_FRAMES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_every_dimension_can_hold_the_frames(function: Callable[..., Tensor], dim: int) -> None:
    log_ratio = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = torch.stack(
        [function(row) for row in log_ratio.movedim(dim, -1).reshape(-1, log_ratio.shape[dim])]
    )
    measured = function(log_ratio, dim)
    torch.testing.assert_close(measured.flatten(), expected)
    assert measured.shape == log_ratio.select(dim, 0).shape


@pytest.mark.parametrize("function", [*OF_FRAMES, per_dimension_deviation])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2), (torch.float32, 1e-6)]
)
def test_every_floating_dtype(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    log_ratio = 0.3 * torch.randn(4096, 2, dtype=torch.float64).to(dtype)
    measured = function(log_ratio.mT if function is not per_dimension_deviation else log_ratio)
    exact = log_ratio.double()
    expected = function(exact.mT if function is not per_dimension_deviation else exact)
    assert measured.dtype == dtype
    torch.testing.assert_close(measured.double(), expected, rtol=tolerance, atol=tolerance)


def test_small_deviations_are_not_lost_to_rounding() -> None:
    log_ratio = torch.tensor([1e-7, -1e-7])
    assert mean_abs_deviation(log_ratio).item() == pytest.approx(1e-7, rel=1e-5)


# One extreme frame among four; r is 1 in the other three.
@pytest.mark.parametrize(
    ("extreme", "deviation", "kl", "ess"),
    [
        (1000.0, INF, INF, 1 / 4),
        # r = 0: |r - 1| = 1 and r - 1 - log r = 999; three of four weights are 1.
        (-1000.0, 1 / 4, 999 / 4, 3 / 4),
        (INF, INF, NAN, NAN),
        (-INF, 1 / 4, INF, 3 / 4),
        (NAN, NAN, NAN, NAN),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_frames(
    extreme: float, deviation: float, kl: float, ess: float, dtype: torch.dtype
) -> None:
    log_ratio = torch.tensor([0, 0, extreme, 0], dtype=dtype)
    assert mean_abs_deviation(log_ratio).item() == pytest.approx(deviation, nan_ok=True)
    assert average_importance_ratio(log_ratio).item() == pytest.approx(1 + deviation, nan_ok=True)
    assert kl_estimate(log_ratio).item() == pytest.approx(kl, nan_ok=True)
    assert effective_sample_size(log_ratio).item() == pytest.approx(ess, nan_ok=True)
    of_two = per_dimension_deviation(log_ratio.view(2, 2))
    assert of_two.item() == pytest.approx(deviation, nan_ok=True)


def test_an_extreme_batch_leaves_the_others_alone() -> None:
    log_ratio = torch.tensor([[1000.0, 0, 0], [NAN, 0, 0], [0.5, 0, -0.5]])
    for function in OF_FRAMES:
        assert torch.equal(function(log_ratio)[2], function(log_ratio[2]))


@examples
@given(log_ratios)
def test_ranges(log_ratio: Tensor) -> None:
    frames = len(log_ratio)
    assert average_importance_ratio(log_ratio) >= 1
    assert kl_estimate(log_ratio) >= 0
    assert 1 / frames * (1 - 1e-12) <= effective_sample_size(log_ratio) <= 1
    # Jensen: the mean distance is at least the distance of the mean.
    deviation, mean = mean_abs_deviation(log_ratio), log_ratio.exp().mean()
    assert deviation >= (mean - 1).abs() * (1 - 1e-12) - 1e-12


@examples
@given(st.floats(-80, 80, width=32), st.integers(1, 300))
def test_ranges_hold_through_rounding(value: float, frames: int) -> None:
    log_ratio = torch.full((frames,), value, dtype=torch.float32)
    assert kl_estimate(log_ratio) >= 0
    assert effective_sample_size(log_ratio) == 1


def test_nearly_equal_ratios_are_no_more_than_all() -> None:
    log_ratio = 1e-4 * torch.randn(64, 333)
    assert (effective_sample_size(log_ratio) <= 1).all()


@examples
@given(log_ratios, st.randoms(use_true_random=False))
def test_order_and_repetition_of_frames_do_not_matter(log_ratio: Tensor, random: Any) -> None:
    order = list(range(len(log_ratio)))
    random.shuffle(order)
    for function in OF_FRAMES:
        torch.testing.assert_close(function(log_ratio[order]), function(log_ratio))
        torch.testing.assert_close(function(log_ratio.repeat(3)), function(log_ratio))


@examples
@given(log_ratios, log_ratios)
def test_a_union_is_the_weighted_mean(first: Tensor, second: Tensor) -> None:
    both = torch.cat([first, second])
    share = len(first) / len(both)
    for function in (average_importance_ratio, mean_abs_deviation, kl_estimate):
        mixed = share * function(first) + (1 - share) * function(second)
        torch.testing.assert_close(function(both), mixed)


@examples
@given(log_ratios, st.floats(-600, 600))
def test_effective_sample_size_ignores_the_scale(log_ratio: Tensor, shift: float) -> None:
    torch.testing.assert_close(
        effective_sample_size(log_ratio + shift), effective_sample_size(log_ratio)
    )


@examples
@given(log_ratios, st.floats(1, 2))
def test_further_from_one_is_staler(log_ratio: Tensor, factor: float) -> None:
    assert mean_abs_deviation(factor * log_ratio) >= mean_abs_deviation(log_ratio)
    assert kl_estimate(factor * log_ratio) >= kl_estimate(log_ratio) * (1 - 1e-12)


@pytest.mark.parametrize("function", [*OF_FRAMES, per_dimension_deviation])
def test_anything_but_a_log_ratio_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match=r"int64.*floating"):
        function(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(3, 0\).*at least one"):
        function(torch.zeros(3, 0))
    with pytest.raises(ValueError, match=r"\(\)"):
        function(torch.zeros(()))


def test_per_dimension_needs_dimensions() -> None:
    with pytest.raises(ValueError, match=r"\(5,\).*mean_abs_deviation"):
        per_dimension_deviation(torch.zeros(5))


def test_stale_by_hand() -> None:
    staleness = torch.tensor(
        [0, 0.25, torch.nextafter(torch.tensor(0.25), torch.tensor(1.0)), INF, NAN]
    )
    assert is_stale(staleness, 0.25).tolist() == [False, False, True, True, True]
    assert is_stale(staleness, 0).tolist() == [False, True, True, True, True]
    assert is_stale(staleness, INF).tolist() == [False] * 5
    assert is_stale(staleness.view(5, 1), 0.25).shape == (5, 1)


def test_stale_compares_in_the_precision_of_the_staleness() -> None:
    assert not is_stale(torch.tensor(0.1, dtype=torch.float32), 0.1)
    assert not is_stale(torch.tensor(0.1, dtype=torch.float64), 0.1)


@examples
@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_stale_is_monotone(staleness: float, lower: float, higher: float) -> None:
    lower, higher = sorted((lower, higher))
    d = torch.tensor(staleness, dtype=torch.float64)
    assert is_stale(d, lower) or not is_stale(d, higher)
    assert is_stale(d + lower, higher) or not is_stale(d, higher)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        *((number, ValueError) for number in (-0.01, -INF, NAN)),
        *((value, TypeError) for value in ("0.25", None, True, torch.tensor(0.25))),
    ],
)
def test_anything_but_a_drop_factor_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="drop_factor"):
        is_stale(torch.zeros(1), value)


# 489 iterations of 2048 frames reach 1 000 000; the last starts at 488 * 2048 = 999 424.
@pytest.mark.parametrize(
    ("initial", "frames", "total_frames", "expected"),
    [
        (0.4, 0, 1_000_000, 0.4),
        (0.4, 250_000, 1_000_000, 0.3),
        (3e-4, 999_424, 1_000_000, 3e-4 * 576 / 1_000_000),
        (0.25, 1_000_000, 1_000_000, 0.0),
        (0.25, 1_500_000, 1_000_000, 0.0),
        (INF, 999_999, 1_000_000, INF),
        (INF, 2_000_000, 1_000_000, INF),
        (0.0, 10, 100, 0.0),
        (1.0, 0, 1, 1.0),
    ],
)
def test_anneal_by_hand(initial: float, frames: int, total_frames: int, expected: float) -> None:
    assert linear_anneal(initial, frames, total_frames) == pytest.approx(expected, rel=1e-12)


@examples
@given(st.floats(0, 1e3), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 10**9))
def test_anneal_falls_and_stays_in_range(
    initial: float, first: int, second: int, total_frames: int
) -> None:
    early, late = sorted((first, second))
    value = linear_anneal(initial, late, total_frames)
    assert 0 <= value <= linear_anneal(initial, early, total_frames) <= initial


def test_anneal_refuses_values_out_of_range() -> None:
    with pytest.raises(ValueError, match="total_frames=0"):
        linear_anneal(1.0, 0, 0)
    nan: Any = NAN
    for frames in (-1, nan):
        with pytest.raises(ValueError, match=f"frames={frames}"):
            linear_anneal(1.0, frames, 10)
    with pytest.raises(ValueError, match="total_frames=nan"):
        linear_anneal(1.0, 0, nan)


# TorchRL rounds the discount to float32 when the frames are of doubles.
ROUNDED: Any = {"rtol": 1e-6, "atol": 1e-6}


def _trajectories() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Value, next value, reward, done and terminated of five trajectories of 40 frames."""
    torch.manual_seed(0)
    done = torch.rand(5, 40) < 0.2
    terminated = done & (torch.rand(5, 40) < 0.5)
    value, beyond, reward = torch.randn(3, 5, 40, dtype=torch.float64)
    following = torch.cat([value[:, 1:], beyond[:, :1]], 1)
    return value, torch.where(done, beyond, following), reward, done, terminated


def test_without_low_ratios_gae_v_is_gae_and_vtrace_has_its_targets() -> None:
    frames = _trajectories()
    expected = generalized_advantage_estimate(0.9, 0.8, *(x[..., None] for x in frames))
    advantage, target = (column.squeeze(-1) for column in expected)
    log_ratio = torch.rand(5, 40, dtype=torch.float64) * 1000  # ratios above 1 count as 1
    found = gae_v(0.9, 0.8, *frames, log_ratio)
    torch.testing.assert_close(found, (advantage, target), **ROUNDED)
    torch.testing.assert_close(vtrace(0.9, 0.8, *frames, log_ratio)[1], target, **ROUNDED)
    done, terminated = (flags.byte() for flags in frames[3:])  # not to be inverted bit by bit
    again = gae_v(0.9, 0.8, *frames[:3], done, terminated, log_ratio)
    assert torch.equal(again[1], found[1])
    torch.testing.assert_close(
        vtrace(0.9, 1.0, *frames, log_ratio), gae_v(0.9, 1.0, *frames, log_ratio)
    )


def test_vtrace_is_torchrls_but_for_the_weight_of_the_first_action() -> None:
    frames = _trajectories()
    log_ratio = torch.randn(5, 40, dtype=torch.float64)
    weighted, target = vtrace_advantage_estimate(
        0.9, log_ratio[..., None], torch.zeros(5, 40, 1), *(x[..., None] for x in frames)
    )
    found = vtrace(0.9, 1.0, *frames, log_ratio)
    weighted_by_hand = found[0] * log_ratio.exp().clamp(max=1)
    torch.testing.assert_close(weighted_by_hand, weighted.squeeze(-1), **ROUNDED)
    torch.testing.assert_close(found[1], target.squeeze(-1), **ROUNDED)


@pytest.mark.parametrize(("estimate", "trace"), [(gae_v, 0.9), (vtrace, 1.0)])
def test_advantages_keep_double_precision(estimate: Any, trace: float) -> None:
    one, no = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.bool)
    advantage, _ = estimate(0.99, 0.9, 0 * one, one, one, no, no, 0 * one)
    assert advantage[0].item() == pytest.approx(1.99 + 0.99 * trace * 1.99, rel=1e-14)


def test_advantages_of_different_shapes_are_refused() -> None:
    frames = _trajectories()
    with pytest.raises(ValueError, match="log_ratio"):
        gae_v(0.9, 0.8, *frames, torch.zeros(5, 1))
