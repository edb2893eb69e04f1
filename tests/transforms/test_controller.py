"""The drop factor that keeps a target amount of stored data in use, by hand and in a buffer."""

import math
from typing import Any

import pytest
import torch

from amber_trl.training import LinearSchedule
from amber_trl.transforms import DropFactorController, Reason
from tests.data.frames import L, make_batch, make_filter, make_replay

INF, NAN = math.inf, math.nan
STALENESS, ESS = torch.tensor([0.3, 0.9, 0.1, 0.2]), torch.tensor([0.5, 0.9, 0.7, 0.6])
AGE = torch.tensor([1, 0, 3, 2])  # the newest is the stalest by its own measure


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ({"batches": 1}, 0.0),  # the newest alone
        ({"batches": 2}, 0.1),
        ({"batches": 4}, 0.3),
        ({"batches": 5}, 1.0),  # fewer are stored: all within the bound
        ({"batches": 4, "max_drop_factor": 0.25}, 0.25),
        ({"ess": 0.9}, 0.0),  # 0.9, then 1.6, 2.2 and 2.7 in order of staleness
        ({"ess": 1.0}, 0.1),
        ({"ess": 2.0}, 0.2),
        ({"ess": 3.0}, 1.0),
    ],
)
def test_by_hand(wanted: Any, chosen: float) -> None:
    assert DropFactorController(**wanted)(STALENESS, ESS, AGE) == pytest.approx(chosen)


def test_without_ages_no_batch_is_the_newest() -> None:
    assert DropFactorController(2)(STALENESS, ESS) == pytest.approx(0.2)
    assert DropFactorController(4)(STALENESS, ESS) == pytest.approx(0.9)


def test_rounding_below_zero_counts_as_zero() -> None:
    staleness = torch.tensor([0.0, -1e-7])
    assert DropFactorController(2)(staleness, torch.ones(2), torch.tensor([0, 1])) == 0


def test_non_finite_batches_never_count() -> None:
    staleness, ess = torch.tensor([NAN, INF, 0.4]), torch.tensor([NAN, NAN, 0.5])
    age = torch.tensor([0, 1, 2])
    assert DropFactorController(2)(staleness, ess, age) == pytest.approx(0.4)
    assert DropFactorController(3)(staleness, ess, age) == 1.0
    assert DropFactorController(ess=0.5)(staleness, ess, age) == pytest.approx(0.4)


def test_a_buffer_uses_the_wanted_number_of_batches_whatever_their_staleness() -> None:
    staleness = make_filter(DropFactorController(2, max_drop_factor=0.6))
    assert staleness.drop_factor == 0.6
    replay = make_replay(staleness=staleness)
    chosen, used = [], []
    for number, ratio in enumerate((1.5, 1.4, 1.1, 3.0)):
        replay.extend(make_batch(number, shift=math.log(ratio)))
        ledger = replay.refresh()
        chosen.append(staleness.drop_factor)
        used.append(ledger["active"].tolist())
    # The fourth batch takes the first one's place. Newest first: 0.5; 0.4, 0.5; ...
    assert chosen == pytest.approx([0.6, 0.5, 0.4, 0.1], abs=1e-5)
    assert used == [[True], [True, True], [True, True, False], [True, True, False]]
    assert ledger["reason"].tolist() == [Reason.NEWEST, Reason.FRESH, Reason.STALE]
    assert replay.num_active == 2 < len(used[-1]) == L


def test_a_schedule_of_the_drop_factor_is_refused() -> None:
    staleness = make_filter(DropFactorController(3))
    with pytest.raises(ValueError, match="drop_factor=1"):
        LinearSchedule(10, staleness=staleness).step(0)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({}, TypeError),
        ({"batches": 2, "ess": 2.0}, TypeError),
        ({"batches": 2.5}, TypeError),
        ({"batches": 0}, ValueError),
        ({"ess": 0.0}, ValueError),
        ({"ess": NAN}, ValueError),
        ({"batches": 2, "max_drop_factor": INF}, ValueError),
        ({"batches": 2, "max_drop_factor": -0.1}, ValueError),
    ],
)
def test_wrong_arguments_are_named(wanted: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="|".join(["batches", *wanted])):
        DropFactorController(**wanted)
