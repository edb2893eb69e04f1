"""The equations of the paper and its successors that TorchRL does not already provide.

Pure functions of tensors. A *log-ratio* is ``log pi_new(a|s) - log pi_old(a|s)``, one per frame,
where ``pi_old`` is the behaviour policy that collected the frame. The paper is Han & Sung,
*AMBER: Adaptive Multi-Batch Experience Replay for Continuous Action Control*
(`arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_).
"""

import math

import torch
from torch import Tensor

from amber_trl._checks import check_number

__all__ = [
    "average_importance_ratio",
    "effective_sample_size",
    "gae_v",
    "is_stale",
    "kl_estimate",
    "linear_anneal",
    "mean_abs_deviation",
    "per_dimension_deviation",
    "vtrace",
]


def average_importance_ratio(log_ratio: Tensor, dim: int = -1) -> Tensor:
    r"""Batch average importance weight, the paper's measure of how old a batch is.

    .. math:: R' = \frac{1}{N} \sum_n \left(1 + |1 - e^{x_n}|\right)

    with :math:`x_n` the log-ratios (equation 10 of the paper, where the sum stops one frame short of the
    ``N`` in ``1/N``; here it runs over all ``N``). It is 1 if the two policies agree on every frame. In
    expectation, it exceeds 1 by twice the total variation distance.

    Args:
        log_ratio: ``[..., N, ...]`` floating log-ratios, in nats.
        dim: the dimension of the ``N`` frames. Defaults to the last.

    Returns:
        ``R'``, with ``log_ratio``'s shape without ``dim``; at least 1, or not finite if a ratio is not
        finite.

    Raises:
        ValueError: if ``log_ratio`` is not floating or has no frames.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import average_importance_ratio
        >>> average_importance_ratio(torch.tensor([0.5, 1.0, 3.0]).log())
        tensor(1.8333)
    """
    return 1 + mean_abs_deviation(log_ratio, dim)


def mean_abs_deviation(log_ratio: Tensor, dim: int = -1) -> Tensor:
    r"""Mean distance of the importance ratio from 1: :math:`d = \frac1N \sum_n |e^{x_n} - 1|`.

    This is ``R' - 1`` of :func:`average_importance_ratio`, computed without the cancellation of the
    subtraction. It is at least 0. Arguments and errors are those of that function.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import mean_abs_deviation
        >>> mean_abs_deviation(torch.tensor([0.5, 1.0, 3.0]).log())
        tensor(0.8333)
    """
    _check_log_ratio(log_ratio, dim)
    return torch.expm1(log_ratio).abs().mean(dim)  # mean |exp(x) - 1|


def per_dimension_deviation(log_ratio: Tensor) -> Tensor:
    r"""Mean distance from 1 of the ratios of single action dimensions.

    .. math:: d = \frac{1}{N D} \sum_{n,k} |e^{x_{n,k}} - 1|

    The measure of the successor method DISC (Han & Sung, *Dimension-Wise Importance Sampling Weight
    Clipping for Sample-Efficient Reinforcement Learning*,
    `arXiv 1905.02363 <https://arxiv.org/abs/1905.02363>`_). Unlike the ratio of the whole action, it
    does not grow with the number of action dimensions.

    Args:
        log_ratio: ``[..., N, D]`` log-ratios of each of the ``D`` action dimensions.

    Returns:
        ``d >= 0``, of shape ``[...]``.

    Raises:
        ValueError: if ``log_ratio`` is not floating, has fewer than two dimensions, or no frames.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import per_dimension_deviation
        >>> per_dimension_deviation(torch.tensor([[0.5, 1.0], [1.0, 3.0]]).log())
        tensor(0.6250)
    """
    if log_ratio.ndim < 2:
        raise ValueError(
            f"log_ratio of shape {tuple(log_ratio.shape)}: expected [..., frames, action "
            "dimensions]; for one ratio per frame use mean_abs_deviation"
        )
    for dim in (-2, -1):
        _check_log_ratio(log_ratio, dim)
    return mean_abs_deviation(log_ratio.flatten(-2))


def kl_estimate(log_ratio: Tensor, dim: int = -1) -> Tensor:
    r"""Estimate of :math:`KL(\pi_{old} \| \pi_{new})` from actions of the old policy.

    .. math:: \frac1N \sum_n \left(e^{x_n} - 1 - x_n\right)

    It is in nats, unbiased and never negative (Schulman, *Approximating KL Divergence*, 2020). Arguments
    and errors are those of :func:`average_importance_ratio`.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import kl_estimate
        >>> kl_estimate(torch.tensor([0.5, 1.0, 3.0]).log())
        tensor(0.3648)
    """
    _check_log_ratio(log_ratio, dim)
    return (torch.expm1(log_ratio) - log_ratio).mean(dim)


