"""Playing a policy, and what its returns say."""

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from amber_trl.evaluation._episodes import MAX_FRAMES, play_episodes
from amber_trl.runs import Policy


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

        It is :math:`\bar R \pm t_{0.975,\,n-1}\, s / \sqrt n`, and says how well these episodes
        determine the mean return of this policy, not what another seed's training would reach.
        """
        count = len(self.returns)
        half = float(stats.t.ppf(0.975, count - 1)) * self.std / math.sqrt(count)
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

    Several copies of the environment are stepped together. Each plays a share of the episodes that
    is fixed beforehand, so that short episodes do not count more often than long ones.

    Args:
        policy: as :func:`~amber_trl.runs.load_policy` returns it.
        episodes: number of episodes, at least 1.
        deterministic: whether it takes the mean (or likeliest) action, or draws from its
            distribution, as in training.
        seed: of environments and actions, at least 0. The same seed gives the same episodes, and no
            global generator moves.
        max_frames: frames that one episode may last.
        progress: whether to show a progress bar.

    Returns:
        Returns and lengths.

    Raises:
        TypeError: if ``episodes``, ``max_frames`` or ``seed`` is not an integer.
        ValueError: if one of them is out of range; the environment is unknown, or has other spaces
            than the policy; or an observation, action or reward is not finite.
        RuntimeError: if an episode has not ended after ``max_frames``.

    Examples:
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import play
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy("Pendulum-v1", {}, gaussian_actor(observation_size=3, action_size=1))
        >>> play(policy, episodes=2) == play(policy, episodes=2)
        True
    """
    played = play_episodes(
        replace(policy, actor=copy.deepcopy(policy.actor).cpu()),  # wherever it is trained
        episodes,
        deterministic=deterministic,
        seed=seed,
        max_frames=max_frames,
        progress=progress,
    )
    returns, lengths = zip(*played, strict=True)
    return Played(returns, lengths)
