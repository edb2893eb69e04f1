"""Train TRPO (Schulman et al. 2015, arXiv 1502.05477), a comparator of the AMBER paper's appendix.

    python recipes/comparators/trpo.py --env-id HalfCheetah-v5 --seed 0

The update is sb3-contrib's (`pip install -e '.[comparators]'`), with this library's networks,
collector and advantages: observations are standardised inside the policy and time limits are terminal,
as for PPO and AMBER. Settings are those of OpenAI baselines for MuJoCo, which the paper used, with the
networks of PPO. The update differs from theirs: baselines uses a fifth of the frames for the Fisher
matrix, limits KL(old, new) instead of KL(new, old), accepts 1.5 times the KL step, and takes the old
policy under the new observation statistics.
"""

from __future__ import annotations

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
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE

from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import ObservationNormalizer, value_critic
from amber_trl.runs import RunDirectory
from comparators import common

_KEYS = {"observations": "observation", "actions": "action", "log_probs": "action_log_prob"}
_KEYS |= {"values": "state_value", "advantages": "advantage", "returns": "value_target"}
"""Arrays of the model's rollout buffer, and the batch keys that fill them."""
_LOGGED = ("policy_objective", "kl_divergence_loss", "is_line_search_success", "value_loss", "std")


@dataclass(frozen=True, kw_only=True)
class Config(common.ComparatorConfig):
    """Training options. Where the default is None, the parentheses say what applies."""

    frames_per_batch: Annotated[int, Range(2)] = 1024
    """Frames collected per iteration."""
    target_kl: Annotated[float, Range(0, above=True)] = 0.01
    """Largest KL divergence of a policy step."""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.98
    """GAE's lambda."""
    learning_rate: Annotated[float, Range(0, above=True)] = 1e-3
    """Adam's step size for the critic, in five passes over minibatches of 64 frames."""


def open_run(config: Config) -> tuple[Any, ...]:
    """Does everything that can fail before training; returns the arguments of learn."""
    common.check_installed("sb3_contrib")
    config, env, policy, normalizer = common.prepare(config, "trpo")
    critic = value_critic(normalizer.size, normalizer=normalizer)
    model = trpo_of(config, env, policy.actor, critic)
    parts = {"actor": policy.actor, "critic": critic, "optimizer": model.policy.optimizer}
    parts["policy"] = policy
    return config, env, common.open_run(config, "trpo", parts), model, normalizer, parts


def trpo_of(config: Config, env: EnvBase, actor: Any, critic: Any) -> Any:
    """sb3-contrib's TRPO around this library's networks, which it updates in place."""
    from sb3_contrib import TRPO
    from stable_baselines3.common.logger import Logger

    options: dict[str, Any] = {"n_steps": config.frames_per_batch, "target_kl": config.target_kl}
    options |= {"cg_max_steps": 10, "cg_damping": 0.1, "line_search_shrinking_factor": 0.5}
    options |= {"batch_size": min(64, config.frames_per_batch), "n_critic_updates": 5}
    spaces = env._env.envs[0]  # the model never steps it
    model = TRPO("MlpPolicy", spaces, config.learning_rate, device="cpu", **options)
    model.set_logger(Logger(None, []))
    policy, gaussian, value = model.policy, actor.module[0].module, critic.module
    mean, hidden, policy.log_std = gaussian.network, policy.mlp_extractor, gaussian.log_std
    policy.pi_features_extractor = policy.vf_features_extractor = mean.normalizer
    hidden.policy_net, policy.action_net = mean.layers[:-1], mean.layers[-1]
    hidden.value_net, policy.value_net = value.layers[:-1], value.layers[-1]
    policy.optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
    return model


def fill(buffer: Any, batch: TensorDictBase) -> None:
    """Copies a batch ``[1, N]`` with advantages into the model's rollout buffer ``[N, 1]``."""
    if not batch["advantage"].isfinite().all():
        raise NonFiniteDataError("advantages are NaN or infinite: look for such or huge rewards")
    buffer.reset()
    for name, key in _KEYS.items():
        array = getattr(buffer, name)
        array[...] = batch[key].reshape(array.shape)
    buffer.full = True


def learn(
    config: Config,
    env: EnvBase,
    directory: RunDirectory,
    model: Any,
    normalizer: ObservationNormalizer,
    parts: dict[str, Any],
) -> dict[str, Any]:
    """Trains, writes the run directory, and returns the contents of its summary.json."""
    critic = parts["critic"]
    advantage = GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic)
    with common.begin(config, env, directory, parts) as run:
        for batch in run.batches():
            normalizer.update(batch["observation"])
            fill(model.rollout_buffer, advantage(common.with_terminal_limits(batch)))
            model.train()
            said = model.logger.name_to_value
            metrics = {name: torch.tensor([said[f"train/{name}"]]) for name in _LOGGED}
            run.record(batch, metrics=TensorDict(metrics, [1]))
    return run.summary


if __name__ == "__main__":
    sys.exit(run_recipe(Config, __doc__, open_run, learn))
