"""Running reward scaling."""

import sys

import torch
from torch import Tensor, nn

from amber_trl._checks import check_integer, check_number
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules._moments import merge_moments


class RewardScaler(nn.Module):
    r"""Divides rewards by the running standard deviation of their discounted sum.

    .. math::
        G_t = \gamma (1 - d_{t-1}) G_{t-1} + r_t, \qquad
        \hat r_t = \frac{r_t}{\sqrt{\operatorname{Var} G}}

    :math:`d_{t-1}` is 1 if an episode ended with the previous frame; each environment has its own sum.
    This is the reward scaling of Engstrom et al. (2020, arXiv 2005.12729). Gymnasium's
    ``NormalizeReward`` (except at episode ends, where it leaves out a terminal frame's past) and
    Stable-Baselines3's ``VecNormalize`` do the same frame by frame. Here :meth:`update` adds a whole
    batch to the statistics, and its rewards are then divided by one number. No mean is subtracted, since
    that would change which policy is best, and nothing is clipped.

    Compute advantages and value targets from the scaled rewards, and log the unscaled ones. **Stored
    value targets keep the scale of their time**, as stored log-probabilities remain those of the policy
    that acted: they were bootstrapped from a critic that learnt in that scale, and rescaling them would be
    exact only if the critic's output were rescaled too. Advantages are not affected if each batch's are
    standardised. :class:`~amber_trl.data.RecomputedAdvantages` needs unscaled rewards instead, and the
    current scale as its ``reward_scale``.

    The state is four float64 buffers on the CPU: ``count``, ``mean`` and ``variance`` of the sums so far
    (scalars; population variance), and ``returns`` ``[num_envs]``, the sums of the unfinished episodes,
    so that a resumed run continues exactly.

    Args:
        num_envs: number of environments, at least 1.
        gamma: discount per frame, in [0, 1].
        min_variance: above 0; rewards are unscaled while the variance is below it, since sums that are all
            equal do not define a scale.

    Raises:
        ValueError: an argument is out of range.
        TypeError: an argument is not a number, or ``num_envs`` not an integer.

    Example:
        One environment with the sums 4 and 6 + 4/2, which have mean 6 and variance 4.

        >>> import torch
        >>> from amber_trl.modules import RewardScaler
        >>> scaler = RewardScaler(num_envs=1, gamma=0.5)
        >>> reward = torch.tensor([[4.0, 6.0]])
        >>> scaler.update(reward, done=torch.tensor([[False, False]]))
        >>> scaler(reward)
        tensor([[2., 3.]])
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    returns: Tensor

    def __init__(self, num_envs: int, *, gamma: float = 0.99, min_variance: float = 1e-8) -> None:
        super().__init__()
        self.num_envs = check_integer("num_envs", num_envs)
        self.gamma = check_number("gamma", gamma, high=1)
        self.min_variance = check_number(
            "min_variance", min_variance, above=0, high=sys.float_info.max
        )
        start = {"count": 0.0, "mean": 0.0, "variance": 1.0, "returns": [0.0] * num_envs}
        for name, value in start.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64, device="cpu"))

    @property
    def scale(self) -> Tensor:
        """The divisor of rewards, a float64 scalar; 1 while the variance is too small."""
        return self.variance.masked_fill(self.variance < self.min_variance, 1.0).sqrt()

    def forward(self, reward: Tensor) -> Tensor:
        """Divides rewards by the current scale.

        Args:
            reward: floating tensor of any shape and device.

        Returns:
            Tensor of the same shape, dtype and device.
        """
        return reward / self.scale

    @torch.no_grad()
    def update(self, reward: Tensor, done: Tensor) -> None:
        """Adds a batch of all environments to the statistics, in place.

        Args:
            reward: floating tensor ``[E, T, 1]`` or ``[E, T]``, with the frames that follow those of the last
                call, in order.
            done: bool tensor of the same shape: whether the episode ended with the frame, by a
                terminal state or a time limit.

        Raises:
            ValueError: a shape does not fit, or the batch is empty.
            NonFiniteDataError: a reward is NaN or infinite, or so large that its square overflows
                float64. The state is then unchanged.
        """
        if reward.shape[:1] != (self.num_envs,) or reward.shape[2:] not in ((), (1,)):
            raise ValueError(
                f"reward of shape {tuple(reward.shape)}: give [{self.num_envs}, T] or "
                f"[{self.num_envs}, T, 1], one row for each of num_envs={self.num_envs}"
            )
        if done.shape != reward.shape or not reward.numel():
            raise ValueError(
                f"done of shape {tuple(done.shape)} with reward of shape {tuple(reward.shape)}: "
                "give the same shape, with at least one frame"
            )
        running, sums = self.returns, []
        rewards = reward.reshape(self.num_envs, -1).to(running)
        for earned, ended in zip(
            rewards.T, done.reshape_as(rewards).to(running.device).T, strict=True
        ):
            running = self.gamma * running + earned
            sums.append(running)
            running = running.masked_fill(ended, 0.0)
        merged = merge_moments(self.count, self.mean, self.variance, torch.cat(sums))
        if not merged[-1].isfinite():
            bad = int((~rewards.isfinite()).sum())
            raise NonFiniteDataError(
                f"reward has {bad} values that are NaN or infinite (if 0, the squares of its sums "
                "overflow): the statistics were left unchanged; find out what the environment returns"
            )
        for buffer, value in zip(
            (self.count, self.mean, self.variance, self.returns), (*merged, running), strict=True
        ):
            buffer.copy_(value)

    def restart(self) -> None:
        """Forgets the sums of unfinished episodes, for environments that start new episodes."""
        self.returns.zero_()

    def extra_repr(self) -> str:
        """Arguments shown by ``repr``."""
        return f"{self.num_envs}, gamma={self.gamma}, min_variance={self.min_variance}"
