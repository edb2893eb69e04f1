"""What the main recipe is made of: each part of AMBER, built from a configuration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from command_line import metric_of
from ppo_amber_config import EffectiveConfig
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import Categorical
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE

from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    RecomputedAdvantages,
)
from amber_trl.envs import make_env
from amber_trl.modules import (
    ObservationNormalizer,
    RewardScaler,
    categorical_actor,
    gaussian_actor,
    value_critic,
)
from amber_trl.objectives import AmberPPOLoss
from amber_trl.runs import import_named, named_actor
from amber_trl.transforms import ISStalenessFilter

_COMPILE_ACTOR_FROM_STEPS = 500_000
"""Calls of the actor from which compiling it pays: twenty seconds, for 50 microseconds of each."""


def build_networks(
    config: EffectiveConfig, env: EnvBase
) -> tuple[TensorDictModuleBase, TensorDictModuleBase, ObservationNormalizer, dict[str, Any]]:
    """Actor and critic, the normaliser that both hold, and the arguments of an actor of ours."""
    size = env.observation_spec["observation"].shape[-1]
    shape: dict[str, Any] = {"hidden_sizes": list(config.hidden_sizes)}
    if config.activation != "tanh":  # which policy.pt does not name
        shape["activation"] = config.activation
    arguments = {"observation_size": size, **shape}
    prior = 0.01 if config.protocol == "paper" else 0.0  # frames, as in the paper's code base
    normalizer = ObservationNormalizer(size, initial_count=prior, device=config.device)
    if config.actor is not None:
        actor, arguments = named_actor(config.actor, env, normalizer), {}
    elif isinstance(env.action_spec, Categorical):
        arguments["num_actions"] = int(env.action_spec.space.n)
        actor = categorical_actor(**arguments, normalizer=normalizer)
    else:
        arguments["action_size"] = env.action_spec.shape[-1]
        actor = gaussian_actor(**arguments, normalizer=normalizer)
    critic = value_critic(size, normalizer=normalizer, **shape)
    return actor, critic, normalizer, arguments


def build_replay(
    config: EffectiveConfig, actor: TensorDictModuleBase, critic: TensorDictModuleBase
) -> MultiBatchReplayBuffer:
    """The stored batches, with a filter that drops stale ones (amber) or only reports them."""
    advantages = None
    if config.advantages != "stored":
        advantages = RecomputedAdvantages(
            critic,
            "gae" if config.advantages == "recomputed" else config.advantages,
            gamma=config.gamma,
            lmbda=config.gae_lambda,
            standardize=config.normalize_advantage == "batch",
            frames_per_env=config.frames_per_batch // config.num_envs,
            log_prob_keys=actor.log_prob_keys,
        )
    reads_ratios = advantages is not None and advantages.reads_ratios
    staleness = ISStalenessFilter(
        actor,
        drop_factor=math.inf if config.drop_factor is None else config.drop_factor,
        metric=metric_of(config.staleness_metric),
        report_only=config.setup != "amber",
        proximal_log_prob_key="proximal_log_prob" if reads_ratios else None,
    )
    columns = ["advantage", "value_target"] if advantages is None else advantages.in_keys
    return MultiBatchReplayBuffer(
        config.num_batches,
        config.frames_per_batch,
        config.minibatch_size,
        staleness=staleness,
        advantages=advantages,
        critic_on_all=config.critic_on == "all",
        sampler=build_sampler(config),
        keys=[*staleness.in_keys, *columns],
    )


def build_advantage(
    config: EffectiveConfig, critic: TensorDictModuleBase
) -> Callable[[TensorDictBase], TensorDictBase]:
    """What computes the advantages of a new batch: GAE, or nothing where refresh will."""
    if config.advantages != "stored":
        return lambda batch: batch
    return GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=critic,
        average_gae=config.normalize_advantage == "batch",
        vectorized=config.compiled,  # faster and, like the compiled update, equal up to rounding
    )


def build_sampler(config: EffectiveConfig) -> MultiBatchSampler:
    """What draws minibatches: the sampler that was named, or one of the library's."""
    frames = config.frames_per_batch
    if config.sampler is not None:
        sampler = import_named("sampler", config.sampler)(frames)
        if not isinstance(sampler, MultiBatchSampler):
            raise TypeError(
                f"sampler={config.sampler!r} made a {type(sampler).__name__}: name what makes an "
                "amber_trl.data.MultiBatchSampler"
            )
        return sampler
    if config.minibatches == "episodic":
        return EpisodicMinibatchSampler(frames, frames // config.num_envs)
    return AdaptiveMinibatchSampler(frames, scale_minibatch=config.scale_minibatch)


def check_parts(config: EffectiveConfig, env: EnvBase) -> None:
    """Builds networks and replay and lets them go: what cannot be is said before a run is made."""
    with torch.random.fork_rng(), torch.no_grad():
        actor, critic, *_ = build_networks(config, env)
        staleness = build_replay(config, actor, critic).staleness
        frames = actor(env.observation_spec.zero().to(config.device))
    try:
        assert staleness is not None
        staleness.check_frames(frames)
    except (
        KeyError
    ) as error:  # such as parameters that the metric reads and the actor does not write
        raise ValueError(*error.args) from error


def build_loss(
    config: EffectiveConfig, actor: TensorDictModuleBase, critic: TensorDictModuleBase
) -> AmberPPOLoss:
    """The paper's loss, equation (11), plus options that the paper does not have."""
    return AmberPPOLoss(
        actor,
        critic,
        clip_epsilon=config.clip_epsilon,
        critic_coeff=config.critic_coeff,
        entropy_coeff=config.entropy_coeff,
        normalize_advantage=config.normalize_advantage == "minibatch",
        functional=False,
    )


def build_env(config: EffectiveConfig) -> EnvBase:
    """The environments, on the device that the collector needs."""
    device = "cpu" if config.collector == "fast" else config.device
    return make_env(
        config.env_id,
        config.num_envs,
        seed=config.seed,
        device=device,
        wrappers=config.wrappers,
        **config.env_kwargs,
    )


def build_scaler(config: EffectiveConfig) -> RewardScaler | None:
    """What rewards are divided by; None leaves them as they are."""
    return RewardScaler(config.num_envs, gamma=config.gamma) if config.reward_scaling else None


def build_collector(
    config: EffectiveConfig, env: EnvBase, actor: TensorDictModuleBase
) -> BaseCollector:
    """The collector of whole batches.

    If the networks are not on the CPU, the fast one acts by a copy of the actor that is: otherwise
    the simulators would wait for the device at every step.
    """
    size = config.frames_per_batch
    total = -(-config.total_frames // size) * size  # the last batch is whole
    if config.collector == "torchrl":
        return Collector(
            env,
            actor,
            frames_per_batch=size,
            total_frames=total,
            auto_register_policy_transforms=False,  # a feed-forward actor needs none
        )
    elsewhere = torch.device(config.device).type != "cpu"
    steps = config.total_frames // config.num_envs
    return GymCollector(
        env,
        copy.deepcopy(actor).cpu() if elsewhere else actor,
        frames_per_batch=size,
        total_frames=total,
        storing_device=config.device if elsewhere else None,
        compile_policy=config.compiled and steps >= _COMPILE_ACTOR_FROM_STEPS,
    )


def for_learning(
    batch: TensorDictBase, config: EffectiveConfig, scaler: RewardScaler | None
) -> TensorDictBase:
    """A copy of the batch for computing advantages, with scaled rewards if there is a scaler.

    Under "terminal", a time limit ends the copy's episodes.
    """
    batch = batch.copy()
    if scaler is not None:
        reward = batch["next", "reward"]
        scaler.update(reward, batch["next", "done"])
        batch["next", "reward"] = scaler(reward)
    if config.time_limits == "terminal":
        batch["next", "terminated"] = batch["next", "done"]
    return batch
