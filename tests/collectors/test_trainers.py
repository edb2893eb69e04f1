"""GymCollector in TorchRL's trainers: they learn the same as from TorchRL's collector."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrl.collectors import BaseCollector, Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.objectives.value import GAE
from torchrl.trainers import ReplayBufferTrainer, Trainer
from torchrl.trainers.algorithms import PPOTrainer

from amber_trl.collectors import GymCollector
from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.envs import make_env
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.transforms import ISStalenessFilter

FRAMES, BATCHES, EPOCHS = 64, 5, 2

pytestmark = pytest.mark.filterwarnings(
    "ignore:PPOTrainer is an experimental:UserWarning",
    "ignore:.*will be replaced by OptimizationStepper:FutureWarning",
)


def parts(make_collector: Callable[..., BaseCollector]) -> tuple[Any, Any, dict[str, Any]]:
    """Actor, critic, and a trainer's arguments."""
    torch.manual_seed(0)
    actor = gaussian_actor(observation_size=3, action_size=1)
    critic = value_critic(observation_size=3)
    loss = AmberPPOLoss(actor, critic)
    env = make_env("Pendulum-v1", num_envs=2, seed=0)
    options = {"auto_register_policy_transforms": False} if make_collector is Collector else {}
    collector = make_collector(
        env, actor, frames_per_batch=FRAMES, total_frames=FRAMES * BATCHES, **options
    )
    arguments = {
        "collector": collector,
        "total_frames": FRAMES * BATCHES,
        "frame_skip": 1,
        "optim_steps_per_batch": None,
        "num_epochs": EPOCHS,
        "loss_module": loss,
        "optimizer": torch.optim.Adam(loss.parameters(), lr=3e-4),
        "progress_bar": False,
        "auto_log_optim_steps": False,
    }
    return actor, critic, arguments


def with_reuse(kind: type[Trainer], make_collector: Callable[..., BaseCollector]) -> Any:
    actor, critic, arguments = parts(make_collector)
    if kind is PPOTrainer:
        arguments |= {"add_gae": False, "enable_logging": False}
    replay = MultiBatchReplayBuffer(
        num_batches=3,
        frames_per_batch=FRAMES,
        minibatch_size=32,
        staleness=ISStalenessFilter(actor, drop_factor=0.25),
    )
    trainer = kind(**arguments)
    trainer.register_op("batch_process", GAE(gamma=0.99, lmbda=0.95, value_network=critic))
    ReplayBufferTrainer(replay, iterate=True).register(trainer)
    ledgers: list[Any] = []
    trainer.register_op("pre_optim_steps", lambda: ledgers.append(replay.refresh()))
    trainer.train()
    assert [len(ledger) for ledger in ledgers] == [1, 2, 3, 3, 3]
    assert trainer._optim_count == BATCHES * EPOCHS * (FRAMES // 32 + 1)  # the end counts as one
    return actor.state_dict()


@pytest.mark.parametrize("kind", [Trainer, PPOTrainer])
def test_trainers_reuse_batches(kind: type[Trainer]) -> None:
    found, expected = with_reuse(kind, GymCollector), with_reuse(kind, Collector)
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_ppo_trainer_as_torchrl_wires_it() -> None:
    initial = parts(GymCollector)[0].state_dict()
    actor, _, arguments = parts(GymCollector)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES), sampler=SamplerWithoutReplacement(), batch_size=32
    )
    PPOTrainer(**arguments, replay_buffer=replay, enable_logging=False, seed=3).train()
    found = actor.state_dict()
    assert not all(torch.equal(value, initial[name]) for name, value in found.items())
    assert all(value.isfinite().all() for value in found.values())
