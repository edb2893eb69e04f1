"""The parts of the main recipe, each built from a configuration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from command_line import check_staleness, initialize, metric_of
from ppo_amber_config import EffectiveConfig
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import Categorical, LazyTensorStorage
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE

from amber_trl._actors import forked_generators
from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
    RecomputedAdvantages,
    StratifiedMinibatchSampler,
)
from amber_trl.envs import make_env
from amber_trl.modules import (
    ObservationNormalizer,
    RewardScaler,
    categorical_actor,
    gaussian_actor,
    value_critic,
)
from amber_trl.objectives import AmberPPOLoss, DISCLoss, GePPOLoss, GIPOLoss
from amber_trl.runs import import_named, named_actor
from amber_trl.training import LinearSchedule
from amber_trl.transforms import DropFactorController, ISStalenessFilter

_COMPILE_ACTOR_FROM_STEPS = 500_000
"""Actor calls above which compiling pays: it takes twenty seconds and saves 50 microseconds a call."""


def build_networks(
    config: EffectiveConfig, env: EnvBase
) -> tuple[TensorDictModuleBase, TensorDictModuleBase, ObservationNormalizer, dict[str, Any]]:
    """Actor and critic, the normaliser that both hold, and the arguments of this library's actor."""
    size = env.observation_spec["observation"].shape[-1]
    shape: dict[str, Any] = {"hidden_sizes": list(config.hidden_sizes)}
    if config.activation != "tanh":  # policy.pt does not store the default
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
    """The stored batches, with a filter that drops or only reports stale ones."""
    advantages = None
    if config.advantages != "stored":
        advantages = RecomputedAdvantages(
            critic,
            "gae" if config.advantages == "recomputed" else config.advantages,
            gamma=config.gamma,
            lmbda=config.gae_lambda,
            standardize=config.normalize_advantage == "batch",
            every_batch=config.critic_on == "all",
            frames_per_env=config.frames_per_batch // config.num_envs,
            log_prob_keys=actor.log_prob_keys,
        )
    proximal = config.loss == "geppo" or (advantages is not None and advantages.reads_ratios)
    drop_factor: float | DropFactorController = math.inf
    if config.drop_factor is not None:
        drop_factor = config.drop_factor
    elif config.max_drop_factor is not None:
        drop_factor = DropFactorController(
            config.batches_in_use, ess=config.ess_in_use, max_drop_factor=config.max_drop_factor
        )
    staleness = ISStalenessFilter(
        actor,
        drop_factor=drop_factor,
        metric=metric_of(config.staleness_metric),
        report_only=config.drop_factor is None and config.max_drop_factor is None,
        proximal_log_prob_key="proximal_log_prob" if proximal else None,
    )
    columns = ["advantage", "value_target"] if advantages is None else advantages.in_keys
    disc, rows = config.loss == "disc", config.num_batches * config.frames_per_batch
    return MultiBatchReplayBuffer(
        config.num_batches,
        config.frames_per_batch,
        config.minibatch_size,
        staleness=staleness,
        advantages=advantages,
        storage=LazyTensorStorage(rows, device=config.device),
        sampler=build_sampler(config),
        keys=[*staleness.in_keys, *columns, *(("loc", "scale") if disc else ())],
        age_key="batch_age" if disc else None,
    )


def build_advantage(
    config: EffectiveConfig,
    critic: TensorDictModuleBase,
    recomputed: RecomputedAdvantages | None,
    scaler: RewardScaler | None,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """Makes the copy of a new batch that is stored, with GAE's advantages unless refresh computes them.

    In the copy, rewards are scaled if there is a scaler, and a time limit may be terminal.
    """
    gae = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=critic,
        average_gae=config.normalize_advantage == "batch",
        vectorized=config.compiled,  # faster; equal up to rounding, like the compiled update
    )

    def advantage(batch: TensorDictBase) -> TensorDictBase:
        batch = batch.copy()
        reward, done = batch["next", "reward"], batch["next", "done"]
        if scaler is not None:
            scaler.update(reward, done)
            if recomputed is None:
                batch["next", "reward"] = scaler(reward)
            else:  # of all stored batches, in the scale that the critic learns next
                recomputed.reward_scale = float(scaler.scale)
        if config.time_limits == "terminal":
            batch["next", "terminated"] = done
        return gae(batch) if recomputed is None else batch

    return advantage


