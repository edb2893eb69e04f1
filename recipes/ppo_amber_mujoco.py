"""Train PPO, PPO-MBER or PPO-AMBER on a Gymnasium environment.

    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --setup amber
    python recipes/ppo_amber_mujoco.py --env-id HalfCheetah-v5 --setup ppo --seed 3
    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --setup amber --protocol paper
    python recipes/ppo_amber_mujoco.py --env-id Hopper-v5 --checkpoint-interval 20 --run-dir runs/hopper
    python recipes/ppo_amber_mujoco.py --resume runs/hopper

`ppo` learns from the newest batch, `mber` from the last two, `amber` from those of the last eight
that are still close to the current policy (Han & Sung, arXiv 1710.04423). What to expect after a
million frames, with `amber`: a last-100 return near -150 on Pendulum-v1. The run directory then
holds config.json, versions.json, episodes.csv, iterations.csv, timing.csv, policy.pt, summary.json
and checkpoints. Ctrl-C, SIGTERM or SIGHUP finishes the iteration, saves a checkpoint to resume
from, and exits with code 130, 143 or 129.
"""

from __future__ import annotations

import copy
import ctypes
import math
import random
import sys
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from command_line import command_line, conclude, open_directory
from ppo_amber_config import Config, EffectiveConfig, resolve
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import Categorical
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE
from tqdm import tqdm

from amber_trl.checkpoints import CheckpointError
from amber_trl.collectors import GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
)
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.evaluation import play
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.runs import Policy, RunDirectory, TrainingRun
from amber_trl.training import LinearSchedule, NonFiniteError, UpdateStep, should_compile
from amber_trl.transforms import ISStalenessFilter

_COMPILE_ACTOR_FROM_STEPS = 500_000
"""Calls of the actor from which compiling it pays: twenty seconds, for 50 microseconds of each."""


def build_networks(
    config: EffectiveConfig, env: EnvBase
) -> tuple[TensorDictModuleBase, TensorDictModuleBase, ObservationNormalizer, dict[str, Any]]:
    """Actor and critic, the normaliser that both hold, and the arguments that made the actor."""
    size = env.observation_spec["observation"].shape[-1]
    shape: dict[str, Any] = {"hidden_sizes": list(config.hidden_sizes)}
    if config.activation != "tanh":  # which policy.pt does not name
        shape["activation"] = config.activation
    arguments = {"observation_size": size, **shape}
    prior = 0.01 if config.protocol == "paper" else 0.0  # frames, as in the paper's code base
    normalizer = ObservationNormalizer(size, initial_count=prior, device=config.device)
    if isinstance(env.action_spec, Categorical):
        arguments["num_actions"] = int(env.action_spec.space.n)
        actor = categorical_actor(**arguments, normalizer=normalizer)
    else:
        arguments["action_size"] = env.action_spec.shape[-1]
        actor = gaussian_actor(**arguments, normalizer=normalizer)
    critic = value_critic(size, normalizer=normalizer, **shape)
    return actor, critic, normalizer, arguments


