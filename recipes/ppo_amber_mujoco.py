"""Train PPO, PPO-MBER or PPO-AMBER on a Gymnasium environment.

    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --setup amber
    python recipes/ppo_amber_mujoco.py --env-id HalfCheetah-v5 --setup ppo --seed 3
    python recipes/ppo_amber_mujoco.py --env-id Pendulum-v1 --protocol paper --run-dir runs/as-in-the-paper
    python recipes/ppo_amber_mujoco.py --env-id Hopper-v5 --checkpoint-interval 20 --run-dir runs/hopper
    python recipes/ppo_amber_mujoco.py --resume runs/hopper

With the installed package, use `amber-trl train` instead of `python recipes/ppo_amber_mujoco.py`.

`ppo` learns from the newest batch, `mber` from the last two, `amber` from those of the last eight that
are still close to the current policy (Han & Sung, arXiv 1710.04423). Expect a last-100 return near
-150 on Pendulum-v1 after a million frames of `amber`. The run directory then holds config.json,
versions.json, episodes.csv, iterations.csv, timing.csv, policy.pt, summary.json and checkpoints.
Ctrl-C, SIGTERM or SIGHUP finishes the iteration, saves a checkpoint to resume from, and exits with
code 130, 143 or 129.
"""

from __future__ import annotations

import sys

from amber_trl._terminal import begin, say

if __name__ == "__main__":
    begin()  # before the imports that take seconds

import ctypes
from dataclasses import replace
from typing import Any

import torch
from command_line import initialize, open_directory, run_recipe, seed_everything
from ppo_amber_builders import (
    adapt,
    build_advantage,
    build_collector,
    build_env,
    build_loss,
    build_networks,
    build_optimizer,
    build_replay,
    build_scaler,
    build_schedule,
    check_parts,
)
from ppo_amber_config import Config, EffectiveConfig, resolve
from tensordict import TensorDict
from torchrl.envs import EnvBase

from amber_trl.evaluation import play
from amber_trl.runs import Policy, RunDirectory, TrainingRun
from amber_trl.training import UpdateStep, should_compile


def return_large_blocks() -> None:
    """Makes glibc return freed blocks of a megabyte or more to the system.

    It would otherwise keep them in its heap, where fragmentation leaves no gap that fits a batch: a
    compiled run of a million frames of Humanoid then takes gigabytes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(-3, 1 << 20)  # a fixed M_MMAP_THRESHOLD


def open_run(config: EffectiveConfig) -> tuple[EffectiveConfig, EnvBase, RunDirectory]:
    """Everything that can fail before training: environment, compiler and run directory."""
    return_large_blocks()
    torch.set_num_threads(config.num_threads)
    seed_everything(config.seed)
    env = build_env(config)
    check_parts(config, env)
    new = config.resume is None and config.extend is None
    choice = config.compile if new else "on" if config.compiled else "off"
    compiled = should_compile(choice, total_frames=config.total_frames, device=config.device)
    config = replace(config, compiled=compiled)
    directory = open_directory(config, logger=config.logger)
    if compiled:
        say("compiling during the first iteration; a stop takes effect after it")
    return config, env, directory


def train(config: Config) -> dict[str, Any]:
    """Trains, writes the run directory, and returns the contents of its summary.json."""
    return learn(*open_run(resolve(config)))


def learn(config: EffectiveConfig, env: EnvBase, directory: RunDirectory) -> dict[str, Any]:
    """Algorithm 1 of the paper, with its line numbers in the comments."""
    actor, critic, normalizer, arguments = build_networks(config, env)
    replay = build_replay(config, actor, critic)
    loss = build_loss(config, actor, critic)
    optimizer = build_optimizer(config, loss, actor, critic)
    update = UpdateStep(
        loss,
        optimizer,
        max_grad_norm=config.max_grad_norm,
        compile=config.compiled,
        critic_on_all=config.critic_on == "all",
    )
    scaler = build_scaler(config)
    advantage = build_advantage(config, critic, replay.advantages, scaler)
    schedule = build_schedule(config, optimizer, loss, replay, extends=directory.resumed)
    policy = Policy(
        config.env_id, arguments, actor, config.env_kwargs, config.wrappers, config.actor
    )
    parts: dict[str, Any] = {"loss": loss, "optimizer": optimizer, "schedule": schedule}
    parts |= {"replay": replay, "policy": policy}
    if scaler is not None:
        parts["reward_scaler"] = scaler
    initialize(config, parts)
    collector = build_collector(config, env, actor)
    with TrainingRun(
        directory,
        collector,
        parts,
        num_batches=config.num_batches,
        checkpoint_interval=config.checkpoint_interval,
        eval_interval=config.eval_interval,
        evaluate=lambda: play(policy, config.eval_episodes, seed=2**31 + config.seed).mean,
        progress=config.progress,
    ) as run:
        for batch in run.batches():  # line 4: collect
            annealed = schedule.step(run.frames)  # step size, clip range, drop factor
            normalizer.update(batch["observation"])
            replay.extend(advantage(batch))  # lines 5 to 7: advantages, once
            ledger = replay.refresh()  # lines 10 to 12: R' of each batch; in use or not
            metrics = list(update.epochs(replay, config.epochs, config.target_kl))  # 17 to 24
            collector.update_policy_weights_(TensorDict.from_module(actor))
            annealed |= adapt(
                loss, optimizer, replay, metrics, config
            )  # DISC, GePPO; and M (line 19)
            run.record(batch, annealed, metrics, ledger)
    return run.summary


def main() -> int:
    """Command line; returns the exit code."""
    return run_recipe(Config, __doc__, lambda config: open_run(resolve(config)), learn)


if __name__ == "__main__":
    sys.exit(main())
