"""What runs of several tasks and seeds say together, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Scores = Mapping[str, ArrayLike]
"""Scores by task: one number per seed."""

_Arrays = dict[str, NDArray[np.float64]]
_MOST_ENUMERATED = 20_000


class Estimate(NamedTuple):
    """A statistic and the ends of its interval.

    Attributes:
        value: the statistic of the scores themselves.
        low: lower end; NaN where the scores allow no interval.
        high: upper end; NaN where the scores allow no interval.

    Examples:
        >>> from amber_trl.evaluation import Estimate
        >>> Estimate(0.7, 0.6, 0.8).high
        0.8
    """

    value: float
    low: float
    high: float


def mean_score(scores: Scores) -> NDArray[np.float64]:
    """Mean over seeds, averaged over tasks.

    Args:
        scores: by task, ``[..., seeds]``.

    Returns:
        ``[...]``.

    Examples:
        >>> from amber_trl.evaluation import mean_score
        >>> float(mean_score({"a": [1.0, 3.0], "b": [4.0]}))
        3.0
    """
    return np.mean([array.mean(-1) for array in _arrays(scores).values()], axis=0)


def interquartile_mean(scores: Scores) -> NDArray[np.float64]:
    """Mean of the middle half of all scores, over tasks and seeds together.

    Scores of different tasks must have been made comparable, see :func:`normalize`. The lowest
    and the highest quarter are left out, each rounded down to whole scores (Agarwal et al.,
    arXiv 2108.13264).

    Args:
        scores: by task, ``[..., seeds]``.

    Returns:
        ``[...]``.

    Examples:
        >>> from amber_trl.evaluation import interquartile_mean
        >>> float(interquartile_mean({"a": [0.0, 1.0, 2.0, 9.0], "b": [-9.0, 1.0, 2.0, 3.0]}))
        1.5
    """
    together = np.concatenate(list(_arrays(scores).values()), axis=-1)
    return np.asarray(stats.trim_mean(together, 0.25, axis=-1))


def probability_of_improvement(better: Scores, than: Scores) -> NDArray[np.float64]:
    """Probability that a run of one setup scores above a run of another, averaged over tasks.

    On each task the share of pairs of runs in which the first is above, ties counting half (the
    Mann-Whitney statistic over the number of pairs); then the mean over tasks.

    Args:
        better: scores of the one, by task, ``[..., seeds]``.
        than: scores of the other, for the same tasks.

    Returns:
        ``[...]``, in [0, 1].

    Raises:
        ValueError: if the two are not of the same tasks.

    Examples:
        >>> from amber_trl.evaluation import probability_of_improvement
        >>> float(probability_of_improvement({"a": [1.0, 3.0]}, {"a": [1.0, 2.0]}))
        0.625
    """
    ours, theirs = _arrays(better), _arrays(than)
    _check_same_tasks(list(ours), list(theirs))
    shares = []
    for task, array in ours.items():
        above = array[..., :, None] - theirs[task][..., None, :]
        shares.append(((above > 0) + 0.5 * (above == 0)).mean((-2, -1)))
    return np.mean(shares, axis=0)


def gaussian_improvement(
    mean: ArrayLike, std: ArrayLike, than_mean: ArrayLike, than_std: ArrayLike
) -> float:
    """Probability of improvement that means and deviations imply, averaged over tasks.

    Runs count as independent and Gaussian. For published tables, which give no single runs.

    Args:
        mean: of the one setup, ``[tasks]``.
        std: its standard deviation over seeds, ``[tasks]``.
        than_mean: of the other.
        than_std: its standard deviation over seeds.

    Returns:
        The probability.

    Examples:
        >>> from amber_trl.evaluation import gaussian_improvement
        >>> round(gaussian_improvement([1.0], [1.0], [0.0], [0.0]), 3)
        0.841
    """
    distance = np.subtract(mean, than_mean) / np.hypot(std, than_std)
    return float(np.mean(stats.norm.cdf(distance)))


def average_normalized_scores(scores: Mapping[str, Scores]) -> dict[str, NDArray[np.float64]]:
    """The paper's average normalised score (ANS) of each setup of a study.

    On each task the means over seeds of all setups are standardised (minus their mean, over their
    standard deviation, that of the whole population), which gives 0 where all are equal; then
    averaged over tasks (Han & Sung, arXiv 1710.04423, section 7.1, as its tables imply). It is relative to the list of setups: give that
    list beside it.

    Args:
        scores: by setup and task, ``[..., seeds]``; every setup must have the same tasks.

    Returns:
        ``[...]`` by setup; they sum to 0.

    Raises:
        ValueError: if there are fewer than two setups, or two have different tasks.

    Examples:
        >>> from amber_trl.evaluation import average_normalized_scores
        >>> low, high = {"a": [1.0, 2.0], "b": [10.0]}, {"a": [4.0, 2.0], "b": [30.0]}
        >>> {name: float(s) for name, s in average_normalized_scores({"x": low, "y": high}).items()}
        {'x': -1.0, 'y': 1.0}
    """
    if len(scores) < 2:
        raise ValueError(
            f"scores of {list(scores)}: an average normalised score compares setups; give two or "
            "more"
        )
    tasks = list(next(iter(scores.values())))
    for setup in scores.values():
        _check_same_tasks(tasks, list(setup))
    total = np.zeros(())
    for task in tasks:
        means = np.stack([_array(task, setup[task]).mean(-1) for setup in scores.values()])
        spread = means.std(0)
        distance = means - means.mean(0)
        total = total + np.divide(distance, spread, out=np.zeros_like(means), where=spread > 0)
    return dict(zip(scores, total / len(tasks), strict=True))


def bootstrap(
    statistic: Callable[..., NDArray[np.float64]],
    *groups: Scores,
    confidence: float = 0.95,
    replicates: int = 20_000,
    seed: int = 0,
) -> Estimate:
    """Stratified bootstrap interval: seeds are drawn anew within each task of each group.

    Where there are no more than 20 000 resamples, as for the difference of two setups of five
    seeds on one task, all are taken with their probabilities, and nothing is left to chance.

    The interval is the *expanded* percentile one (Hesterberg, arXiv 1411.5279): plain
    percentiles of few seeds are too narrow, by ``sqrt((n - 1) / n)`` and by the normal
    distribution where Student's is meant; the expanded ones are those that make up for both. With
    one task of five seeds a nominal 95 % covers about 92 %: no resampling of ``n`` seeds reaches
    beyond the lowest and the highest, which lie around the median in ``1 - 2 ** (1 - n)`` of cases.

    Args:
        statistic: takes one mapping per group, with arrays ``[..., seeds]`` by task, and returns
            ``[...]``.
        *groups: scores by task, one mapping per setup.
        confidence: nominal coverage, in (0, 1).
        replicates: number of resamples, at least 1, where not all are taken.
        seed: seeds the resampling; nothing else is random.

    Returns:
        The statistic, with an interval; no interval (NaN) if a task has a single seed.

    Raises:
        ValueError: if an argument is out of range, no group is given, a group has no task or a
            task no seed, or a score is not finite.

    Examples:
        >>> from amber_trl.evaluation import bootstrap, interquartile_mean
        >>> bootstrap(interquartile_mean, {"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, 2.0, 3.0, 3.0]})
        Estimate(value=2.5, low=1.5, high=3.5)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not in (0, 1): give 0.95 for 95 %")
    if replicates < 1:
        raise ValueError(f"replicates={replicates} must be at least 1")
    if not groups:
        raise ValueError("bootstrap was given no scores: give one mapping per setup")
    arrays = [_arrays(group) for group in groups]
    value = float(statistic(*arrays))
    sizes = [array.shape[-1] for group in arrays for array in group.values()]
    if min(sizes) < 2:
        return Estimate(value, float("nan"), float("nan"))
    tail = _expanded_tail(confidence, sizes)
    if math.prod(_count(size) for size in sizes) <= _MOST_ENUMERATED:
        picks: Iterable[NDArray[np.int64]]
        picks, weights = _every_resample(sizes)
        options: dict[str, Any] = {"weights": weights, "method": "inverted_cdf"}
    else:
        generator = np.random.default_rng(seed)
        picks = (generator.integers(size, size=(replicates, size)) for size in sizes)
        options = {}
    each = iter(picks)
    resampled = [{task: array[next(each)] for task, array in group.items()} for group in arrays]
    low, high = np.quantile(statistic(*resampled), [tail, 1 - tail], **options)
    return Estimate(value, float(low), float(high))


def bootstrap_band(
    curves: ArrayLike, *, confidence: float = 0.95, replicates: int = 4_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interval of the mean of several curves, at each point alone, as :func:`bootstrap` makes it.

    Args:
        curves: one per seed, ``[seeds, points]``.
        confidence: nominal coverage, in (0, 1).
        replicates: number of resamples, at least 1.
        seed: seeds the resampling.

    Returns:
        Lower and upper ends, ``[points]``; NaN where a curve is, and for a single curve.

    Raises:
        ValueError: if ``curves`` has another shape.

    Examples:
        >>> from amber_trl.evaluation import bootstrap_band
        >>> low, high = bootstrap_band([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
        >>> low.tolist(), high.tolist()
        ([0.0, 1.0], [4.0, 1.0])
    """
    array = np.asarray(curves, dtype=np.float64)
    if array.ndim != 2 or not len(array):
        raise ValueError(f"curves of shape {list(array.shape)}: give [seeds, points]")
    size, points = array.shape
    if size < 2:
        return np.full(points, np.nan), np.full(points, np.nan)
    weights = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), replicates)
    tail = _expanded_tail(confidence, [size])
    low, high = np.quantile(weights / size @ array, [tail, 1 - tail], axis=0)
    return low, high


def normalize(scores: Scores, low: Mapping[str, float], high: Mapping[str, float]) -> _Arrays:
    """Scores on a scale where 0 and 1 are two fixed constants of each task.

    Args:
        scores: by task.
        low: what counts as 0, by task, such as the return of a random policy.
        high: what counts as 1, by task.

    Returns:
        ``(score - low) / (high - low)`` by task.

    Raises:
        KeyError: if a task has no constants.

    Examples:
        >>> from amber_trl.evaluation import normalize
        >>> normalize({"a": [10.0, 30.0]}, low={"a": 10.0}, high={"a": 20.0})["a"].tolist()
        [0.0, 2.0]
    """
    lacking = [task for task in scores if task not in low or task not in high]
    if lacking:
        raise KeyError(f"no reference constants for {lacking}: leave out, or add them")
    return {t: (array - low[t]) / (high[t] - low[t]) for t, array in _arrays(scores).items()}


def welch_difference(
    mean: float,
    std: float,
    size: int,
    than_mean: float,
    than_std: float,
    than_size: int,
    confidence: float = 0.95,
) -> Estimate:
    """Difference of two means of which only means and deviations are known, with an interval.

    Welch's, which takes runs as independent and Gaussian and lets the deviations differ.

    Args:
        mean: of the one.
        std: its standard deviation over runs, of a sample.
        size: its number of runs.
        than_mean: of the other, which is subtracted.
        than_std: its standard deviation.
        than_size: its number of runs.
        confidence: coverage, in (0, 1).

    Returns:
        The difference; without an interval (NaN) if a number of runs is below 2.

    Examples:
        >>> from amber_trl.evaluation import welch_difference
        >>> welch_difference(3.0, 1.0, 5, 1.0, 1.0, 5)  # 2.0 -+ 2.306 * sqrt(2 / 5)
        Estimate(value=2.0, low=0.54..., high=3.45...)
    """
    difference = mean - than_mean
    if min(size, than_size) < 2:
        return Estimate(difference, float("nan"), float("nan"))
    ours, theirs = std**2 / size, than_std**2 / than_size
    if ours + theirs == 0:
        return Estimate(difference, difference, difference)
    freedom = (ours + theirs) ** 2 / (ours**2 / (size - 1) + theirs**2 / (than_size - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * (ours + theirs) ** 0.5
    return Estimate(difference, difference - half, difference + half)


def _count(size: int) -> int:
    """How many resamples of so many scores there are, whatever their order."""
    return math.comb(2 * size - 1, size)


def _every_resample(sizes: list[int]) -> tuple[Iterator[NDArray[np.int64]], NDArray[np.float64]]:
    """All joint resamples of several samples, and the probability of each.

    Returns:
        Indices ``[resamples, size]`` for each sample, and probabilities ``[resamples]``.
    """
    each, chances = [], []
    for size in sizes:
        picks = np.array(list(combinations_with_replacement(range(size), size)))
        times = (picks[:, :, None] == np.arange(size)).sum(1)
        each.append(picks)
        chances.append(stats.multinomial.pmf(times, size, np.full(size, 1 / size)))
    joint = np.indices([len(picks) for picks in each]).reshape(len(each), -1)
    indices = (picks[which] for picks, which in zip(each, joint, strict=True))
    chance = [own[which] for own, which in zip(chances, joint, strict=True)]
    return indices, np.prod(chance, axis=0)


def _expanded_tail(confidence: float, sizes: list[int]) -> float:
    """Percentile to read instead of ``(1 - confidence) / 2``."""
    shrinkage = np.mean([(size - 1) / size for size in sizes])
    student = stats.t.ppf((1 + confidence) / 2, sum(sizes) - len(sizes))
    return float(stats.norm.sf(student / np.sqrt(shrinkage)))


def _arrays(scores: Scores) -> _Arrays:
    if not scores:
        raise ValueError("scores of no task given: give at least one")
    return {task: _array(task, values) for task, values in scores.items()}


def _array(task: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"no scores for {task}: give one number per seed")
    if not np.isfinite(array).all():
        raise ValueError(f"a score of {task} is not finite: leave the run out, and say so")
    return array


def _check_same_tasks(ours: list[str], theirs: list[str]) -> None:
    if set(ours) != set(theirs):
        alone = sorted(set(ours) ^ set(theirs))
        raise ValueError(f"scores of different tasks: {alone} only on one side; leave them out")