def effective_sample_size(log_ratio: Tensor, dim: int = -1) -> Tensor:
    r"""Effective share of the samples under importance weights, Kish's :math:`ESS / N`.

    .. math:: \frac{\left(\sum_n e^{x_n}\right)^2}{N \sum_n e^{2 x_n}}

    It does not change when all ratios are multiplied by one number: a batch whose ratios are all 5 has
    an effective share of 1. It is therefore computed from ratios relative to the largest, so that none
    overflows. The share is in ``(0, 1]``, or NaN if the largest log-ratio is not finite.
    Arguments and errors are those of :func:`average_importance_ratio`.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import effective_sample_size
        >>> effective_sample_size(torch.tensor([0.5, 1.0, 3.0]).log())
        tensor(0.6585)
    """
    _check_log_ratio(log_ratio, dim)
    relative = (log_ratio - log_ratio.amax(dim, keepdim=True)).exp()  # at most 1
    share = relative.mean(dim).square() / relative.square().mean(dim)
    return share.clamp(max=1)


def is_stale(staleness: Tensor, drop_factor: float) -> Tensor:
    r"""Whether a batch with this staleness is dropped: :math:`d > \epsilon_b`, or not finite.

    Algorithm 1 of the paper, line 11: a batch is inactive when ``R' > 1 + eps_b``, that is
    ``d > eps_b``. A staleness that is not finite counts as stale; the paper does not specify this case.

    Args:
        staleness: ``d``, of any shape.
        drop_factor: ``eps_b`` in ``[0, inf]``; ``inf`` keeps every batch, whatever its ``d``.

    Returns:
        A boolean tensor of ``staleness``'s shape.

    Raises:
        TypeError: if ``drop_factor`` is not a number.
        ValueError: if it is negative or NaN.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import is_stale
        >>> is_stale(torch.tensor([0.0, 0.25, 0.26, torch.nan]), 0.25)
        tensor([False, False,  True,  True])
    """
    if math.isinf(check_number("drop_factor", drop_factor)):
        return torch.zeros_like(staleness, dtype=torch.bool)
    return ~(staleness.isfinite() & (staleness <= drop_factor))


def linear_anneal(initial: float, frames: int, total_frames: int) -> float:
    r"""Linear annealing to 0: :math:`x_0 \max(0, 1 - f / F)`.

    The schedule of the paper's step size, clip range and drop factor.

    Args:
        initial: the value at frame 0; ``inf`` stays ``inf``.
        frames: frames collected before this iteration, at least 0.
        total_frames: frames at which the value reaches 0, at least 1.

    Returns:
        The annealed value.

    Raises:
        ValueError: if ``frames`` or ``total_frames`` is out of range.

    Examples:
        >>> from amber_trl.functional import linear_anneal
        >>> linear_anneal(0.4, 250_000, 1_000_000)
        0.30000000000000004
    """
    if not total_frames >= 1:  # NaN included
        raise ValueError(f"total_frames={total_frames} is out of range: give at least 1")
    if not frames >= 0:
        raise ValueError(f"frames={frames} is out of range: give the frames collected, at least 0")
    if math.isinf(initial):
        return initial
    return initial * max(0.0, 1 - frames / total_frames)


