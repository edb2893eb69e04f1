"""Train ACER for continuous actions (Wang et al. 2017), a comparator of the AMBER paper's appendix.

    python recipes/comparators/acer.py --env-id HalfCheetah-v5 --seed 0
    python recipes/comparators/acer.py --resume runs/HalfCheetah-v5-acer-seed0

Numbers in brackets are equations of arXiv 1611.01224. After every 50 frames the newest segment is
stored, and Poisson(4) segments of the last hundred are replayed, with one update each. A segment that
is not drawn is not learnt from, as in the paper's experiments with continuous actions.

The AMBER paper gives the networks, the segments, n, the step size and delta; ACER's paper gives c and
alpha. Neither gives the rest. Chosen here: RMSprop as in TensorFlow (`pip install -e '.[comparators]'`)
and one limit on the norm of the joint gradient of actor and critic, as in OpenAI baselines' ACER, on
which AMBER's authors built theirs; no entropy bonus; means over the frames of a segment; the Gaussian's
mean and deviation as the trust region's statistics; rewards divided by the running deviation of their
discounted sum, without which the critic's gradient takes up the limit and one policy hardly moved. The
deviation is learnt, as for PPO here (ACER's paper fixes it).
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from amber_trl import _terminal

if __name__ == "__main__":
    _terminal.begin()  # before the imports that take seconds

import torch
from command_line import run_recipe
from ranges import Range
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase
from torchrl.modules import IndependentNormal
from torchrl.objectives import LossModule

from amber_trl.modules import ObservationNormalizer, RewardScaler, value_critic
from amber_trl.runs import RunDirectory
from amber_trl.training import UpdateStep
from comparators import common


@dataclass(frozen=True, kw_only=True)
class Config(common.ComparatorConfig):
    """Training options. Where the default is None, the parentheses say what applies."""

    frames_per_batch: Annotated[int, Range(2)] = 50
    """Frames per segment; one segment is collected per iteration."""
    log_interval: Annotated[int, Range(1)] = 20
    """Iterations between rows of the tables."""
    checkpoint_interval: Annotated[int | None, Range(1)] = 1000
    """Iterations between checkpoints (None: only one, at the end)."""
    num_segments: Annotated[int, Range(1)] = 100
    """Number of segments kept for replay."""
    replay_ratio: Annotated[float, Range(0, above=True)] = 4.0
    """Mean number of segments replayed per iteration; the number is Poisson distributed."""
    num_samples: Annotated[int, Range(1)] = 5
    """n, actions over which the duelling network averages."""
    truncation: Annotated[float, Range(0, above=True)] = 5.0
    """c, above which an importance weight is truncated and the bias corrected."""
    delta: Annotated[float, Range(0, above=True)] = 0.1
    """delta, limit on how much a frame's gradient may raise the KL divergence from the average policy."""
    alpha: Annotated[float, Range(0, 1)] = 0.995
    """alpha, share of itself that the average policy keeps in an update."""
    learning_rate: Annotated[float, Range(0, above=True)] = 7e-4
    """RMSprop's step size, constant."""
    max_grad_norm: Annotated[float, Range(0, above=True)] = 10.0
    """Largest norm of the gradient, which is rescaled above it."""


