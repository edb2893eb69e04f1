"""With one batch this library is plain PPO: bit for bit the loop made of stock TorchRL parts.

Actor, critic (with their normaliser) and environment factory are shared. The library trains first and
the rows of its minibatches are recorded; the stock loop draws the same rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import ppo_amber_builders as builders
import ppo_amber_mujoco as recipe
import pytest
import torch
from ppo_amber_config import Config
from torch import Tensor
from torchrl.data import LazyTensorStorage, Storage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.envs import EnvBase
from torchrl.objectives import ClipPPOLoss

from amber_trl.data import ActiveBatches, AdaptiveMinibatchSampler, MultiBatchReplayBuffer
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import LinearSchedule, UpdateStep
from amber_trl.transforms import ISStalenessFilter
from tests.contracts.problem import ENVS, EPOCHS, FRAMES, MINIBATCH, Parts, differing, make_parts

ITERATIONS = 3
EPISODE = 20  # steps to the time limit, so that every batch has some
RATE, CLIP = 3e-4, 0.3
TOTAL = FRAMES * ITERATIONS


class Recorded(RandomSampler):
    """A stock sampler, except for its rows, which were recorded."""

    def __init__(self, rows: Iterator[Tensor]) -> None:
        super().__init__()
        self.rows = rows

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        return next(self.rows), {}


def train_stock(parts: Parts, rows: list[Tensor]) -> dict[str, Tensor]:
    """PPO as in TorchRL's documentation."""
    loss = ClipPPOLoss(
        parts.actor,
        parts.critic,
        clip_epsilon=CLIP,
        entropy_bonus=False,
        critic_coeff=1.0,
        loss_critic_type="l2",
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=RATE, eps=1e-5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES), sampler=Recorded(iter(rows)), batch_size=MINIBATCH
    )
    advantage, frames = parts.advantage(), 0
    collector = parts.collect(ITERATIONS)
    for batch in collector:
        left = 1 - frames / TOTAL
        for group in optimizer.param_groups:
            group["lr"] = RATE * left
        loss.clip_epsilon.copy_(CLIP * left)
        buffer.extend(advantage(parts.take_in(batch)).reshape(-1))
        for _ in range(EPOCHS * FRAMES // MINIBATCH):
            losses = loss(buffer.sample())
            (losses["loss_objective"] + losses["loss_critic"]).backward()
            optimizer.step()
            optimizer.zero_grad()
        collector.update_policy_weights_()
        frames += batch.numel()
    collector.shutdown()
    assert not list(buffer.sampler.rows)  # every recorded minibatch is used
    return parts.weights()


def train_with_library(
    parts: Parts, **filter_arguments: Any
) -> tuple[dict[str, Tensor], list[Tensor]]:
    staleness = ISStalenessFilter(parts.actor, **filter_arguments) if filter_arguments else None
    replay = MultiBatchReplayBuffer(1, FRAMES, MINIBATCH, staleness=staleness)
    loss = AmberPPOLoss(parts.actor, parts.critic, clip_epsilon=CLIP)
    optimizer = torch.optim.Adam(loss.parameters(), lr=RATE, eps=1e-5)
    update = UpdateStep(loss, optimizer)
    schedule = LinearSchedule(TOTAL, optimizer=optimizer, loss=loss, staleness=staleness)
    advantage, frames, rows = parts.advantage(), 0, []
    collector = parts.collect(ITERATIONS)
    for batch in collector:
        schedule.step(frames)
        replay.extend(advantage(parts.take_in(batch)))
        if staleness is not None:
            assert replay.refresh()["active"].all()
        for _ in range(EPOCHS):
            for minibatch in replay:
                rows.append(minibatch["index"].clone())
                update(minibatch)
        collector.update_policy_weights_()
        frames += batch.numel()
    collector.shutdown()
    return parts.weights(), rows


@pytest.mark.parametrize(
    ("env_id", "normalizer_dtype", "filter_arguments"),
    [
        ("Pendulum-v1", None, {}),
        ("CartPole-v1", torch.float32, {"drop_factor": 0.25}),
        ("HalfCheetah-v5", torch.float32, {"report_only": True}),
    ],
)
def test_one_batch_is_stock_ppo(
    env_id: str, normalizer_dtype: torch.dtype | None, filter_arguments: dict[str, Any]
) -> None:
    parts, twin = (
        make_parts(env_id, normalizer_dtype=normalizer_dtype, max_episode_steps=EPISODE)
        for _ in range(2)
    )
    untrained = parts.weights()
    ours, rows = train_with_library(parts, **filter_arguments)
    theirs = train_stock(twin, rows)
    assert not differing(ours, theirs)
    assert len(rows) == ITERATIONS * EPOCHS * FRAMES // MINIBATCH
    assert all(not torch.equal(ours[key], untrained[key]) for key in ours if "weight" in key)


def test_another_order_of_the_same_rows_is_another_policy() -> None:
    """The comparison is sensitive."""
    ours, rows = train_with_library(make_parts("Pendulum-v1"))
    rows[0], rows[1] = rows[1], rows[0]
    theirs = train_stock(make_parts("Pendulum-v1"), rows)
    assert differing(ours, theirs)


@pytest.mark.parametrize("collector", ["fast", "torchrl"])
def test_the_recipe_s_ppo_is_stock_ppo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: Literal["fast", "torchrl"]
) -> None:
    rows: list[Tensor] = []
    made: list[Parts] = []
    build_networks, build_replay = builders.build_networks, builders.build_replay

    class Recording(AdaptiveMinibatchSampler):
        def draw_epoch(
            self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
        ) -> Tensor:
            epoch = super().draw_epoch(batches, batch_size, generator)
            rows.extend(epoch.clone())
            return epoch

    def build_and_keep(config: Any, env: EnvBase) -> Any:
        built = build_networks(config, env)
        made.append(Parts(env, *built[:3]))
        return built

    def build_and_seed(*arguments: Any) -> Any:
        replay = build_replay(*arguments)
        torch.manual_seed(1)  # as the stock loop does before it collects
        return replay

    monkeypatch.setattr(builders, "AdaptiveMinibatchSampler", Recording)
    monkeypatch.setattr(recipe, "build_networks", build_and_keep)
    monkeypatch.setattr(recipe, "build_replay", build_and_seed)
    recipe.train(
        Config(
            env_id="Pendulum-v1",
            setup="ppo",
            collector=collector,
            compile="off",
            num_envs=ENVS,
            total_frames=TOTAL,
            frames_per_batch=FRAMES,
            minibatch_size=MINIBATCH,
            epochs=EPOCHS,
            run_dir=tmp_path / "run",
            progress=False,
        )
    )
    theirs = train_stock(make_parts("Pendulum-v1"), rows)
    assert not differing(made[0].weights(), theirs)
