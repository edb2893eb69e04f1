"""Reuse past batches in A2C, whose loss has no importance ratio.

    python recipes/a2c_staleness_mujoco.py --run-dir runs/replay                  # up to four batches
    python recipes/a2c_staleness_mujoco.py --num-batches 1 --run-dir runs/plain   # plain A2C
    python recipes/a2c_staleness_mujoco.py --resume runs/replay                   # if it was stopped

Buffer, filter and sampler are the same as for PPO-AMBER; the loss is TorchRL's. A2C does not weight
frames by their importance ratio, so an old frame biases the gradient by as much as the actor has moved
since. The filter bounds that bias, it does not remove it: hence a small drop factor, one pass per
iteration, and plain A2C as the reference. After 300 000 frames (minutes) of InvertedPendulum-v5 with
seed 0, the last-100 return is 977, and 1000 for the reference: replay gains nothing on this task.
"""

from __future__ import annotations

import sys

from amber_trl._terminal import begin

if __name__ == "__main__":
    begin()  # before the imports that take seconds

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from command_line import (
    check_staleness,
    initialize,
    metric_of,
    open_directory,
    run_recipe,
    seed_everything,
)
from ranges import Range
from run_options import RunOptions, check_options, default_run_dir
from tensordict.nn import TensorDictModuleBase
from torchrl.data import Categorical
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE

from amber_trl.collectors import GymCollector
from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.envs import make_env
from amber_trl.evaluation import play
from amber_trl.modules import ObservationNormalizer, RewardScaler, gaussian_actor, value_critic
from amber_trl.runs import Policy, RunDirectory, TrainingRun
from amber_trl.training import LinearSchedule, UpdateStep
from amber_trl.transforms import ISStalenessFilter


@dataclass(frozen=True, kw_only=True)
class Config(RunOptions):
    """Training options. Where the default is None, the parentheses say what applies."""

    env_id: str = "InvertedPendulum-v5"
    """Gymnasium id of an environment with Box observations and actions; 8 copies run together."""
    total_frames: Annotated[int | None, Range(1)] = None
    """Frames to train for; schedules anneal towards this number (300 000; smoke: 2560)."""
    frames_per_batch: Annotated[int | None, Range(1)] = None
    """Frames per iteration over all environments (2048; smoke: 256)."""
    num_batches: Annotated[int, Range(1)] = 4
    """Batches kept, including the newest; 1 is plain A2C."""
    drop_factor: Annotated[float, Range(0, infinite=True)] = 0.05
    """Staleness above which a batch is not used."""
    staleness_metric: str = "mean_abs_deviation"
    """Staleness metric: the default is R' - 1; other names, and module:function, are as in the main recipe."""
    minibatch_size: Annotated[int, Range(1)] = 64
    """Minibatch frames per batch in use."""
    learning_rate: Annotated[float, Range(0, above=True)] = 3e-4
    """Adam's step size."""
    reward_scaling: bool = False
    """Divide rewards by the running standard deviation of their discounted sum, for tasks whose returns
    are far from 1; logged returns are not divided."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "tanh"
    """Activation of the hidden layers."""
    eval_interval: Annotated[int | None, Range(1)] = None
    """Iterations between evaluations of 10 episodes with the mean action (None: never)."""


def open_run(config: Config) -> tuple[Any, ...]:
    """Does everything that can fail before training; returns the arguments of learn."""
    check_options(config)
    size = config.frames_per_batch or (256 if config.smoke else 2048)
    total = config.total_frames or (2560 if config.smoke else 300_000)
    total = -(-total // size) * size  # the last batch is whole
    torch.set_num_threads(1)
    seed_everything(config.seed)
    env = make_env(
        config.env_id, 8, seed=config.seed, wrappers=config.wrappers, **config.env_kwargs
    )
    if isinstance(env.action_spec, Categorical):
        raise TypeError(
            f"env_id={config.env_id!r} has discrete actions: choose a task with Box actions"
        )
    run_dir = config.run_dir or default_run_dir(config, "a2c")
    config = replace(config, total_frames=total, frames_per_batch=size, run_dir=run_dir)
    observations, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    arguments: dict[str, Any] = {"observation_size": observations, "action_size": actions}
    if config.activation != "tanh":  # policy.pt does not store the default
        arguments["activation"] = config.activation
    normalizer = ObservationNormalizer(observations)
    actor = gaussian_actor(**arguments, normalizer=normalizer)
    critic = value_critic(observations, normalizer=normalizer, activation=config.activation)
    metric = metric_of(config.staleness_metric)
    staleness = ISStalenessFilter(actor, config.drop_factor, metric=metric)
    keys = [*staleness.in_keys, "advantage", "value_target"]
    replay = MultiBatchReplayBuffer(
        config.num_batches, size, config.minibatch_size, staleness=staleness, keys=keys
    )
    loss = A2CLoss(actor, critic, entropy_bonus=False, critic_coeff=1.0, loss_critic_type="l2")
    scaler = RewardScaler(8, gamma=0.99) if config.reward_scaling else None
    policy = Policy(config.env_id, arguments, actor, config.env_kwargs, config.wrappers)
    parts = {"loss": loss, "replay": replay, "policy": policy}
    if scaler is not None:
        parts["reward_scaler"] = scaler
    check_staleness(replay, env)
    initialize(config, parts)
    collector = GymCollector(env, actor, frames_per_batch=size, total_frames=total)
    directory = open_directory(config, {"setup": "a2c"}, logger=config.logger)
    return config, collector, directory, critic, normalizer, parts


def train(config: Config) -> dict[str, Any]:
    """Trains, writes the run directory, and returns the contents of its summary.json."""
    return learn(*open_run(config))


def learn(
    config: Config,
    collector: GymCollector,
    directory: RunDirectory,
    critic: TensorDictModuleBase,
    normalizer: ObservationNormalizer,
    parts: dict[str, Any],
) -> dict[str, Any]:
    """Builds the parts and runs the loop."""
    assert config.total_frames is not None  # set by open_run
    loss, replay, policy = parts["loss"], parts["replay"], parts["policy"]
    scaler = parts.get("reward_scaler")
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=config.learning_rate, eps=1e-5)
    update = UpdateStep(loss, optimizer)
    schedule = LinearSchedule(
        config.total_frames,
        optimizer=optimizer,
        staleness=replay.staleness,
        extends=directory.resumed,
    )
    parts |= {"optimizer": optimizer, "schedule": schedule}
    with TrainingRun(
        directory,
        collector,
        parts,
        num_batches=config.num_batches,
        checkpoint_interval=config.checkpoint_interval,
        eval_interval=config.eval_interval,
        evaluate=lambda: play(policy, 10, seed=2**31 + config.seed).mean,
        progress=config.progress,
    ) as run:
        for batch in run.batches():
            annealed = schedule.step(run.frames)
            normalizer.update(batch["observation"])
            learnt = batch.copy()
            if scaler is not None:
                scaler.update(batch["next", "reward"], batch["next", "done"])
                learnt["next", "reward"] = scaler(batch["next", "reward"])
            replay.extend(advantage(learnt))
            ledger = replay.refresh()
            metrics = update.epoch(replay)
            run.record(batch, annealed, metrics, ledger)
    return run.summary


def main() -> int:
    """Runs the command line; returns the exit code."""
    return run_recipe(Config, __doc__, open_run, learn)


if __name__ == "__main__":
    sys.exit(main())
