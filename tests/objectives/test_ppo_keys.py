"""The keys of the loss, and input that it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import (
    ActorValueOperator,
    IndependentNormal,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss

from amber_trl.objectives import AmberPPOLoss
from tests.objectives.problem import collect, networks, step
from tests.transforms.problem import one_normal

READ = ["observation", "action", "action_log_prob", "advantage", "value_target"]


@pytest.fixture
def actor() -> ProbabilisticActor:
    return networks()[0]


@pytest.fixture
def loss() -> AmberPPOLoss:
    return AmberPPOLoss(*networks())


@pytest.fixture
def frames(actor: ProbabilisticActor) -> TensorDict:
    return collect(actor)


def test_it_reads_in_keys_and_nothing_else(loss: AmberPPOLoss, frames: TensorDict) -> None:
    assert loss.in_keys == READ
    expected = loss(frames)
    emitted = loss(frames.select(*READ))
    assert all(torch.equal(value, expected[key]) for key, value in emitted.items())


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        ({}, set()),
        ({"entropy_coeff": 0.1}, set()),
        ({"clip_value": 0.2}, set()),
        ({"critic_coeff": 0}, {"value_target"}),
        ({"log_explained_variance": False}, set()),
        ({"clip_epsilon": (0.1, 0.2)}, set()),
    ],
)
def test_keys_of_every_setting(
    frames: TensorDict, arguments: dict[str, Any], without: set[str]
) -> None:
    loss = AmberPPOLoss(*networks(), **arguments)
    read = frames.select(*loss.in_keys)
    assert {*loss.in_keys} & without == set()
    assert {*loss(read).keys()} == {*loss.out_keys}
    assert len(loss.out_keys) == len({*loss.out_keys})


def test_without_a_critic(actor: ProbabilisticActor, frames: TensorDict) -> None:
    for coefficient in (0, None):
        loss = AmberPPOLoss(actor, critic_coeff=coefficient)
        assert loss.in_keys == READ[:-1]
        assert {*loss(frames.select(*READ[:-1])).keys()} == {*loss.out_keys}
    with pytest.raises(TypeError, match=r"critic_network=None with .*give a critic, or"):
        AmberPPOLoss(actor)


@pytest.mark.parametrize("functional", [True, False])
def test_tensors_by_keyword(frames: TensorDict, functional: bool) -> None:
    loss = AmberPPOLoss(*networks(), functional=functional)
    expected = loss(frames)
    tensors: dict[str, Tensor] = {key: frames[key] for key in READ}
    values = loss(**tensors)
    assert len(values) == len(loss.out_keys)
    for key, value in zip(loss.out_keys, values, strict=True):
        assert torch.equal(value, expected[key]), key


def test_nested_tensors_by_keyword() -> None:
    loss = AmberPPOLoss(*networks())
    loss.set_keys(advantage=("gae", "advantage"))
    frames = collect(networks()[0])
    tensors = {key: frames[key] for key in READ if key != "advantage"}
    values = loss(**tensors, gae_advantage=frames["advantage"])
    assert values[0].requires_grad


@pytest.mark.parametrize("selected", [["loss_objective"], ["capped_frames", "loss_critic"]])
def test_out_keys_can_be_selected(frames: TensorDict, selected: list[str]) -> None:
    loss = AmberPPOLoss(*networks())
    loss.select_out_keys(*selected)
    assert loss.out_keys == selected
    assert {*loss(frames).keys()} == {*selected}


def test_out_keys_given_are_kept(loss: AmberPPOLoss) -> None:
    mine = ["loss_objective"]
    loss.out_keys = mine
    assert loss.out_keys == mine == ["loss_objective"]


def test_keys_can_be_renamed(loss: AmberPPOLoss, frames: TensorDict) -> None:
    expected = loss(frames)
    names: dict[str, Any] = {
        "action": ("old", "action"),
        "sample_log_prob": ("old", "log_prob"),
        "advantage": "gae",
        "value_target": ("gae_of", "target"),
    }
    loss.set_keys(**names)
    assert loss.in_keys == ["observation", *names.values()]
    renamed = frames.select("observation")
    for key, name in zip(READ[1:], names.values(), strict=True):
        renamed[name] = frames[key]
    emitted = loss(renamed)
    assert all(torch.equal(value, expected[key]) for key, value in emitted.items())
    with pytest.raises(KeyError, match=r"'gae' is missing.*set_keys\(advantage="):
        loss(frames)


def test_a_missing_advantage_is_not_recomputed(loss: AmberPPOLoss, frames: TensorDict) -> None:
    # TorchRL's loss would compute it here, with the current critic.
    for name in ("observation", "reward", "done", "terminated"):
        kind = torch.bool if name in ("done", "terminated") else torch.float32
        frames["next", name] = torch.zeros(16, 3 if name == "observation" else 1, dtype=kind)
    del frames["advantage"]
    with pytest.raises(KeyError, match=r"'advantage' is missing.*GAE.*set_keys"):
        loss(frames)
    with pytest.raises((KeyError, TypeError), match="advantage"):
        loss(**{key: frames[key] for key in READ if key != "advantage"})


@pytest.mark.parametrize("key", [key for key in READ if key != "advantage"])
def test_a_missing_key_is_named(loss: AmberPPOLoss, frames: TensorDict, key: str) -> None:
    with pytest.raises(KeyError, match=rf"\['{key}'\] missing of the keys"):
        loss(frames.exclude(key))


@pytest.mark.parametrize("key", ["advantage", "value_target"])
@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(16),
        torch.zeros(16, 2),
        torch.zeros(16, 1, dtype=torch.int64),
        torch.zeros(16, 1, dtype=torch.bool),
    ],
)
def test_columns_of_another_kind_are_refused(
    loss: AmberPPOLoss, frames: TensorDict, key: str, value: Tensor
) -> None:
    frames[key] = value
    with pytest.raises(ValueError, match=rf"'{key}' of shape .*\[\.\.\., 1\]"):
        loss(frames)


def test_a_log_probability_of_another_shape_makes_no_outer_product(
    loss: AmberPPOLoss, frames: TensorDict
) -> None:
    frames["action_log_prob"] = frames["action_log_prob"].unsqueeze(-1)
    with pytest.raises(ValueError, match=r"'action_log_prob' of shape \(16, 1\).*\(16, 16\)"):
        loss(frames)


def test_a_normal_of_one_dimension(frames: TensorDict) -> None:
    # Its log-probability is [frames, 1], stored and evaluated.
    actor, critic = one_normal(1), networks()[1]
    with torch.no_grad():
        actor(frames)
    emitted = AmberPPOLoss(actor, critic)(frames)
    assert emitted["mean_ratio"].item() == pytest.approx(1, abs=1e-5)
    expected = -frames["advantage"].mean().item()
    assert emitted["loss_objective"].item() == pytest.approx(expected, abs=1e-5)


def test_frames_of_several_lanes(loss: AmberPPOLoss, frames: TensorDict) -> None:
    flat, lanes = step(loss, frames), step(loss, frames.reshape(2, 8))
    torch.testing.assert_close(flat[0]["loss_objective"], lanes[0]["loss_objective"])
    torch.testing.assert_close(flat[0]["loss_critic"], lanes[0]["loss_critic"])


def test_with_a_stock_buffer(loss: AmberPPOLoss, frames: TensorDict) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(16), batch_size=16)
    buffer.extend(frames)
    emitted, grads = step(loss, buffer.sample())
    assert emitted["loss_objective"].isfinite()
    assert grads


@pytest.mark.parametrize(
    "arguments",
    [
        {"clip_epsilon": -0.1},
        {"clip_epsilon": 1.01},
        {"clip_epsilon": math.nan},
        {"clip_epsilon": "0.2"},
        {"clip_epsilon": None},
        {"clip_epsilon": True},
        {"clip_epsilon": (0.2, -0.1)},
        {"clip_epsilon": (0.2, 0.3, 0.4)},
        {"clip_epsilon": (0.2,)},
        {"entropy_coeff": -0.01},
        {"entropy_coeff": math.nan},
        {"entropy_coeff": None},
        {"entropy_coeff": {"move_entropy": -1.0}},
        {"critic_coeff": -1},
        {"critic_coeff": math.nan},
        {"max_importance_ratio": 0},
        {"max_importance_ratio": -1},
        {"max_importance_ratio": math.nan},
    ],
)
def test_coefficients_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        AmberPPOLoss(*networks(), **arguments)


def test_the_bonus_is_decided_by_its_coefficient() -> None:
    with pytest.raises(TypeError, match=r"entropy_bonus.*entropy_coeff"):
        AmberPPOLoss(*networks(), entropy_bonus=True)
    with pytest.raises(TypeError, match="clip_range"):
        AmberPPOLoss(*networks(), clip_range=0.2)


def test_what_the_actor_makes_for_the_critic_or_itself_is_not_read() -> None:
    """A trunk's output in storage would be stale after one step, and is made anew."""
    heads = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    shared = ActorValueOperator(
        TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"]),
        ProbabilisticActor(
            TensorDictModule(heads, ["hidden"], ["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        ),
        ValueOperator(nn.Linear(4, 1), in_keys=["hidden"]),
    )
    actor = shared.get_policy_operator()
    frames = collect(actor)
    loss = AmberPPOLoss(actor, shared.get_value_head(), functional=False)
    stock = ClipPPOLoss(actor, shared.get_value_head(), clip_epsilon=0.4, functional=False)
    assert set(loss.in_keys) == set(READ)
    emitted = loss(frames.select(*READ))
    expected = stock(frames.select(*READ))
    assert torch.equal(emitted["loss_objective"], expected["loss_objective"])
    frames["hidden"] += 1  # as if stored, and stale by now
    assert torch.equal(loss(frames)["loss_critic"], emitted["loss_critic"])


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: dict[str, Any] = {"clip_epsilon": np.float32(0.5), "critic_coeff": np.float64(2)}
    loss = AmberPPOLoss(*networks(), **numbers)
    assert loss.clip_epsilon.dtype == loss.critic_coeff.dtype == torch.float32
    assert float(loss.clip_epsilon) == 0.5
