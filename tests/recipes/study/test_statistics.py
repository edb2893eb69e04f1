"""Worked examples, the paper's own tables, and the coverage that the intervals claim."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from study.references import paper_average_normalized_scores, paper_task_scores
from study.statistics import (
    average_normalized_scores,
    bootstrap,
    gaussian_improvement,
    interquartile_mean,
    mean_score,
    normalize,
    probability_of_improvement,
    welch_difference,
)


def test_interquartile_mean_by_hand() -> None:
    # Sorted: -9 0 1 1 2 2 3 9; two leave at each end; (1 + 1 + 2 + 2) / 4.
    scores = {"a": [0.0, 1.0, 2.0, 9.0], "b": [-9.0, 1.0, 2.0, 3.0]}
    assert interquartile_mean(scores) == 1.5
    # Of five one leaves at each end.
    assert interquartile_mean({"a": [100.0, 1.0, 2.0, 3.0, -100.0]}) == 2


def test_mean_weighs_tasks_not_runs() -> None:
    assert mean_score({"a": [1.0, 3.0], "b": [10.0]}) == 6


def test_improvement_by_hand() -> None:
    # On a: 1 > 0; 1 = 1 counts half; 3 > 0, 3 > 1: 3.5 of 4. On b: 0 of 1.
    ours, theirs = {"a": [1.0, 3.0], "b": [0.0]}, {"a": [0.0, 1.0], "b": [5.0]}
    assert probability_of_improvement(ours, theirs) == pytest.approx(7 / 16)
    assert probability_of_improvement(theirs, ours) == pytest.approx(9 / 16)


def test_average_normalized_by_hand() -> None:
    # On a the means are 1, 2, 6: minus 3, over sqrt(14 / 3). On b they are 0, 0, 3: minus 1,
    # over sqrt(2).
    x, y, z = average_normalized_scores(
        [
            {"a": [0.0, 2.0], "b": [0.0]},
            {"a": [2.0], "b": [0.0]},
            {"a": [6.0, 6.0], "b": [3.0]},
        ]
    )
    first, second = math.sqrt(14 / 3), math.sqrt(2)
    assert x == pytest.approx((-2 / first - 1 / second) / 2)
    assert y == pytest.approx((-1 / first - 1 / second) / 2)
    assert z == pytest.approx((3 / first + 2 / second) / 2)
    assert x + y + z == pytest.approx(0)


def test_a_task_with_equal_scores_does_not_distinguish_setups() -> None:
    scores = [{"a": [1.0], "b": [0.0]}, {"a": [1.0], "b": [2.0]}]
    assert average_normalized_scores(scores).tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(("metric", "total"), [("final", 0.000), ("speed", 0.001)])
def test_the_papers_normalised_scores_sum_to_nothing(metric: str, total: float) -> None:
    table = paper_average_normalized_scores()
    values = table.loc[table["metric"] == metric, "average_normalized_score"]
    assert len(values) == 35
    assert values.sum() == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("metric", "probability"), [("final", 0.69), ("speed", 0.71)])
def test_improvement_that_the_papers_table_implies(metric: str, probability: float) -> None:
    table = paper_task_scores()
    amber, ppo = (
        table[(table["metric"] == metric) & (table["setup"] == setup)].set_index("task")
        for setup in ("amber", "ppo")
    )
    assert len(amber) == len(ppo) == 12
    ppo = ppo.loc[amber.index]
    found = gaussian_improvement(amber["mean"], amber["std"], ppo["mean"], ppo["std"])
    assert round(found, 2) == probability


def test_gaussian_improvement_is_that_of_many_gaussian_runs() -> None:
    generator = np.random.default_rng(1)
    ours, theirs = generator.normal(1, 2, 2000), generator.normal(0, 1, 2000)
    drawn = probability_of_improvement({"a": ours}, {"a": theirs})
    assert gaussian_improvement([1.0], [2.0], [0.0], [1.0]) == pytest.approx(float(drawn), abs=0.02)


def test_welch_by_hand() -> None:
    # Variances of the means 4 / 4 = 1 and 1 / 4; freedom (5/4)^2 / (1/3 + 1/48) = 75/17.
    found = welch_difference(5.0, 2.0, 4, 1.0, 1.0, 4)
    assert found.value == 4
    half = 2.677174 * math.sqrt(1.25)  # Student's 97.5 % quantile at 75/17
    assert (found.low, found.high) == pytest.approx((4 - half, 4 + half), abs=1e-4)
    assert math.isnan(welch_difference(5.0, math.nan, 1, 1.0, 1.0, 4).low)


def test_normalize_by_hand() -> None:
    found = normalize({"a": [-10.0, 0.0, 20.0]}, {"a": -10.0}, {"a": 10.0})
    assert found["a"].tolist() == [0, 0.5, 1.5]


def plain_percentiles(scores: np.ndarray, replicates: int = 2000) -> tuple[float, float]:
    drawn = np.random.default_rng(0).choice(scores, (replicates, len(scores))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def covered(interval: Callable[[np.ndarray], tuple[float, float]], seeds: int) -> float:
    generator = np.random.default_rng(0)
    ends = [interval(generator.normal(size=seeds)) for _ in range(400)]
    return float(np.mean([low <= 0 <= high for low, high in ends]))


def test_five_seeds_are_covered_as_the_docstring_says() -> None:
    def ours(scores: np.ndarray) -> tuple[float, float]:
        return bootstrap(mean_score, {"a": scores}, replicates=4000)[1:]

    assert covered(plain_percentiles, 5) < 0.88
    assert 0.90 <= covered(ours, 5) <= 0.96


def test_twelve_tasks_of_five_seeds_are_covered() -> None:
    generator = np.random.default_rng(0)
    tasks = [f"task {number}" for number in range(12)]
    shifts = np.linspace(-1, 2, 12)
    # A run of N(shift, 1) is above one of N(0, 1) with probability Phi(shift / sqrt 2).
    true = gaussian_improvement(shifts, np.ones(12), np.zeros(12), np.ones(12))
    inside = []
    for _ in range(200):
        ours = {t: generator.normal(s, 1, 5) for t, s in zip(tasks, shifts, strict=True)}
        theirs = {t: generator.normal(0, 1, 5) for t in tasks}
        found = bootstrap(probability_of_improvement, ours, theirs, replicates=1000)
        inside.append(found.low <= true <= found.high)
    assert 0.91 <= np.mean(inside) <= 0.99


def test_bootstrap_of_two_seeds_reaches_both() -> None:
    assert bootstrap(mean_score, {"a": [0.0, 1.0]}) == (0.5, 0.0, 1.0)


def test_bootstrap_resamples_within_tasks() -> None:
    # Tasks of equal seeds leave nothing to chance, however far apart they are.
    assert bootstrap(interquartile_mean, {"a": [1.0] * 4, "b": [9.0] * 4}) == (5, 5, 5)


def test_bootstrap_of_one_seed_has_no_interval() -> None:
    found = bootstrap(mean_score, {"a": [1.0, 2.0], "b": [4.0]})
    assert found.value == 2.75
    assert math.isnan(found.low)
    assert math.isnan(found.high)
