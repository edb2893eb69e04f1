"""Statistics over runs of several tasks and seeds, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Scores = Mapping[str, ArrayLike]
"""Scores by task, one number per seed: ``[..., seeds]``."""

_Array = NDArray[np.float64]
_CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A statistic and the ends of its 95 % interval; NaN if the scores allow no interval."""

    value: float
    low: float
    high: float


def mean_score(scores: Scores) -> _Array:
    """Mean over seeds, averaged over tasks: ``[..., seeds]`` by task to ``[...]``."""
    return np.mean([array.mean(-1) for array in _arrays(scores).values()], axis=0)


def interquartile_mean(scores: Scores) -> _Array:
    """Mean of the middle half of all scores, over tasks and seeds together.

    The scores of different tasks must be comparable; see :func:`normalize`. The lowest and highest
    quarters, rounded down to whole scores, are left out (Agarwal et al., arXiv 2108.13264).
    """
    together = np.concatenate(list(_arrays(scores).values()), axis=-1)
    return np.asarray(stats.trim_mean(together, 0.25, axis=-1))


def probability_of_improvement(better: Scores, than: Scores) -> _Array:
    """Probability that a run of one setup scores above a run of another, averaged over tasks.

    On each task this is the share of pairs of runs in which the first run scores higher, with ties
    counted as half (the Mann-Whitney statistic over the number of pairs). Both setups have the same tasks.
    """
    ours, theirs = _arrays(better), _arrays(than)
    shares = []
    for task, array in ours.items():
        above = array[..., :, None] - theirs[task][..., None, :]
        shares.append(((above > 0) + 0.5 * (above == 0)).mean((-2, -1)))
    return np.mean(shares, axis=0)


def gaussian_improvement(
    mean: ArrayLike, std: ArrayLike, than_mean: ArrayLike, than_std: ArrayLike
) -> float:
    """Probability of improvement implied by means and deviations, averaged over tasks.

    For published tables, which do not list single runs: runs are taken as independent and Gaussian.
    All arguments have one number per task, and deviations are over seeds.
    """
    distance = np.subtract(mean, than_mean) / np.hypot(std, than_std)
    return float(np.mean(stats.norm.cdf(distance)))


def average_normalized_scores(scores: Sequence[Scores]) -> _Array:
    """The paper's average normalised score (ANS) of each setup of a study.

    On each task, the setups' means over seeds are standardised: their mean is subtracted, and the
    result divided by their population standard deviation; it is 0 if all are equal. The result is
    averaged over tasks (Han & Sung, arXiv 1710.04423, section 7.1, as its tables imply). It is relative
    to the list of setups, so report it with that list. Every setup has the same tasks.

    Returns:
        ``[setups, ...]``; they sum to 0 over setups.
    """
    total = np.zeros(())
    for task in scores[0]:
        means = np.stack([np.asarray(setup[task]).mean(-1) for setup in scores])
        spread = means.std(0)
        distance = means - means.mean(0)
        total = total + np.divide(distance, spread, out=np.zeros_like(means), where=spread > 0)
    return total / len(scores[0])


def bootstrap(
    statistic: Callable[..., _Array], *groups: Scores, replicates: int = 100_000
) -> Estimate:
    """Stratified bootstrap interval: seeds are resampled within each task of each group.

    The interval is the *expanded* percentile interval (Hesterberg, arXiv 1411.5279). Plain percentiles
    of few seeds are too narrow, by ``sqrt((n - 1) / n)`` and because they use the normal distribution
    instead of Student's. With one task of five seeds, a nominal 95 % covers about 92 %: no resampling of
    ``n`` seeds reaches beyond the lowest and highest seed, which enclose the median in
    ``1 - 2 ** (1 - n)`` of cases.

    Args:
        statistic: takes one mapping per group, with arrays ``[..., seeds]`` by task, and returns
            ``[...]``.
        *groups: scores by task, one mapping per setup.
        replicates: number of resamples.

    Returns:
        The statistic with its interval, always the same for the same scores. The interval is NaN if a
        task has a single seed.
    """
    arrays = [_arrays(group) for group in groups]
    samples = [array for group in arrays for array in group.values()]
    value = float(statistic(*arrays))
    sizes = [len(sample) for sample in samples]
    if min(sizes) < 2:
        return Estimate(value, np.nan, np.nan)

    def of_samples(*resampled: _Array, axis: int) -> _Array:
        each = iter(resampled)
        return statistic(*({task: next(each) for task in group} for group in arrays))

    found = stats.bootstrap(
        samples,
        of_samples,
        n_resamples=replicates,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    # Hesterberg's percentile: the normal distribution's at t / sqrt((n - 1) / n).
    shrinkage = np.mean([(size - 1) / size for size in sizes])
    student = stats.t.ppf((1 + _CONFIDENCE) / 2, sum(sizes) - len(sizes))
    tail = stats.norm.sf(student / np.sqrt(shrinkage))
    low, high = np.quantile(found.bootstrap_distribution, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def normalize(
    scores: Scores, low: Mapping[str, float], high: Mapping[str, float]
) -> dict[str, _Array]:
    """Scores on a scale where 0 is their task's ``low`` and 1 its ``high``."""
    return {t: (array - low[t]) / (high[t] - low[t]) for t, array in _arrays(scores).items()}


def welch_difference(
    mean: float, std: float, size: int, than_mean: float, than_std: float, than_size: int
) -> Estimate:
    """Difference of two means over runs, with Welch's interval; ``std`` is a sample's.

    It assumes independent Gaussian runs, with deviations that may differ.
    """
    difference = mean - than_mean
    if min(size, than_size) < 2:
        return Estimate(difference, np.nan, np.nan)
    ours, theirs = std**2 / size, than_std**2 / than_size
    freedom = (ours + theirs) ** 2 / (ours**2 / (size - 1) + theirs**2 / (than_size - 1))
    half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, freedom)) * (ours + theirs) ** 0.5
    return Estimate(difference, difference - half, difference + half)


def _arrays(scores: Scores) -> dict[str, _Array]:
    return {task: np.asarray(values, dtype=np.float64) for task, values in scores.items()}
