"""AMBER's special cases on real environments: no drift, no staleness; no limit, MBER; limit 0, PPO."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.functional import average_importance_ratio
from amber_trl.objectives import AmberPPOLoss, GePPOLoss
from amber_trl.training import UpdateStep
from amber_trl.transforms import ISStalenessFilter, Reason
from tests.contracts.problem import EPOCHS, FRAMES, MINIBATCH, Parts, differing, make_parts

ITERATIONS = 4
CONTINUOUS = ["Pendulum-v1", "InvertedPendulum-v5"]


def train(
    parts: Parts,
    num_batches: int,
    *,
    learning_rate: float = 1e-3,
    frozen: bool = False,
    make_loss: Callable[..., AmberPPOLoss] = AmberPPOLoss,
    **filter_arguments: Any,
) -> Iterator[tuple[MultiBatchReplayBuffer, TensorDict | None]]:
    """AMBER's loop; yields after each ``refresh``, before the updates."""
    staleness = ISStalenessFilter(parts.actor, **filter_arguments) if filter_arguments else None
    replay = MultiBatchReplayBuffer(num_batches, FRAMES, MINIBATCH, staleness=staleness)
    loss = make_loss(parts.actor, parts.critic)
    update = UpdateStep(loss, torch.optim.Adam(loss.parameters(), lr=learning_rate))
    advantage, collector = parts.advantage(), parts.collect(ITERATIONS)
    for number, batch in enumerate(collector):
        if not frozen:
            parts.take_in(batch)
        replay.extend(advantage(batch))
        yield replay, replay.refresh() if staleness is not None else None
        for _ in range(EPOCHS):
            for minibatch in replay:
                update(minibatch)
        collector.update_policy_weights_()
        assert len(replay) == FRAMES * min(number + 1, num_batches)
    collector.shutdown()


def trained(env_id: str, num_batches: int, **filter_arguments: Any) -> dict[str, Tensor]:
    parts = make_parts(env_id)
    for _ in train(parts, num_batches, **filter_arguments):
        pass
    return parts.weights()


@pytest.mark.parametrize("env_id", [*CONTINUOUS, "CartPole-v1"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_policy_that_learns_nothing_is_never_stale(
    env_id: str, dtype: torch.dtype, tolerance: float
) -> None:
    parts = make_parts(env_id, normalizer_dtype=dtype)
    parts.take_in(parts.env.rollout(20))
    before = parts.weights()
    iterations = 0
    for _, ledger in train(parts, 3, learning_rate=0, frozen=True, drop_factor=tolerance):
        assert ledger is not None
        stored = min(iterations + 1, 3)
        assert ledger["age"].tolist() == list(range(stored))
        ratio = ledger["importance_ratio"]
        assert ratio.dtype == dtype
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=tolerance)
        assert (ledger["reason"] == Reason.FRESH).all()
        iterations += 1
    assert iterations == ITERATIONS
    assert not differing(parts.weights(), before)


def test_a_policy_that_learns_grows_stale_with_age() -> None:
    """The comparison above is sensitive, even if only the statistics move."""
    for learning_rate, frozen in ((1e-2, True), (0.0, False)):
        parts = make_parts("Pendulum-v1")
        for _, ledger in train(
            parts, 3, learning_rate=learning_rate, frozen=frozen, report_only=True
        ):
            assert ledger is not None
            drifted = ledger["importance_ratio"][int(frozen) :]
            assert (drifted > 1 + 1e-5).all()


def test_the_newest_batch_s_ratio_is_the_drift_of_the_statistics_alone() -> None:
    """Before the first update: 1 with frozen statistics, however much the policy learns.

    At learning rate 0 with moving statistics, it is their effect alone: the ratio of the actor with the
    new statistics to the same actor with the old ones.
    """
    parts = make_parts("Pendulum-v1")
    parts.take_in(parts.env.rollout(20))
    for _, ledger in train(parts, 3, learning_rate=1e-2, frozen=True, report_only=True):
        assert ledger is not None
        assert ledger["importance_ratio"][0].item() == pytest.approx(1, abs=1e-6)
    parts = make_parts("Pendulum-v1")
    for layer in parts.actor.modules():  # an initial policy that depends on its observation
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=0.5)
    old = copy.deepcopy(parts.actor)
    for replay, ledger in train(parts, 3, learning_rate=0.0, report_only=True):
        assert ledger is not None
        newest = replay.storage[:].reshape(-1, FRAMES)[replay.age == 0].squeeze(0)
        with torch.no_grad():
            now, before = (
                actor.get_dist(newest.select("observation")).log_prob(newest["action"])
                for actor in (parts.actor, old)
            )
        drift = average_importance_ratio(now - before)
        assert drift > 1.001
        torch.testing.assert_close(ledger["importance_ratio"][0], drift)
        old = copy.deepcopy(parts.actor)


@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_without_a_limit_it_is_mber(env_id: str) -> None:
    mber = trained(env_id, 3)
    assert not differing(trained(env_id, 3, report_only=True, drop_factor=0.0), mber)
    assert not differing(trained(env_id, 3, drop_factor=math.inf), mber)
    assert differing(trained(env_id, 3, drop_factor=1e-3), mber)


@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_with_a_limit_of_zero_it_is_ppo(env_id: str) -> None:
    assert not differing(trained(env_id, 3, drop_factor=0.0), trained(env_id, 1))


@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_geppo_with_one_batch_is_ppo(env_id: str) -> None:
    """Up to the rounding of its centre, 1, which ``refresh`` measures on tensors of another shape."""
    options: dict[str, Any] = {"frozen": True, "proximal_log_prob_key": "proximal_log_prob"}
    weights = []
    for loss_type in (AmberPPOLoss, GePPOLoss):
        parts = make_parts(env_id, normalizer_dtype=torch.float64)
        parts.take_in(parts.env.rollout(20))
        for _ in train(parts, 1, make_loss=partial(loss_type, clip_epsilon=0.01), **options):
            pass
        weights.append(parts.weights())
    torch.testing.assert_close(*weights, rtol=1e-8, atol=1e-10)


def test_refresh_touches_nothing() -> None:
    parts = make_parts("InvertedPendulum-v5")
    parts.critic.eval()
    for replay, ledger in train(parts, 3, drop_factor=0.25):
        assert ledger is not None
        stored, age, generator = replay[:].clone(), replay.age.clone(), replay._rng.get_state()
        before = parts.weights(), torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002  # fmt: skip
        again = replay.refresh()
        assert (again == ledger).all()
        assert not differing(parts.weights(), before[0])
        assert torch.equal(torch.get_rng_state(), before[1])
        assert torch.equal(replay._rng.get_state(), generator)
        assert random.getstate() == before[2]
        assert str(np.random.get_state()) == before[3]  # noqa: NPY002
        assert (replay[:] == stored).all()
        assert torch.equal(replay.age, age)
        assert all(module.training for module in parts.actor.module[0].module.network.layers)
        assert not parts.critic.training
