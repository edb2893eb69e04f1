"""The filter's measurements, and its ledger."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from amber_trl.transforms import ISStalenessFilter, Reason
from tests.transforms.problem import collect, drift, gaussian, set_ratios

INF, NAN = math.inf, math.nan
COLUMNS = {
    "importance_ratio": torch.float64,
    "staleness": torch.float64,
    "kl": torch.float64,
    "ess": torch.float64,
    "max_log_ratio": torch.float64,
    "num_capped": torch.int64,
    "num_non_finite": torch.int64,
    "active": torch.bool,
    "reason": torch.int64,
}


@pytest.fixture
def actor() -> Any:
    return gaussian().double()


def of_ratios(actor: Any, *batches: list[float]) -> TensorDict:
    ratios = torch.tensor(batches, dtype=torch.float64)
    return set_ratios(collect(actor, *ratios.shape), ratios)


def test_ledger_by_hand(actor: Any) -> None:
    # The ratios of test_functional.py, then a fresh batch.
    frames = of_ratios(actor, [0.5, 1, 3], [1, 1, 1])
    ledger = ISStalenessFilter(actor, drop_factor=0.8, max_importance_ratio=2.5).measure(frames)
    expected = {
        "importance_ratio": [11 / 6, 1],
        "staleness": [5 / 6, 0],
        "kl": [(1.5 + math.log(2) - math.log(3)) / 3, 0],
        "ess": [27 / 41, 1],
        "max_log_ratio": [math.log(3), 0],
        "num_capped": [1, 0],
        "num_non_finite": [0, 0],
        "active": [False, True],
        "reason": [Reason.STALE, Reason.FRESH],
    }
    assert {*ledger.keys()} == expected.keys() == COLUMNS.keys()
    for column, values in expected.items():
        torch.testing.assert_close(
            ledger[column].double(), torch.tensor(values, dtype=torch.float64), msg=column
        )


def test_one_batch_is_a_ledger_of_one_row(actor: Any) -> None:
    frames = collect(actor, 3, 7)
    drift(actor)
    staleness = ISStalenessFilter(actor)
    rows = [staleness.measure(batch) for batch in frames]
    assert all(row.batch_size == (1,) for row in rows)
    together = staleness.measure(frames)
    for column in COLUMNS:
        torch.testing.assert_close(torch.cat([row[column] for row in rows]), together[column])


def test_ages_may_be_on_another_device_than_frames(actor: Any) -> None:
    frames = collect(actor, 3, 7).to("meta")
    ledger = ISStalenessFilter(actor.to("meta")).measure(frames, torch.arange(3))
    assert {column.device.type for column in ledger.values()} == {"meta"}


@pytest.mark.parametrize("chunk_size", [1, 4, 7, 13, 21, 10_000])
@pytest.mark.parametrize("metric", ["mean_abs_deviation", "per_dimension"])
def test_chunks_change_nothing(actor: Any, chunk_size: int, metric: Any) -> None:
    frames = collect(actor, 3, 7)
    drift(actor)
    whole = ISStalenessFilter(actor, metric=metric).measure(frames)
    chunked = ISStalenessFilter(actor, metric=metric, chunk_size=chunk_size).measure(frames)
    for column in COLUMNS:
        torch.testing.assert_close(chunked[column], whole[column], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("drop_factor", [0, 0.25, INF])
@pytest.mark.parametrize("report_only", [False, True])
@pytest.mark.parametrize("aged", [False, True])
def test_verdicts(actor: Any, drop_factor: float, report_only: bool, aged: bool) -> None:
    # d = 0, 1/4, 1/2 and infinite, then the same with the age of the newest.
    rows = [[1.0, 1.0], [0.75, 1.25], [0.5, 1.5], [INF, 1.0]] * 2
    age = torch.tensor([5, 6, 7, 8, 0, 0, 0, 0]) if aged else None
    staleness = ISStalenessFilter(actor, drop_factor, report_only=report_only)
    ledger = staleness.measure(of_ratios(actor, *rows), age)
    fresh, newest, stale = Reason.FRESH, Reason.NEWEST, Reason.STALE
    lost, unlimited = Reason.NON_FINITE, Reason.UNLIMITED
    old = {
        0: [fresh, stale, stale, lost],
        0.25: [fresh, fresh, stale, lost],
        INF: [fresh, fresh, fresh, unlimited],
    }[drop_factor]
    new = [newest if aged and reason in (stale, lost) else reason for reason in old]
    assert [Reason(reason) for reason in ledger["reason"].tolist()] == old + new
    in_use = [reason not in (stale, lost) for reason in old + new]
    assert ledger["active"].tolist() == ([True] * 8 if report_only else in_use)


def test_reason_codes_keep_their_numbers() -> None:
    # They are written to files that later versions read.
    assert {reason.name: int(reason) for reason in Reason} == {
        "FRESH": 0,
        "NEWEST": 1,
        "STALE": 2,
        "NON_FINITE": 3,
        "UNLIMITED": 4,
    }


def test_the_drop_factor_anneals(actor: Any) -> None:
    frames = of_ratios(actor, [0.75, 1.25])
    staleness = ISStalenessFilter(actor, 0.5)
    verdicts = []
    for staleness.drop_factor in (0.5, 0.26, 0.24, 0):
        verdicts += staleness.measure(frames)["active"].tolist()
    assert verdicts == [True, True, False, False]
    for bad in (-0.1, NAN, "much", True, np.bool_(True), np.float32(-1)):
        with pytest.raises((TypeError, ValueError), match="drop_factor"):
            staleness.drop_factor = bad  # type: ignore[assignment]
    assert staleness.drop_factor == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("log_ratio", "non_finite", "capped", "finite_kl"),
    [(1000.0, 1, 1, False), (-1000.0, 0, 0, True), (INF, 1, 1, False), (NAN, 1, 0, False)],
)
def test_extreme_frames_are_counted(
    dtype: torch.dtype, log_ratio: float, non_finite: int, capped: int, finite_kl: bool
) -> None:
    actor = gaussian().to(dtype)
    frames = collect(actor, 2, 4)
    frames["action_log_prob"][0, 1] -= log_ratio
    ledger = ISStalenessFilter(actor, drop_factor=0.3).measure(frames)
    assert ledger["num_non_finite"].tolist() == [non_finite, 0]
    assert ledger["num_capped"].tolist() == [capped, 0]
    assert ledger["kl"].isfinite().tolist() == [finite_kl, True]
    # A ratio of 0 in one of four frames is d = 1/4, not the end.
    assert ledger["active"].tolist() == [log_ratio == -1000, True]
    largest = 0.0 if log_ratio == -1000 else log_ratio  # of the batch, sign and all
    expected = torch.tensor([largest, 0], dtype=dtype)
    torch.testing.assert_close(
        ledger["max_log_ratio"], expected, equal_nan=True, rtol=1e-3, atol=1e-3
    )


def test_capped_frames_leave_the_ratio_alone(actor: Any) -> None:
    ledger = ISStalenessFilter(actor).measure(of_ratios(actor, [2000.0, 999, 1, 1]))
    assert ledger["num_capped"].tolist() == [1]
    assert ledger["importance_ratio"].item() == pytest.approx(1 + (1999 + 998) / 4, rel=1e-12)


def test_mixed_precision_measures_in_the_wider(actor: Any) -> None:
    frames = collect(actor, 1, 6)
    exact = frames["action_log_prob"]
    frames["action_log_prob"] = exact.float()
    ledger = ISStalenessFilter(actor).measure(frames)
    assert ledger["kl"].dtype == torch.float64
    expected = torch.expm1(exact - exact.float()).abs().mean(-1)
    torch.testing.assert_close(ledger["staleness"], expected)


def test_log_probabilities_with_a_last_dimension(actor: Any) -> None:
    frames = collect(actor, 2, 6)
    drift(actor)
    staleness = ISStalenessFilter(actor)
    expected: Tensor = staleness.measure(frames)["staleness"]
    frames["action_log_prob"] = frames["action_log_prob"].unsqueeze(-1)
    assert torch.equal(staleness.measure(frames)["staleness"], expected)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 2), (2, 2, 2)])
def test_anything_but_a_batch_is_refused(actor: Any, shape: tuple[int, ...]) -> None:
    frames = TensorDict(batch_size=shape)
    with pytest.raises(ValueError, match=r"batch size.*\[batches, frames\]"):
        ISStalenessFilter(actor).measure(frames)


@pytest.mark.parametrize("age", [torch.arange(3), [0, 1], (0, 1), np.arange(2)])
def test_ages_are_a_tensor_of_one_for_each_batch(actor: Any, age: Any) -> None:
    with pytest.raises(ValueError, match=r"age=.* for 2 batches"):
        ISStalenessFilter(actor).measure(collect(actor, 2, 4), age)


@pytest.mark.parametrize(
    "arguments",
    [
        {"chunk_size": 0},
        {"chunk_size": 1.5},
        {"max_importance_ratio": 0},
        {"max_importance_ratio": None},
        {"max_importance_ratio": NAN},
        {"drop_factor": -1},
        {"drop_factor": None},
    ],
)
def test_arguments_out_of_range_are_refused(actor: Any, arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises((TypeError, ValueError), match=name):
        ISStalenessFilter(actor, **arguments)