class DuellingNetwork(nn.Module):
    """The stochastic duelling network: V(x), and an estimate of Q(x, a) that agrees with it."""

    def __init__(
        self, observation_size: int, action_size: int, normalizer: ObservationNormalizer
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.value = value_critic(observation_size, normalizer=normalizer).module
        self.advantage = value_critic(observation_size + action_size).module

    def forward(
        self, observation: Tensor, actions: Tensor, samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes the values of states and of actions.

        Args:
            observation: x, ``[T, observation_size]``.
            actions: a, several for each state, ``[k, T, action_size]``.
            samples: u, drawn from the policy, ``[n, T, action_size]``.

        Returns:
            V(x), ``[T]``, and Q(x, a), ``[k, T]``, whose mean over actions of the policy is V(x).
        """
        every = torch.cat([actions, samples])
        state = self.normalizer(observation).expand(len(every), -1, -1)
        advantage = self.advantage(torch.cat([state, every], -1)).squeeze(-1)
        value = self.value(observation).squeeze(-1)
        baseline = advantage[len(actions) :].mean(0)
        return value, value + advantage[: len(actions)] - baseline  # (13)


def corrected_return(
    segment: TensorDictBase, next_value: Tensor, q: Tensor, trace: Tensor, gamma: float
) -> Tensor:
    """Off-policy corrected return from each frame on: Q^ret or Q^opc.

    (5): Q^ret_t = r_t + gamma (c_{t+1} (Q^ret_{t+1} - Q_{t+1}) + V_{t+1}). A terminated frame has no
    successor term. A frame that was truncated or ends the segment has V_{t+1} alone.

    Args:
        segment: frames ``[T]`` with ``("next", "reward")``, ``done`` and ``terminated``, ``[T, 1]``.
        next_value: value of the observation that follows each frame, ``[T]``.
        q: value of each frame's action, ``[T]``.
        trace: c_t, the share of the correction that each frame passes on, ``[T]``: the truncated
            importance weight for Q^ret, ones for Q^opc (appendix B of the paper).
        gamma: discount.
    """
    reward, done, terminated = (
        segment["next", name].squeeze(-1) for name in ("reward", "done", "terminated")
    )
    carried = gamma * trace[1:] * ~done[:-1]
    known = reward + gamma * next_value * ~terminated
    known[:-1] -= carried * q[1:]
    # Q_t = known_t + carried_t Q_{t+1} for all t at once: a system with two diagonals.
    system = torch.eye(len(q)) - torch.diag(carried, 1)
    return torch.linalg.solve_triangular(system, known[:, None], upper=True).squeeze(-1)


def truncated_weights(ratio: Tensor, fresh_ratio: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """Weights of the two terms of (15): min(c, rho) and [1 - c / rho']_+, both ``[T]``."""
    return ratio.clamp_max(c), (1 - c / fresh_ratio).clamp_min(0)


def score(loc: Tensor, scale: Tensor, action: Tensor) -> Tensor:
    """Gradient of a Gaussian's log f(a | loc, scale) with respect to (loc, scale), ``[T, 2 * action_size]``."""
    deviation = (action - loc) / scale
    return torch.cat([deviation, deviation.square() - 1], -1) / torch.cat([scale, scale], -1)


def divergence_gradient(
    loc: Tensor, scale: Tensor, average_loc: Tensor, average_scale: Tensor
) -> Tensor:
    """The k of (12): gradient of KL(average || current) with respect to the current (loc, scale)."""
    distance = loc - average_loc
    spread = average_scale.square() + distance.square()
    return torch.cat([distance / scale.square(), 1 / scale - spread / scale.pow(3)], -1)


def trust_region(gradient: Tensor, k: Tensor, delta: float) -> Tensor:
    """z* of (12): the z closest to the gradient g with k z <= delta (11)."""
    excess = ((k * gradient).sum(-1, keepdim=True) - delta) / k.square().sum(-1, keepdim=True)
    return gradient - excess.clamp_min(0) * k  # where k is 0, the excess is -inf


class ACERLoss(LossModule):
    """The update of ACER's Algorithm 3 as a loss, on one segment of frames ``[T]``.

    Args:
        phi: returns mean and deviation of the policy, ``[T, action_size]`` each. Its average is kept
            here too.
        critic: the duelling network.
        config: constants of the algorithm.
    """

    def __init__(self, phi: nn.Module, critic: DuellingNetwork, config: Config) -> None:
        super().__init__()
        self.phi, self.critic, self.config = phi, critic, config
        # Both standardise observations with the same statistics.
        shared = {id(critic.normalizer): critic.normalizer}
        self.average_phi = copy.deepcopy(phi, shared).requires_grad_(False)

    def forward(self, segment: TensorDictBase) -> TensorDict:
        """Losses of actor and critic, and the distance between the policies."""
        config, observation, action = self.config, segment["observation"], segment["action"]
        loc, scale = self.phi(observation)
        policy = IndependentNormal(loc, scale)
        with torch.no_grad():
            fresh, samples = policy.sample(), policy.sample((config.num_samples,))
            behaviour = IndependentNormal(segment["loc"], segment["scale"])
            ratio = (policy.log_prob(action) - segment["action_log_prob"]).exp()
            fresh_ratio = (policy.log_prob(fresh) - behaviour.log_prob(fresh)).exp()
            next_value = self.critic.value(segment["next", "observation"]).squeeze(-1)
        value, (q, fresh_q) = self.critic(observation, torch.stack([action, fresh]), samples)
        with torch.no_grad():
            trace = ratio.pow(1 / action.shape[-1]).clamp_max(1)  # section 5.1
            q_ret = corrected_return(segment, next_value, q, trace, config.gamma)
            q_opc = corrected_return(segment, next_value, q, torch.ones_like(q), config.gamma)
            truncated, correction = truncated_weights(ratio, fresh_ratio, config.truncation)
            gradient = (truncated * (q_opc - value))[:, None] * score(loc, scale, action)
            gradient += (correction * (fresh_q - value))[:, None] * score(loc, scale, fresh)  # (16)
            average = self.average_phi(observation)
            k = divergence_gradient(loc, scale, *average)
            bounded = trust_region(gradient, k, config.delta)
            target = ratio.clamp_max(1) * (q_ret - q) + value  # (14)
        return TensorDict(
            {
                # Its gradient is -z* back-propagated through phi, the second stage of section 3.3.
                "loss_actor": -(torch.cat([loc, scale], -1) * bounded).sum(-1).mean(),
                "loss_q": (q_ret - q).square().mean() / 2,  # (6)
                "loss_value": (target - value).square().mean() / 2,
                "importance_ratio": truncated.mean(),
                "bias_correction": correction.mean(),
                "trust_region_share": (bounded != gradient).any(-1).float().mean(),
                "std": scale.mean().detach(),
                "kl": kl_divergence(IndependentNormal(*average), policy).mean().detach(),
            }
        )

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the average policy: theta_a <- alpha theta_a + (1 - alpha) theta."""
        pairs = zip(self.average_phi.parameters(), self.phi.parameters(), strict=True)
        for average, current in pairs:
            average.lerp_(current, 1 - self.config.alpha)


_STORED = (
    *("observation", "action", "action_log_prob", "loc", "scale", ("next", "observation")),
    *(("next", name) for name in ("reward", "done", "terminated")),
)
_LOGGED = (
    *("loss_actor", "loss_q", "loss_value", "importance_ratio", "bias_correction"),
    *("trust_region_share", "std", "kl", "grad_norm"),
)


def open_run(config: Config) -> tuple[Any, ...]:
    """Does everything that can fail before training; returns the arguments of learn."""
    common.check_installed("stable_baselines3")
    from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

    config, env, policy, normalizer = common.prepare(config, "acer")
    critic = DuellingNetwork(**policy.arguments, normalizer=normalizer)
    loss = ACERLoss(policy.actor.module[0].module, critic, config)
    learnt = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    optimizer = RMSpropTFLike(learnt, lr=config.learning_rate, alpha=0.99, eps=1e-5)
    memory = TensorDictReplayBuffer(storage=LazyTensorStorage(config.num_segments), batch_size=1)
    parts = {"loss": loss, "optimizer": optimizer, "memory": memory, "policy": policy}
    parts["reward_scaler"] = RewardScaler(1, gamma=config.gamma)
    return config, env, common.open_run(config, "acer", parts), normalizer, parts


def learn(
    config: Config,
    env: EnvBase,
    directory: RunDirectory,
    normalizer: ObservationNormalizer,
    parts: dict[str, Any],
) -> dict[str, Any]:
    """Trains, writes the run directory, and returns the contents of its summary.json."""
    loss, memory, scaler = parts["loss"], parts["memory"], parts["reward_scaler"]
    update = UpdateStep(loss, parts["optimizer"], max_grad_norm=config.max_grad_norm)
    nothing = TensorDict({name: torch.empty(0) for name in _LOGGED}, [0])
    with common.begin(config, env, directory, parts, log_interval=config.log_interval) as run:
        for batch in run.batches():  # [1, 50], a segment of the current policy
            normalizer.update(batch["observation"])
            scaler.update(batch["next", "reward"], batch["next", "done"])
            memory.extend(common.with_terminal_limits(batch).select(*_STORED))
            metrics = [nothing]  # an iteration may replay nothing
            for _ in range(int(torch.poisson(torch.tensor(config.replay_ratio)))):
                segment = memory.sample().squeeze(0)
                segment["next", "reward"] = scaler(segment["next", "reward"])
                metrics.append(update(segment)[None])
                loss.follow()
            update.raise_if_nonfinite()
            run.record(batch, metrics=torch.cat(metrics))
    return run.summary


if __name__ == "__main__":
    sys.exit(run_recipe(Config, __doc__, open_run, learn))
