"""Training programs, each as its users would write it.

All train the paper's networks on equally many frames. Stable-Baselines3 and the stock composition do
less work than this library's recipe: they do not standardise observations or log every iteration.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import ppo_amber_mujoco as ppo
import torch
from ppo_amber_config import Config, EffectiveConfig, resolve
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.runs import RunDirectory
from throughput import hand_written
from throughput.rounds import Clock, Program, Report, Workload

_ENDLESS = 10**9
"""More frames than are ever collected."""
_ITERATIONS = 1000
"""Iterations of the recipe's run: enough that little is annealed while the first are measured."""


def recipe_config(work: Workload, **options: Any) -> EffectiveConfig:
    """The main recipe's configuration for this workload."""
    same = ("env_id", "frames_per_batch", "epochs", "minibatch_size", "device")
    shared = {name: getattr(work, name) for name in same} | {"progress": False}
    shared |= {"total_frames": _ITERATIONS * work.frames_per_batch}
    shared |= {"compile": "on" if work.compile else "off"}
    return resolve(Config(**shared | options))


class _ReportingDirectory(RunDirectory):
    """A run directory that reports each iteration's times, then waits for the next."""

    def __init__(self, path: Path, report: Report) -> None:
        super().__init__(path)
        self._report = report
        self.refresh_seconds = 0.0

    def append(self, table: Any, *rows: Mapping[str, Any]) -> None:
        super().append(table, *rows)
        for row in rows if table == "timing" else ():
            collected, refreshed = row["collect_seconds"], self.refresh_seconds
            learned = row["update_seconds"]  # everything but collection
            self.refresh_seconds = 0.0
            self._report(collect=collected, update=learned - refreshed, refresh=refreshed)


def this_recipe(work: Workload, report: Report, **options: Any) -> None:
    """The unchanged main recipe, including its log."""
    with tempfile.TemporaryDirectory() as folder:
        config = recipe_config(work, run_dir=Path(folder, "opened"), **options)
        config, env, opened = ppo.open_run(config)
        opened.close()
        directory = _ReportingDirectory(Path(folder, "reporting"), report)
        refresh = MultiBatchReplayBuffer.refresh

        def timed(replay: MultiBatchReplayBuffer) -> TensorDictBase:
            clock = Clock()
            ledger = refresh(replay)
            directory.refresh_seconds += clock.lap()
            return ledger

        MultiBatchReplayBuffer.refresh = timed  # type: ignore[assignment, method-assign]  # in this process
        ppo.learn(config, env, directory)


def recipe(setup: str, num_envs: int, **options: Any) -> tuple[Program, int]:
    """The main recipe, and the number of iterations that fill its batches and warm it up.

    All batches of ``amber`` are in use unless the options set a drop factor.
    """
    if setup == "amber":
        options = {"num_batches": 8, "drop_factor": math.inf} | options
    program = partial(this_recipe, setup=setup, num_envs=num_envs, **options)
    return program, options.get("num_batches", 1) + 2


def stock_torchrl(work: Workload, report: Report) -> None:
    """TorchRL's own components, composed as in its tutorial, with advantages computed once."""
    env = GymEnv(work.env_id)
    size, action_size = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    actor, critic = gaussian_actor(size, action_size), value_critic(size)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.frames_per_batch),
        sampler=SamplerWithoutReplacement(),
        batch_size=work.minibatch_size,
    )
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=hand_written.CLIP_EPSILON,
        entropy_bonus=False,
        loss_critic_type="l2",
    )
    rate, eps = hand_written.LEARNING_RATE, hand_written.ADAM_EPS
    adam = torch.optim.Adam(loss.parameters(), lr=rate, eps=eps)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    collector = Collector(env, actor, frames_per_batch=work.frames_per_batch, total_frames=_ENDLESS)
    clock = Clock()
    for batch in collector:
        collected = clock.lap()
        replay.extend(advantage(batch))
        for _ in range(work.epochs):
            for minibatch in replay:
                emitted = loss(minibatch)
                (emitted["loss_objective"] + emitted["loss_critic"]).backward()
                adam.step()
                adam.zero_grad()
        collector.update_policy_weights_()
        report(collect=collected, update=clock.lap())
        clock.lap()


def stable_baselines3(work: Workload, report: Report, *, num_envs: int) -> None:
    """Stable-Baselines3's PPO, whose gradient clipping (norm 0.5) cannot be turned off."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Reporting(BaseCallback):
        def _init_callback(self) -> None:
            self.clock, self.collected = Clock(), 0.0

        def _on_rollout_start(self) -> None:
            if self.collected:
                report(collect=self.collected, update=self.clock.lap())
            self.clock.lap()

        def _on_rollout_end(self) -> None:
            self.collected = self.clock.lap()

        def _on_step(self) -> bool:
            return True

    layers = [64, 64]
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make(work.env_id)] * num_envs),
        n_steps=work.frames_per_batch // num_envs,
        batch_size=work.minibatch_size,
        n_epochs=work.epochs,
        clip_range=hand_written.CLIP_EPSILON,
        normalize_advantage=False,
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=_ENDLESS, callback=Reporting())