def gae_v(
    gamma: float,
    lmbda: float,
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    log_ratio: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""DISC's GAE-V: generalised advantages, with traces cut where actions have become unlikely.

    .. math::

        \hat A_t = \sum_{l \ge 0} (\gamma \lambda)^l \Big(\prod_{i=1}^{l} c_{t+i}\Big)
        \delta_{t+l}, \qquad \hat V_t = V(s_t) + c_t \hat A_t, \qquad c_t = \min(1, e^{x_t})

    with the log-ratios :math:`x_t` and :math:`\delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)` (Han &
    Sung 2019, `arXiv 1905.02363 <https://arxiv.org/abs/1905.02363>`_; ``GAE_V`` in the authors'
    code, `github.com/seungyulhan/disc <https://github.com/seungyulhan/disc>`_). Where every ratio
    is at least 1, it equals GAE with its TD(lambda) targets. The sum ends with the episode, or with the
    last frame given; the value beyond counts unless the episode terminated.

    Args:
        gamma: discount.
        lmbda: GAE's lambda.
        value: ``V(s_t)``, floating ``[..., T]``, time last, as for all arguments below.
        next_value: value of the next state.
        reward: reward of each frame.
        done: boolean, whether the episode ended with the frame, for any reason.
        terminated: boolean, whether the next state is terminal.
        log_ratio: log-ratios, in nats.

    Returns:
        Advantages and value targets, each ``[..., T]``.

    Raises:
        ValueError: if shapes differ.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import gae_v
        >>> one, no = torch.ones(2), torch.zeros(2, dtype=torch.bool)
        >>> log_ratio = torch.tensor([0.5, 0.5]).log()
        >>> gae_v(1.0, 1.0, 0 * one, 0 * one, one, no, no, log_ratio)
        (tensor([1.5000, 1.0000]), tensor([0.7500, 0.5000]))
    """
    shapes = {tensor.shape for tensor in (value, next_value, reward, done, terminated, log_ratio)}
    if len(shapes) > 1 or not value.ndim:
        raise ValueError(
            "value, next_value, reward, done, terminated and log_ratio of shapes "
            f"{sorted(map(tuple, shapes))}: give all of one shape [..., time]"
        )
    trace = log_ratio.exp().clamp(max=1)  # c_t
    delta = reward + gamma * next_value * terminated.logical_not() - value
    # A_t = delta_t + gamma lambda c_{t+1} A_{t+1}
    advantage = _accumulate(delta, gamma * lmbda * trace.roll(-1, -1) * done.logical_not())
    return advantage, value + trace * advantage


def vtrace(
    gamma: float,
    lmbda: float,
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    log_ratio: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""V-trace targets, and the advantages that go with them.

    .. math::

        v_t = V(s_t) + \sum_{l \ge 0} (\gamma \lambda)^l \Big(\prod_{i=0}^{l} c_{t+i}\Big)
        \delta_{t+l}, \qquad \hat A_t = r_t + \gamma v_{t+1} - V(s_t)

    in the notation of :func:`gae_v`, whose value targets are the same (IMPALA, Espeholt et al. 2018,
    `arXiv 1802.01561 <https://arxiv.org/abs/1802.01561>`_, equation 1 with both truncation levels 1 and
    the lambda of its remark 2). With a lambda of 1, the advantages also equal those of GAE-V and, if
    every ratio is at least 1, those of GAE.

    The paper's policy gradient weights :math:`\hat A_t` by :math:`c_t`. That weight is left out here,
    because a loss with an importance ratio brings its own. TorchRL's ``vtrace_advantage_estimate``
    returns the product; its ``VTrace`` uses the current log-probability of newly drawn actions.

    Arguments, results and errors are those of :func:`gae_v`; a ``lmbda`` of 1 is the paper's main
    form.

    Examples:
        >>> import torch
        >>> from amber_trl.functional import vtrace
        >>> one, no = torch.ones(2), torch.zeros(2, dtype=torch.bool)
        >>> log_ratio = torch.tensor([0.5, 0.5]).log()
        >>> vtrace(1.0, 0.5, 0 * one, 0 * one, one, no, no, log_ratio)
        (tensor([1.5000, 1.0000]), tensor([0.6250, 0.5000]))
    """
    _, target = gae_v(gamma, lmbda, value, next_value, reward, done, terminated, log_ratio)
    later = (target - value).roll(-1, -1)  # v_{t+1} - V(s_{t+1})
    later[..., -1] = 0
    delta = reward + gamma * next_value * terminated.logical_not() - value
    return delta + gamma * later * done.logical_not(), target


def _check_log_ratio(log_ratio: Tensor, dim: int) -> None:
    if not log_ratio.is_floating_point():
        raise ValueError(f"log_ratio of dtype {log_ratio.dtype}: give a floating tensor")
    if log_ratio.ndim == 0 or log_ratio.shape[dim] == 0:
        raise ValueError(
            f"log_ratio of shape {tuple(log_ratio.shape)} has no frames in dim={dim}: "
            "give at least one"
        )


def _accumulate(term: Tensor, factor: Tensor) -> Tensor:
    """``x_t = term_t + factor_t x_{t+1}`` along the last dimension, with 0 beyond its end."""
    later = torch.zeros_like(term[..., 0])
    backwards = []
    times = zip(term.movedim(-1, 0).contiguous(), factor.movedim(-1, 0).contiguous(), strict=True)
    for now, weight in reversed([*times]):
        later = torch.addcmul(now, weight, later)
        backwards.append(later)
    return torch.stack(backwards[::-1], -1)
