"""Programs that train, each written as its users would write it.

All train the paper's networks on the same frames. Where one does less work than this library's
recipe (neither Stable-Baselines3 nor the stock composition standardises observations here, or
writes a log of every iteration), it is the faster for it.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import ppo_amber_mujoco as ppo
import torch
from ppo_amber_config import Config, EffectiveConfig, resolve
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.data import (
    Categorical,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from amber_trl.collectors import GymCollector
from amber_trl.envs import make_env
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.runs import RunDirectory
from amber_trl.training import UpdateStep
from throughput.bare import ADAM_EPS, CLIP_EPSILON, LEARNING_RATE, random_problem, time_updates
from throughput.turns import Clock, Turn, Workload

ENDLESS = 10**9
"""Frames to collect: more than ever are."""
ITERATIONS = 1000
"""Of the recipe's run: so many that little is annealed while the first of them are measured."""


def recipe_config(work: Workload, run_dir: Path, **options: Any) -> EffectiveConfig:
    """The main recipe's configuration for this work."""
    same = ("env_id", "frames_per_batch", "epochs", "minibatch_size", "device")
    shared = {name: getattr(work, name) for name in same} | {"compile": "off"}
    total = ITERATIONS * work.frames_per_batch
    shared |= {"total_frames": total, "progress": False, "run_dir": run_dir, **options}
    return resolve(Config(**shared))


def check(work: Workload) -> None:
    """Raises a ValueError, and says why, if this is work that not all programs can do."""
    config = recipe_config(work, Path("unused"), num_envs=8)
    env = make_env(config.env_id, 1, seed=0)
    if isinstance(env.action_spec, Categorical):
        raise ValueError(f"env_id={work.env_id!r} has discrete actions: choose another task")
    env.close()


class _TurnTakingRun(RunDirectory):
    """A run directory that reports each iteration's times, and waits there for the next."""

    def __init__(self, path: Path, turn: Turn) -> None:
        super().__init__(path)
        self._turn = turn

    def append_timing(self, values: Mapping[str, Any]) -> None:
        super().append_timing(values)
        laps = {name: seconds for name, seconds in values.items() if name.endswith("_seconds")}
        self._turn(**{name.removesuffix("_seconds"): seconds for name, seconds in laps.items()})


def this_recipe(work: Workload, turn: Turn, **options: Any) -> None:
    """The main recipe as it is, its log included."""
    with tempfile.TemporaryDirectory() as folder:
        config, env, run = ppo.open_run(recipe_config(work, Path(folder, "opened"), **options))
        run.close()
        ppo.learn(config, env, _TurnTakingRun(Path(folder, "turns"), turn))


def stored_bytes(work: Workload, num_batches: int, **options: Any) -> int:
    """Bytes that the main recipe's buffer takes to store batches."""
    config = recipe_config(work, Path("unused"), num_batches=num_batches, **options)
    env = make_env(config.env_id, config.num_envs, seed=0)
    actor, critic, *_ = ppo.build_networks(config, env)
    replay = ppo.build_replay(config, actor)
    frames = config.frames_per_batch // config.num_envs
    batch = env.rollout(frames, actor, break_when_any_done=False)
    with torch.no_grad():
        replay.extend(GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch))
    env.close()
    stored = replay.storage[:].values(include_nested=True, leaves_only=True)
    return num_batches * sum(tensor.nbytes for tensor in stored)


def collect(work: Workload, turn: Turn, *, collector: Any, num_envs: int) -> None:
    """Collection alone, by the recipe's builders."""
    config = recipe_config(work, Path("unused"), collector=collector, num_envs=num_envs)
    env = ppo.build_env(config)
    actor, *_ = ppo.build_networks(config, env)
    for _ in ppo.build_collector(config, env, actor, ENDLESS):
        turn()


def collect_on_device(work: Workload, turn: Turn, *, num_envs: int) -> None:
    """Collection alone, with the actor on the device, for which every step waits."""
    config = recipe_config(work, Path("unused"), num_envs=num_envs)
    env = ppo.build_env(config)
    actor, *_ = ppo.build_networks(config, env)
    frames = config.frames_per_batch
    for _ in GymCollector(env, actor, frames_per_batch=frames, storing_device=config.device):
        turn()


@dataclass
class _Drawn:
    """Frames whose minibatches are drawn, in place of a buffer."""

    storage: TensorDictBase
    indices: tuple[Tensor, ...]

    @property
    def age(self) -> Tensor:
        """All frames are one batch."""
        return torch.zeros(1, dtype=torch.int64)

    def epoch(self) -> tuple[Tensor, ...]:
        """The rows of each minibatch."""
        return self.indices


def update(work: Workload, turn: Turn, *, compile: bool) -> None:
    """The library's update step on stored frames, by minibatch size."""
    actor, critic, stored = random_problem(work)
    loss = AmberPPOLoss(actor, critic, clip_epsilon=CLIP_EPSILON, functional=False)
    adam = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS)
    step = UpdateStep(loss, adam, compile=compile)

    time_updates(work, turn, lambda indices: step.epoch(_Drawn(stored, indices)))


def stock_torchrl(work: Workload, turn: Turn) -> None:
    """TorchRL's own parts as its tutorial composes them, with advantages computed once."""
    env = GymEnv(work.env_id)
    size, action_size = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    actor, critic = gaussian_actor(size, action_size), value_critic(size)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.frames_per_batch),
        sampler=SamplerWithoutReplacement(),
        batch_size=work.minibatch_size,
    )
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=CLIP_EPSILON, entropy_bonus=False, loss_critic_type="l2"
    )
    adam = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, eps=ADAM_EPS)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    collector = Collector(env, actor, frames_per_batch=work.frames_per_batch, total_frames=ENDLESS)
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
        turn(collect=collected, update=clock.lap())
        clock.lap()


def stable_baselines3(work: Workload, turn: Turn, *, num_envs: int) -> None:
    """Stable-Baselines3's PPO, whose gradient clipping (norm 0.5) cannot be turned off."""
    sb3 = importlib.import_module("stable_baselines3")
    callbacks = importlib.import_module("stable_baselines3.common.callbacks")
    vec_env = importlib.import_module("stable_baselines3.common.vec_env")

    class Turns(callbacks.BaseCallback):  # type: ignore[name-defined]
        def _init_callback(self) -> None:
            self.clock, self.collected = Clock(), 0.0

        def _on_rollout_start(self) -> None:
            if self.collected:
                turn(collect=self.collected, update=self.clock.lap())
            self.clock.lap()

        def _on_rollout_end(self) -> None:
            self.collected = self.clock.lap()

        def _on_step(self) -> bool:
            return True

    layers = [64, 64]
    model = sb3.PPO(
        "MlpPolicy",
        vec_env.DummyVecEnv([lambda: gymnasium.make(work.env_id)] * num_envs),
        n_steps=work.frames_per_batch // num_envs,
        batch_size=work.minibatch_size,
        n_epochs=work.epochs,
        clip_range=CLIP_EPSILON,
        normalize_advantage=False,
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=ENDLESS, callback=Turns())
