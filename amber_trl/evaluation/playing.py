"""Playing a policy, and what its returns say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from amber_trl.evaluation._stepping import (
    MAX_FRAMES,
    acting,
    check_numbers,
    endless,
    make_fitting_env,
    step,
)
from amber_trl.runs.policies import Policy

_COPIES = 8


@dataclass(frozen=True)
class Played:
    """Episodes that a policy played, in the order in which they ended.

    Attributes:
        returns: undiscounted, one per episode.
        lengths: frames, one per episode.

    Examples:
        >>> from amber_trl.evaluation import Played
        >>> played = Played((1.0, 2.0, 3.0), (10, 10, 10))
        >>> played.mean, played.std, [round(end, 2) for end in played.interval]
        (2.0, 1.0, [-0.48, 4.48])
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns (over ``episodes - 1``); NaN for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        r"""95 % Student interval of the mean return; NaN for one episode.

        It is :math:`\bar R \pm t_{0.975,\,n-1}\, s / \sqrt n`. It says how well these episodes
        fix the mean return of this one policy, not what another seed's training would reach.
        """
        count = len(self.returns)
        if count < 2:
            return math.nan, math.nan
        half = _student_quantile(count - 1) * self.std / math.sqrt(count)
        return self.mean - half, self.mean + half


def play(
    policy: Policy,
    episodes: int = 20,
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_frames: int = MAX_FRAMES,
    progress: bool = False,
) -> Played:
    """Plays episodes in fresh environments.

    Several copies of the environment are stepped together, each for a share of the episodes that
    is fixed before, so that short episodes do not count more often than long ones.

    Args:
        policy: as :func:`load_policy` returns it.
        episodes: number of episodes, at least 1.
        deterministic: whether it takes the mean (or likeliest) action, or draws from its
            distribution, as in training.
        seed: of environments and actions, from 0 to ``2**31 - 1``. The same seed gives the same
            episodes, and no global generator moves.
        max_frames: frames that one episode may last, so that an environment without an end is
            not played for ever.
        progress: whether to show a progress bar.

    Returns:
        Returns and lengths.

    Raises:
        ValueError: a number is out of range; the environment is not known, or has other spaces
            than the policy; a weight, observation, action or reward is not finite.
        RuntimeError: an episode has not ended after ``max_frames``.

    Examples:
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import play
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy(gaussian_actor(observation_size=3, action_size=1), "Pendulum-v1")
        >>> play(policy, episodes=2) == play(policy, episodes=2)
        True
    """
    check_numbers(episodes=episodes, seed=seed, max_frames=max_frames)
    copies = min(episodes, _COPIES)
    left = [episodes // copies + (copy < episodes % copies) for copy in range(copies)]
    totals, steps = torch.zeros(copies, dtype=torch.float64), torch.zeros(copies, dtype=torch.int64)
    returns: list[float] = []
    lengths: list[int] = []
    env = make_fitting_env(policy, copies, seed=seed)
    try:
        bar = tqdm(total=episodes, unit="episode", disable=not progress)
        with bar, acting(deterministic, seed):
            frames = env.reset()
            while any(left):
                taken, frames = step(policy, env, frames)
                totals += taken["next", "reward"][:, 0]
                steps += 1
                ended = taken["next", "done"][:, 0]
                for copy in ended.nonzero()[:, 0].tolist():
                    if left[copy]:
                        left[copy] -= 1
                        returns.append(totals[copy].item())
                        lengths.append(int(steps[copy]))
                        bar.update()
                totals[ended], steps[ended] = 0, 0
                late = (steps >= max_frames).nonzero()[:, 0].tolist()
                if any(left[copy] for copy in late):
                    raise endless(policy, max_frames)
    finally:
        env.close()
    return Played(tuple(returns), tuple(lengths))


def _student_quantile(freedom: int) -> float:
    r"""The 0.975 quantile of Student's distribution.

    With :math:`x = \sqrt \nu \tan\theta` its density is proportional to
    :math:`\cos^{\nu - 1}\theta`, on a bounded range.
    """
    angle = np.linspace(-math.pi / 2, math.pi / 2, 200_001)
    density = np.cos(angle).clip(0) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(0.975, mass / mass[-1], angle))