def build_replay(config: EffectiveConfig, actor: TensorDictModuleBase) -> MultiBatchReplayBuffer:
    """The stored batches, with a filter that drops stale ones (amber) or only reports them."""
    staleness = ISStalenessFilter(
        actor,
        drop_factor=math.inf if config.drop_factor is None else config.drop_factor,
        metric=config.staleness_metric,
        report_only=config.setup != "amber",
    )
    frames = config.frames_per_batch
    if config.minibatches == "episodic":
        sampler = EpisodicMinibatchSampler(frames, frames // config.num_envs)
    else:
        sampler = AdaptiveMinibatchSampler(frames, scale_minibatch=config.scale_minibatch)
    return MultiBatchReplayBuffer(
        config.num_batches,
        frames,
        config.minibatch_size,
        staleness=staleness,
        sampler=sampler,
        keys=[*staleness.in_keys, "advantage", "value_target"],
    )


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
    return make_env(config.env_id, config.num_envs, seed=config.seed, device=device)


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


def for_learning(batch: TensorDictBase, config: EffectiveConfig) -> TensorDictBase:
    """A copy of the batch for computing advantages; under "terminal", a time limit ends it."""
    batch = batch.copy()
    if config.time_limits == "terminal":
        batch["next", "terminated"] = batch["next", "done"]
    return batch


def return_large_blocks() -> None:
    """Makes glibc return blocks of a megabyte and more to the system when they are freed.

    It would otherwise keep them in its heap, whose gaps fit no batch: compiled, a million frames of
    Humanoid then take gigabytes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc alone has it
    if mallopt is not None:
        mallopt(-3, 1 << 20)  # a fixed M_MMAP_THRESHOLD


def open_run(config: EffectiveConfig) -> tuple[EffectiveConfig, EnvBase, RunDirectory]:
    """Everything that can fail before training: environment, compiler and run directory."""
    return_large_blocks()
    torch.set_num_threads(config.num_threads)
    random.seed(config.seed)
    np.random.seed(config.seed)  # noqa: NPY002  (for environments that use it)
    torch.manual_seed(config.seed)
    env = build_env(config)
    if config.staleness_metric == "per_dimension" and isinstance(env.action_spec, Categorical):
        raise ValueError(
            f"staleness_metric='per_dimension' with env_id={config.env_id!r}, whose actions are "
            "discrete: choose another metric"
        )
    new = config.resume is None and config.extend is None
    choice = config.compile if new else "on" if config.compiled else "off"
    compiled = should_compile(choice, total_frames=config.total_frames, device=config.device)
    config = replace(config, compiled=compiled)
    directory = open_directory(config, tensorboard=config.tensorboard)
    if compiled:
        tqdm.write("compiling in the first iteration; a stop takes effect after it", sys.stdout)
    return config, env, directory


def train(config: Config) -> dict[str, Any]:
    """Trains, leaves the run directory, and returns what its summary.json says."""
    return learn(*open_run(resolve(config)))


def learn(config: EffectiveConfig, env: EnvBase, directory: RunDirectory) -> dict[str, Any]:
    """Algorithm 1 of the paper; its line numbers are in the comments."""
    actor, critic, normalizer, arguments = build_networks(config, env)
    replay = build_replay(config, actor)
    loss = build_loss(config, actor, critic)
    optimizer = torch.optim.Adam(
        loss.parameters(),
        lr=config.learning_rate,
        eps=1e-5,
        # A CUDA graph counts its steps on the device.
        capturable=config.compiled and torch.device(config.device).type == "cuda",
    )
    update = UpdateStep(
        loss, optimizer, max_grad_norm=config.max_grad_norm, compile=config.compiled
    )
    advantage = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=critic,
        average_gae=config.normalize_advantage == "batch",
        vectorized=config.compiled,  # faster and, like the compiled update, equal up to rounding
    )
    judge = replay.staleness if config.setup == "amber" else None
    schedule = LinearSchedule(
        config.total_frames,
        optimizer=optimizer,
        loss=loss,
        staleness=judge,
        extends=directory.resumed,
    )
    collector = build_collector(config, env, actor)
    policy = Policy(config.env_id, arguments, actor)
    parts: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "schedule": schedule}
    parts |= {"replay": replay, "policy": policy}
    with TrainingRun(
        directory,
        collector,
        parts,
        num_batches=config.num_batches,
        checkpoint_interval=config.checkpoint_interval,
        init_from=config.init_from,
        eval_interval=config.eval_interval,
        evaluate=lambda: play(policy, config.eval_episodes, seed=2**31 + config.seed).mean,
        progress=config.progress,
    ) as run:
        for batch in run.batches():  # line 4: collect
            annealed = schedule.step(run.frames)  # step size, clip range, drop factor
            normalizer.update(batch["observation"])
            replay.extend(advantage(for_learning(batch, config)))  # lines 5 to 7: store, once
            ledger = replay.refresh()  # lines 10 to 12: R' of each batch; in use or not
            metrics = list(update.epochs(replay, config.epochs, config.target_kl))  # 17 to 24
            collector.update_policy_weights_(TensorDict.from_module(actor))
            annealed["minibatch_size"] = replay.batch_size  # line 19: M, over the batches in use
            run.record(batch, annealed, metrics, ledger)
    return run.summary


def main() -> int:
    """Command line; returns the exit code."""
    try:
        opened = open_run(resolve(command_line(Config, __doc__)))
    except (
        ValueError,
        TypeError,
        RuntimeError,
        OSError,
        ImportError,
        gymnasium.error.Error,
    ) as error:
        sys.exit(f"error: {error}")
    try:
        summary = learn(*opened)
    except (CheckpointError, NonFiniteDataError, NonFiniteError, OSError) as error:
        sys.exit(f"error: {error}")
    return conclude(summary, opened[0].run_dir)


if __name__ == "__main__":
    sys.exit(main())
