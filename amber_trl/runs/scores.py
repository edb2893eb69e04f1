"""The learning curve of a training run, and its two scores."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from amber_trl._checks import check_integer
from amber_trl.runs._episodes import WINDOW


def final_score(frames: ArrayLike, returns: ArrayLike) -> float:
    """Mean return of the last 100 training episodes.

    The *final* score of AMBER (Han & Sung, arXiv 1710.04423, table of final scores). With fewer than
    100 episodes it is the mean over all of them; without any it is NaN. Arguments and errors are those
    of :func:`learning_curve`.

    Examples:
        >>> from amber_trl.runs import final_score
        >>> final_score([200, 400], [-1000.0, -500.0])
        -750.0
    """
    _, values = _validated(frames, returns)
    return float(values[-WINDOW:].mean()) if len(values) else float("nan")


def speed_score(frames: ArrayLike, returns: ArrayLike, every: int, total_frames: int) -> float:
    """Average return over training, a measure of sample efficiency.

    The mean of :func:`learning_curve`, without the points before the first finished episode: the area
    under the curve divided by its frames. This is the *speed* score of AMBER (Han & Sung, arXiv
    1710.04423, table of speed scores). The paper calls it the return of all episodes, but a plain mean
    over episodes does not reproduce its numbers. Without a finished episode it is NaN. Arguments and
    errors are those of :func:`learning_curve`.

    Examples:
        >>> from amber_trl.runs import speed_score
        >>> speed_score([10, 25], [1.0, 3.0], every=10, total_frames=30)  # 1, 1, 2
        1.3333333333333333
    """
    _, curve = learning_curve(frames, returns, every, total_frames)
    curve = curve[~np.isnan(curve)]
    return float(curve.mean()) if len(curve) else float("nan")


def learning_curve(
    frames: ArrayLike, returns: ArrayLike, every: int, total_frames: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Mean return of the last 100 training episodes, over the frames of training.

    The curve in AMBER's figures (Han & Sung, arXiv 1710.04423, section 7.1).

    Args:
        frames: frame at which each episode ended, integers, ``[episodes]``, non-decreasing.
        returns: undiscounted return of each episode, ``[episodes]``.
        every: frames between two points of the curve, at least 1 (the frames of a batch).
        total_frames: frames of the whole training, at least 0; later episodes are left out.

    Returns:
        The frames ``every, 2 * every, ...`` up to ``total_frames``, ``[points]``, and at each the mean
        return of the last 100 episodes finished by then, ``[points]``. If fewer have finished, the mean
        is over those; before the first, it is NaN.

    Raises:
        ValueError: if ``every`` or ``total_frames`` is out of range, the two sequences differ in
            length, are not one-dimensional, or are not in the order of frames.

    Examples:
        >>> from amber_trl.runs import learning_curve
        >>> points, curve = learning_curve([10, 25], [1.0, 3.0], every=10, total_frames=30)
        >>> points.tolist(), curve.tolist()
        ([10, 20, 30], [1.0, 1.0, 2.0])
    """
    check_integer("every", every)
    check_integer("total_frames", total_frames, low=0)
    ends, values = _validated(frames, returns)
    points = np.arange(every, total_frames + 1, every)
    finished = np.searchsorted(ends, points, side="right")
    means = [values[max(0, n - WINDOW) : n].mean() if n else np.nan for n in finished]
    return points, np.array(means, dtype=np.float64)


def _validated(
    frames: ArrayLike, returns: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    ends, values = np.asarray(frames, dtype=np.int64), np.asarray(returns, dtype=np.float64)
    if ends.ndim != 1 or ends.shape != values.shape:
        raise ValueError(
            f"frames of shape {list(ends.shape)} and returns of shape {list(values.shape)}: they "
            "must be one-dimensional and of equal length; pass one of each per episode"
        )
    if np.any(np.diff(ends) < 0):
        at = int(np.argmax(np.diff(ends) < 0))
        raise ValueError(
            f"frames decreases from {ends[at]} to {ends[at + 1]} at episode {at + 1}: episodes "
            "must be in the order they ended; sort both by frame"
        )
    return ends, values
