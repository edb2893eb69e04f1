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
and checkpoints. Ctrl-C or SIGTERM finishes the iteration, saves a checkpoint to resume from, and
exits with code 130 or 143.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import math
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from ppo_amber_config import Config, EffectiveConfig, command_line, resolve
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import Categorical
from torchrl.envs import EnvBase
from torchrl.objectives.value import GAE
from tqdm import tqdm

from amber_trl.checkpoints import CheckpointError, Checkpoints
from amber_trl.collectors import CollectionState, GymCollector
from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
)
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.runs import PolicyRecord, RunDirectory, StopOnInterrupt, TrainingLog
from amber_trl.training import LinearSchedule, NonFiniteError, UpdateStep, should_compile
from amber_trl.transforms import ISStalenessFilter

logger = logging.getLogger(__name__)


_COMPILE_ACTOR_FROM_STEPS = 500_000
"""Calls of the actor from which compiling it pays: twenty seconds, for 50 microseconds of each."""


def build_networks(
    config: EffectiveConfig, env: EnvBase
) -> tuple[TensorDictModuleBase, TensorDictModuleBase, ObservationNormalizer, dict[str, Any]]:
    """Actor and critic, the normaliser that both hold, and the arguments that made the actor."""
    size = env.observation_spec["observation"].shape[-1]
    arguments = {"observation_size": size, "hidden_sizes": list(config.hidden_sizes)}
    prior = 0.01 if config.protocol == "paper" else 0.0  # frames, as in the paper's code base
    normalizer = ObservationNormalizer(size, initial_count=prior, device=config.device)
    if isinstance(env.action_spec, Categorical):
        arguments["num_actions"] = int(env.action_spec.space.n)
        actor = categorical_actor(**arguments, normalizer=normalizer)
    else:
        arguments["action_size"] = env.action_spec.shape[-1]
        actor = gaussian_actor(**arguments, normalizer=normalizer)
    critic = value_critic(size, hidden_sizes=config.hidden_sizes, normalizer=normalizer)
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


def build_env(config: EffectiveConfig) -> EnvBase:
    """The environments, where the collector wants them."""
    device = "cpu" if config.collector == "fast" else config.device
    return make_env(config.env_id, config.num_envs, seed=config.seed, device=device)


def build_collector(
    config: EffectiveConfig, env: EnvBase, actor: TensorDictModuleBase, total_frames: int
) -> BaseCollector:
    """The collector of whole batches, up to ``total_frames``.

    The fast one acts by a copy of the actor where the networks are not on the CPU: a simulator
    there would wait for the device at every step.
    """
    size = config.frames_per_batch
    if config.collector == "fast":
        elsewhere = torch.device(config.device).type != "cpu"
        steps = config.total_frames // config.num_envs
        return GymCollector(
            env,
            copy.deepcopy(actor).cpu() if elsewhere else actor,
            frames_per_batch=size,
            total_frames=total_frames,
            storing_device=config.device if elsewhere else None,
            compile_policy=config.compiled and steps >= _COMPILE_ACTOR_FROM_STEPS,
        )
    return Collector(
        env,
        actor,
        frames_per_batch=size,
        total_frames=total_frames,
        auto_register_policy_transforms=False,  # a feed-forward actor needs none
    )


def for_learning(batch: TensorDictBase, config: EffectiveConfig) -> TensorDictBase:
    """The batch that advantages are computed from, in which a time limit may count as an end."""
    batch = batch.copy()
    if config.time_limits == "terminal":
        batch["next", "terminated"] = batch["next", "done"]
    return batch