def build_sampler(config: EffectiveConfig) -> MultiBatchSampler:
    """The sampler named by the options, or one of the library's."""
    frames = config.frames_per_batch
    if config.sampler is not None:
        sampler = import_named("sampler", config.sampler)(frames)
        if not isinstance(sampler, MultiBatchSampler):
            raise TypeError(
                f"sampler={config.sampler!r} made a {type(sampler).__name__}: name one that returns an "
                "amber_trl.data.MultiBatchSampler"
            )
        return sampler
    if config.minibatches == "episodic":
        return EpisodicMinibatchSampler(frames, frames // config.num_envs)
    if config.minibatches == "stratified":
        return StratifiedMinibatchSampler(frames, config.shares)
    return AdaptiveMinibatchSampler(frames, scale_minibatch=config.scale_minibatch)


def check_parts(config: EffectiveConfig, env: EnvBase) -> None:
    """Builds the parts once and discards them, so that errors come before a run is created."""
    with forked_generators(torch.device(config.device)):
        actor, critic, *_ = build_networks(config, env)
        try:
            loss = build_loss(config, actor, critic)
        except ValueError as error:
            chosen = f"setup={config.setup!r} with loss={config.loss!r}"
            raise ValueError(f"{chosen}: {error}") from error
        if config.loss == "disc" and not {"loc", "scale"} <= {*actor.out_keys}:
            raise ValueError(
                f"loss='disc' with actor={config.actor!r}: it writes {actor.out_keys}, and disc reads the "
                "mean and deviation of its Gaussian: name these outputs 'loc' and 'scale'"
            )
        check_staleness(build_replay(config, actor, critic), env)
    initialize(config, {"loss": loss, "reward_scaler": build_scaler(config)})


def build_loss(
    config: EffectiveConfig, actor: TensorDictModuleBase, critic: TensorDictModuleBase
) -> AmberPPOLoss:
    """The paper's loss, equation (11), with options beyond the paper; or another method's loss."""
    kind = {"amber": AmberPPOLoss, "disc": DISCLoss, "geppo": GePPOLoss, "gipo": GIPOLoss}
    options: dict[str, Any] = {"clip_epsilon": config.clip_epsilon, "sigma": config.sigma}
    return kind[config.loss](
        actor,
        critic,
        critic_coeff=config.critic_coeff,
        entropy_coeff=config.entropy_coeff,
        normalize_advantage=config.normalize_advantage == "minibatch",
        functional=False,
        **{name: value for name, value in options.items() if value is not None},
    )


def build_optimizer(
    config: EffectiveConfig,
    loss: AmberPPOLoss,
    actor: TensorDictModuleBase,
    critic: TensorDictModuleBase,
) -> torch.optim.Adam:
    """Adam over all parameters; if the actor's step size adapts, one group per network."""
    groups: Any = loss.parameters()
    if config.learning_rate_schedule == "adaptive":
        groups = [{"params": list(network.parameters())} for network in (actor, critic)]
    return torch.optim.Adam(
        groups,
        lr=config.learning_rate,
        eps=1e-5,
        # In a CUDA graph, steps are counted on the device.
        capturable=config.compiled and torch.device(config.device).type == "cuda",
    )


def build_schedule(
    config: EffectiveConfig,
    optimizer: torch.optim.Adam,
    loss: AmberPPOLoss,
    replay: MultiBatchReplayBuffer,
    *,
    extends: bool,
) -> LinearSchedule:
    """The schedule of step size, clip range and drop factor, as far as they are annealed."""
    clips = config.range_schedule == "linear" and config.clip_epsilon is not None
    drops = config.range_schedule == "linear" and config.drop_factor is not None
    return LinearSchedule(
        config.total_frames,
        optimizer=optimizer if config.learning_rate_schedule == "linear" else None,
        loss=loss if clips else None,
        staleness=replay.staleness if drops else None,
        extends=extends,
    )


def adapt(
    loss: AmberPPOLoss,
    optimizer: torch.optim.Adam,
    replay: MultiBatchReplayBuffer,
    metrics: list[TensorDict],
    config: EffectiveConfig,
) -> dict[str, float]:
    """Adapts parameters after an iteration's updates; returns the values that the updates used."""
    used: dict[str, float] = {"minibatch_size": replay.batch_size}
    if replay.staleness is not None and replay.staleness.controller is not None:
        used["drop_factor"] = replay.staleness.drop_factor
    if isinstance(loss, DISCLoss):
        used["penalty_coeff"] = float(loss.penalty_coeff)
        loss.adapt_penalty(torch.cat([epoch["penalty"] for epoch in metrics]))
    if isinstance(loss, GePPOLoss) and config.learning_rate_schedule == "adaptive":
        used["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        loss.adapt_learning_rate(optimizer.param_groups[0], metrics[-1]["total_variation"])
    return used


def build_env(config: EffectiveConfig) -> EnvBase:
    """The environments, on the device that the collector requires."""
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
    """The scaler that divides rewards; None leaves them unscaled."""
    return RewardScaler(config.num_envs, gamma=config.gamma) if config.reward_scaling else None


def build_collector(
    config: EffectiveConfig, env: EnvBase, actor: TensorDictModuleBase
) -> BaseCollector:
    """The collector of whole batches.

    If the networks are not on the CPU, the fast collector acts with a CPU copy of the actor. Otherwise
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
            auto_register_policy_transforms=False,  # a feed-forward actor needs no transform
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
