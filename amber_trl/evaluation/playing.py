"""Evaluates a policy over episodes, and summarises its returns."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type, step_mdp
from tqdm import tqdm

from amber_trl._checks import check_integer
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.runs import Policy

MAX_FRAMES = 100_000
"""Frames after which an episode is assumed to have no end."""
_COPIES = 8


@dataclass(frozen=True)
class Played:
    """The episodes that a policy played, in the order in which they ended.

    Attributes:
        returns: undiscounted returns, one per episode.
        lengths: episode lengths in frames.

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

        It is :math:`\bar R \pm t_{0.975,\,n-1}\, s / \sqrt n`. It says how well these episodes determine
        this policy's mean return, not what training with another seed would reach.
        """
        from scipy import stats  # takes half a second

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
    show: Callable[[EnvBase], object] = lambda env: None,
) -> Played:
    """Plays episodes in fresh environments.

    Several copies of the environment step together. Each plays a fixed share of the episodes, so that
    short episodes do not count more often than long ones.

    Args:
        policy: a policy from :func:`~amber_trl.runs.load_policy`.
        episodes: number of episodes, at least 1.
        deterministic: whether to take the mean (or likeliest) action, or to sample from the
            distribution, as in training.
        seed: seed of environments and actions, at least 0. The same seed gives the same episodes. The
            global generators of Python, NumPy and torch continue afterwards as if nothing had been played.
        max_frames: maximum frames of an episode.
        progress: whether to show a progress bar.
        show: called with the environments after the first reset and each step, to render them.

    Returns:
        Returns and lengths of the episodes.

    Raises:
        TypeError: if ``episodes``, ``max_frames`` or ``seed`` is not an integer.
        ValueError: if one of them is out of range; or the environment is unknown, or its spaces do not
            match the policy.
        NonFiniteDataError: if an observation or reward is not finite.
        RuntimeError: if an episode has not ended after ``max_frames``.

    Examples:
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import play
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy("Pendulum-v1", {}, gaussian_actor(observation_size=3, action_size=1))
        >>> play(policy, episodes=2) == play(policy, episodes=2)
        True
    """
    # Whatever device it is trained on, and without dropout.
    policy = replace(policy, actor=deepcopy(policy.actor).cpu().eval())
    check_integer("episodes", episodes)
    check_integer("max_frames", max_frames)
    check_integer("seed", seed, low=0)
    kind = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
    copies = min(episodes, _COPIES)
    left = [episodes // copies + (copy < episodes % copies) for copy in range(copies)]
    totals, lengths = torch.zeros(copies, dtype=torch.float64), [0] * copies
    played: list[tuple[float, int]] = []
    make = {"seed": seed, "wrappers": policy.wrappers, **policy.env_kwargs}
    with (
        _seeded(seed),
        contextlib.closing(make_env(policy.env_id, copies, **make)) as env,
        tqdm(total=episodes, unit="episode", disable=not progress) as bar,
        torch.no_grad(),
        set_exploration_type(kind),
    ):
        _check_spaces(policy, env)
        frames = env.reset()
        show(env)
        while any(left):
            frames = env.step(policy.actor(frames))
            show(env)
            for key in ("observation", "reward"):
                if not (value := frames["next", key]).isfinite().all():
                    raise NonFiniteDataError(
                        f"the {key} in env_id={policy.env_id!r} is not finite: "
                        f"{value.flatten().tolist()}"
                    )
            totals += frames["next", "reward"][:, 0]
            for copy, ended in enumerate(frames["next", "done"][:, 0].tolist()):
                lengths[copy] += 1
                if ended:
                    if left[copy]:
                        left[copy] -= 1
                        played.append((totals[copy].item(), lengths[copy]))
                        bar.update()
                    totals[copy], lengths[copy] = 0, 0
                elif left[copy] and lengths[copy] >= max_frames:
                    raise RuntimeError(
                        f"an episode of env_id={policy.env_id!r} has not ended after "
                        f"max_frames={max_frames}: give the environment a time limit "
                        "(max_episode_steps where it is registered), or pass a larger max_frames "
                        "(amber-trl evaluate --max-frames) if its episodes are that long"
                    )
            frames = env.maybe_reset(step_mdp(frames))
    returns, ended_after = zip(*played, strict=True)
    return Played(returns, ended_after)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators, from which an environment may draw, and restores them afterwards."""
    generators = GlobalRNGState()
    before = generators.state_dict()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        yield
    finally:
        generators.load_state_dict(before)


def _check_spaces(policy: Policy, env: EnvBase) -> None:
    acted = policy.actor(env.observation_spec.zero())  # rejects observations of another size
    action, logits = acted["action"], acted.get("logits", None)
    same = action.shape == env.action_spec.shape
    same &= action.is_floating_point() == env.action_spec.dtype.is_floating_point
    if not same or (logits is not None and logits.shape[-1] != env.action_spec.space.n):
        raise ValueError(
            f"env_id={policy.env_id!r} is not what the policy was trained on: its actions do not fit "
            f"{env.single_action_space}"
        )
