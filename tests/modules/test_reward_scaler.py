"""Sums and statistics against hand-worked numbers, Gymnasium's and NumPy; what may change them."""

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeReward
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import RewardScaler


def test_hand_worked() -> None:
    scaler = RewardScaler(2, gamma=0.5)
    reward = torch.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]])
    # The first environment's episode ends with its second frame: sums 1, 2.5, 4.
    # The second's goes on: sums 3, 2.5, 1.25. Their mean is 14.25 / 6 = 2.375.
    done = torch.tensor([[False, True, False], [False, False, False]])
    assert torch.equal(scaler(reward), reward)
    scaler.update(reward, done)
    squares = [(g - 2.375) ** 2 for g in (1, 2.5, 4, 3, 2.5, 1.25)]
    assert (scaler.count.item(), scaler.mean.item()) == (6, 2.375)
    assert scaler.variance.item() == pytest.approx(sum(squares) / 6, rel=1e-14)
    assert scaler.returns.tolist() == [4.0, 1.25]
    torch.testing.assert_close(scaler(reward), reward / math.sqrt(sum(squares) / 6))
    scaler.update(torch.tensor([[[1.0]], [[1.0]]]), torch.tensor([[[False]], [[True]]]))
    assert scaler.returns.tolist() == [3.0, 0.0]
    scaler.restart()
    assert scaler.returns.tolist() == [0.0, 0.0]
    assert scaler.count == 8


def _sums(reward: Tensor, done: Tensor, gamma: float) -> list[float]:
    found = []
    for row, ends in zip(reward.tolist(), done.tolist(), strict=True):
        total = 0.0
        for earned, ended in zip(row, ends, strict=True):
            total = gamma * total + earned
            found.append(total)
            total = 0.0 if ended else total
    return found


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    num_envs=st.integers(1, 3),
    gamma=st.floats(0, 1),
    size=st.sampled_from([1e-2, 1.0, -1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_split_into_batches_equals_numpy_over_all(
    lengths: list[int], num_envs: int, gamma: float, size: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    reward = size * (1 + torch.rand(num_envs, sum(lengths), generator=generator))
    done = torch.rand(reward.shape, generator=generator) < 0.2
    scaler, whole = RewardScaler(num_envs, gamma=gamma), RewardScaler(num_envs, gamma=gamma)
    for batch, ends in zip(reward.split(lengths, 1), done.split(lengths, 1), strict=True):
        scaler.update(batch, ends)
    whole.update(reward, done)
    sums = np.array(_sums(reward, done, gamma))
    assert scaler.count == reward.numel()
    assert scaler.mean.item() == pytest.approx(sums.mean(), rel=1e-12)
    assert scaler.variance.item() == pytest.approx(sums.var(), rel=1e-9, abs=1e-12 * size**2)
    assert torch.equal(scaler.returns, whole.returns)


def test_it_agrees_with_gymnasium() -> None:
    """Over one episode without a terminal state, at which Gymnasium drops the sum too early."""
    env = NormalizeReward(gymnasium.make("Pendulum-v1"), gamma=0.9)
    plain = gymnasium.make("Pendulum-v1")
    for one in (env, plain):
        one.reset(seed=0)
    action = np.array([0.5], np.float32)
    scaled = [float(env.step(action)[1]) for _ in range(200)]
    reward = torch.tensor([[float(plain.step(action)[1]) for _ in range(200)]], dtype=torch.float64)
    scaler = RewardScaler(1, gamma=0.9)
    scaler.update(reward, torch.zeros(1, 200, dtype=torch.bool))
    # Gymnasium's start counts as 1e-4 frames of mean 0 and variance 1.
    assert scaler(reward)[0, -1].item() == pytest.approx(scaled[-1], rel=1e-5)


def test_rewards_keep_their_dtype_and_a_constant_one_its_size() -> None:
    scaler = RewardScaler(1, gamma=0.0)
    reward = torch.full((1, 4, 1), 0.5)
    scaler.update(reward, torch.zeros(1, 4, 1, dtype=torch.bool))
    assert scaler.variance == 0.0
    assert torch.equal(scaler(reward), reward)
    assert scaler(reward).dtype == torch.float32


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_non_finite_values_are_refused_and_change_nothing(bad: float) -> None:
    scaler = RewardScaler(2)
    reward, done = torch.randn(2, 5, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.bool)
    scaler.update(reward, done)
    before = copy.deepcopy(scaler.state_dict())
    reward[1, 2] = bad
    with pytest.raises(NonFiniteDataError, match="reward has"):
        scaler.update(reward, done)
    assert all(torch.equal(before[n], v) for n, v in scaler.state_dict().items())


@pytest.mark.parametrize(
    ("shape", "other", "named"),
    [
        ((5,), (5,), "reward of shape"),
        ((3, 5), (3, 5), r"reward of shape \(3, 5\).*num_envs=2"),
        ((2, 5, 2), (2, 5, 2), "reward of shape"),
        ((2, 5, 1), (2, 5), "done of shape"),
        ((2, 0), (2, 0), "at least one frame"),
    ],
)
def test_other_shapes_are_refused(
    shape: tuple[int, ...], other: tuple[int, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        RewardScaler(2).update(torch.zeros(shape), torch.zeros(other, dtype=torch.bool))


@pytest.mark.parametrize(
    "arguments", [{"num_envs": 0}, {"gamma": 1.1}, {"gamma": math.nan}, {"min_variance": 0}]
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        RewardScaler(**({"num_envs": 2} | arguments))