def return_large_blocks() -> None:
    """Has glibc return blocks of a megabyte and more to the system when they are freed.

    It would come to keep them in its heap, where what is made between them leaves gaps that no
    batch fits in: compiled, a million frames of Humanoid then take gigabytes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is not None:
        mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD, which is then no longer raised by itself


def open_run(config: EffectiveConfig) -> tuple[EffectiveConfig, EnvBase, RunDirectory]:
    """Everything that can fail before training: environment and run directory."""
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
    # Last, as it may try the compiler.
    choice, resumed = config.compile, config.resume is not None
    if resumed:
        choice = "on" if config.compiled else "off"
    compiled = should_compile(choice, total_frames=config.total_frames, device=config.device)
    config = replace(config, compiled=compiled)
    run = RunDirectory(
        config.run_dir, overwrite=config.overwrite, resume=resumed, tensorboard=config.tensorboard
    )
    if not resumed:
        run.write_config(asdict(config))
    return config, env, run


def restore(
    checkpoints: Checkpoints, run: RunDirectory, log: TrainingLog, collection: CollectionState
) -> Sequence[str]:
    """Goes on from the newest sound checkpoint; returns why that is not exact, if it is not."""
    restored = checkpoints.restore()
    if restored is None:
        raise CheckpointError(
            f"there is no checkpoint in {checkpoints.directory}: start the run again, with "
            "--overwrite"
        )
    if restored.details["config_sha256"] != run.config_sha256():
        raise CheckpointError(
            f"{run.path}/config.json is not what it was when {restored.path} was saved: restore it"
        )
    if not collection.continues:
        log.recorder.drop_unfinished()
    reasons = [*restored.details["reasons"], *restored.differences]
    for reason in reasons:
        logger.warning("resumed approximately: %s", reason)
    return reasons


def describe_exactness(
    config: EffectiveConfig, collection: CollectionState, earlier: Sequence[str]
) -> dict[str, Any]:
    """Whether the run is, or can be resumed as, the one never interrupted; and if not, why."""
    reasons = dict.fromkeys([*earlier, *collection.inexact])
    if torch.device(config.device).type != "cpu":
        reasons[f"device {config.device}: sums are not made in the same order every time"] = None
    return {"exactness": "approximate" if reasons else "exact", "reasons": list(reasons)}


def train(config: Config) -> dict[str, Any]:
    """Trains, leaves the run directory, and returns what its summary.json says."""
    return learn(*open_run(resolve(config)))


def learn(config: EffectiveConfig, env: EnvBase, run: RunDirectory) -> dict[str, Any]:
    """Collects, judges, updates; logs every iteration."""
    actor, critic, normalizer, arguments = build_networks(config, env)
    replay = build_replay(config, actor)
    loss = AmberPPOLoss(
        actor,
        critic,
        clip_epsilon=config.clip_epsilon,
        critic_coeff=config.critic_coeff,
        entropy_coeff=config.entropy_coeff,
        normalize_advantage=config.normalize_advantage == "minibatch",
        functional=False,
    )
    on_cuda = torch.device(config.device).type == "cuda"
    optimizer = torch.optim.Adam(
        loss.parameters(),
        lr=config.learning_rate,
        eps=1e-5,
        capturable=on_cuda and config.compiled,  # a CUDA graph counts its steps on the device
    )
    update = UpdateStep(
        loss, optimizer, max_grad_norm=config.max_grad_norm, compile=config.compiled
    )
    advantage = GAE(
        gamma=config.gamma,
        lmbda=config.gae_lambda,
        value_network=critic,
        average_gae=config.normalize_advantage == "batch",
        vectorized=config.compiled,  # faster and, as the compiled update, equal up to rounding
    )
    judge = replay.staleness if config.setup == "amber" else None
    schedule = LinearSchedule(config.total_frames, optimizer=optimizer, loss=loss, staleness=judge)
    size = config.frames_per_batch
    total = -(-config.total_frames // size) * size  # the last batch is whole
    collector = build_collector(config, env, actor, total)
    log = TrainingLog(run, total, size, config.num_batches, progress=config.progress)
    collection = CollectionState(collector, env)
    policy = PolicyRecord(config.env_id, arguments, actor)
    checkpoints = Checkpoints(
        run.checkpoints,
        {
            "loss": loss,
            "optimizer": optimizer,
            "schedule": schedule,
            "replay": replay,
            "collection": collection,
            "log": log,
            "policy": policy,
            "generators": GlobalRNGState(),
        },
    )
    with log, StopOnInterrupt() as stop, ExitStack() as stack:
        earlier: Sequence[str] = []
        if config.resume is not None:
            earlier = restore(checkpoints, run, log, collection)
            tqdm.write(f"resumed after {log.recorder.frames} of {total} frames", file=sys.stdout)
        exactness = partial(describe_exactness, config, collection, earlier)
        summary: dict[str, Any] = {}

        def finish(error_type: type[BaseException] | None, *_: object) -> None:
            interrupted = log.recorder.frames < total
            summary.update(
                log.summary(),
                interrupted=interrupted,
                stopped_by=stop.signal.name if stop.signal and interrupted else None,
                **exactness(),
            )
            try:
                collector.shutdown()
                run.save_policy(policy.state_dict())
                run.write_summary(summary)
            except OSError as error:
                if error_type is None:
                    raise
                logger.error("policy.pt and summary.json could not be written: %s", error)

        stack.push(finish)  # an error, too, leaves what there is
        if config.compiled:
            tqdm.write("compiling in the first iteration; a stop takes effect after it", sys.stdout)
        log.lap("checkpoint")
        for batch in collector:
            log.lap("collect")
            values = schedule.step(log.recorder.frames)
            normalizer.update(batch["observation"])
            replay.extend(advantage(for_learning(batch, config)))
            log.lap("prepare")
            ledger = replay.refresh()
            log.lap("refresh")
            epochs = [update.epoch(replay) for _ in range(config.epochs)]
            if config.collector == "fast":
                collector.update_policy_weights_(actor)  # it may act by a copy
            else:
                collector.update_policy_weights_()
            log.lap("update")
            values["minibatch_size"] = replay.batch_size
            log.iteration(batch, values, torch.cat(epochs), ledger)
            frames = log.recorder.frames
            stops = stop.requested  # read once: a signal from here on is for the next iteration
            due = config.checkpoint_interval and frames // size % config.checkpoint_interval == 0
            if due or stops or frames >= total:
                details = {**exactness(), "config_sha256": run.config_sha256()}
                checkpoints.save(frames, score=log.recorder.mean_return, details=details)
            log.lap("checkpoint")
            if stops:
                break
    return summary


def main() -> int:
    """Command line; returns the exit code."""
    try:
        opened = open_run(resolve(command_line(__doc__)))
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
    stopped_by, frames, run_dir = summary["stopped_by"], summary["frames"], opened[0].run_dir
    if stopped_by:
        sys.stdout.write(f"stopped after {frames} frames; go on with --resume {run_dir}\n")
        return 128 + signal.Signals[stopped_by]
    score = f"final score {summary['final_score']:.4g}"
    if not summary["episodes"]:
        score = "no final score, as no episode has ended,"
    sys.stdout.write(f"{score} after {frames} frames: {run_dir}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
