"""Mean and variance of data that arrive in pieces."""

from torch import Tensor


def merge_moments(
    count: Tensor, mean: Tensor, variance: Tensor, frames: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and population variance after adding ``frames`` ``[m, *shape]``.

    Chan, Golub and LeVeque (1979); exact for any split of the data. With n frames before and m
    added, d = mean_m - mean_n and S the sum of squared deviations:
    mean = mean_n + d m / (n + m),  S = S_n + S_m + d^2 n m / (n + m).
    """
    added = frames.shape[0]
    added_mean = frames.mean(0)
    added_squares = (frames - added_mean).square().sum(0)
    delta = added_mean - mean
    total = count + added
    merged_mean = mean + delta * (added / total)
    squares = variance * count + added_squares
    return total, merged_mean, (squares + delta.square() * (count * added / total)) / total
