"""The keys of the loss, and input that it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ActorValueOperator, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from amber_trl.objectives import AmberPPOLoss
from amber_trl.transforms import ISStalenessFilter
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


def test_it_reads_only_stored_keys(loss: AmberPPOLoss, frames: TensorDict) -> None:
    expected = loss(frames)
    emitted = loss(frames.select(*READ))
    assert all(torch.equal(value, expected[key]) for key, value in emitted.items())


def test_without_a_critic(actor: ProbabilisticActor, frames: TensorDict) -> None:
    for coefficient in (0, None):
        loss = AmberPPOLoss(actor, critic_coeff=coefficient)
        assert "loss_critic" not in loss(frames.select(*READ[:-1]))
    with pytest.raises(TypeError, match="critic_network=None"):
        AmberPPOLoss(actor)


def test_keys_can_be_renamed(loss: AmberPPOLoss, frames: TensorDict) -> None:
    expected = loss(frames)
    names: dict[str, Any] = {
        "action": ("old", "action"),
        "sample_log_prob": ("old", "log_prob"),
        "advantage": "gae",
        "value_target": ("gae_of", "target"),
    }
    loss.set_keys(**names)
    renamed = frames.select("observation")
    for key, name in zip(READ[1:], names.values(), strict=True):
        renamed[name] = frames[key]
    emitted = loss(renamed)
    assert all(torch.equal(value, expected[key]) for key, value in emitted.items())
    with pytest.raises(KeyError, match=r"'gae'.*set_keys\(advantage="):
        loss(frames)


def test_a_missing_advantage_is_not_recomputed(loss: AmberPPOLoss, frames: TensorDict) -> None:
    # TorchRL's loss would compute it here, with the current critic.
    for name in ("observation", "reward", "done", "terminated"):
        kind = torch.bool if name in ("done", "terminated") else torch.float32
        frames["next", name] = torch.zeros(16, 3 if name == "observation" else 1, dtype=kind)
    with pytest.raises(KeyError, match="'advantage'"):
        loss(frames.exclude("advantage"))
    for key in ("value_target", "action"):
        with pytest.raises(KeyError, match=f"'{key}'"):
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
    with pytest.raises(ValueError, match=f"'{key}'"):
        loss(frames)


def test_a_log_probability_of_another_shape_makes_no_outer_product(
    loss: AmberPPOLoss, frames: TensorDict
) -> None:
    frames["action_log_prob"] = frames["action_log_prob"].unsqueeze(-1)
    with pytest.raises(ValueError, match="'action_log_prob'"):
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


def test_frames_of_several_environments(loss: AmberPPOLoss, frames: TensorDict) -> None:
    flat, stacked = step(loss, frames), step(loss, frames.reshape(2, 8))
    torch.testing.assert_close(flat[0]["loss_objective"], stacked[0]["loss_objective"])
    torch.testing.assert_close(flat[0]["loss_critic"], stacked[0]["loss_critic"])


@pytest.mark.parametrize("name", ["entropy_bonus", "clip_range", "normalise_advantage"])
def test_names_that_are_not_taken_are_refused(name: str) -> None:
    unknown: dict[str, Any] = {name: 0.2}
    with pytest.raises(TypeError, match=name):
        AmberPPOLoss(*networks(), **unknown)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mask_key", ["staleness_mask", ("staleness", "mask")])
def test_frames_out_of_use_count_nowhere(normalize: bool, mask_key: Any) -> None:
    actor, critic = networks()
    batches = collect(actor, 32).reshape(2, 16)
    batches["advantage"][1] += 100  # of the stale batch
    batches["action_log_prob"][1] -= 1000  # which a mask alone could not handle
    with torch.no_grad():  # of the fresh one
        now = actor.get_dist(batches[0]).log_prob(batches[0]["action"])
        batches["action_log_prob"][0] = now - 0.01
    frames = ISStalenessFilter(actor, mask_key=mask_key)(batches).reshape(-1)
    loss = AmberPPOLoss(actor, critic, normalize_advantage=normalize, entropy_coeff=0.01)
    expected, expected_grads = step(loss, frames[:16])
    loss.loss_mask_key = mask_key
    emitted, grads = step(loss, frames)
    for key, value in expected.items():
        assert torch.equal(emitted[key], value), key
    assert all(torch.equal(grads[name], value) for name, value in expected_grads.items())


def test_a_minibatch_without_a_frame_in_use_has_no_loss(
    loss: AmberPPOLoss, frames: TensorDict
) -> None:
    frames["in_use"] = torch.zeros(16, dtype=torch.bool)
    loss.loss_mask_key = "in_use"
    emitted, grads = step(loss, frames)
    assert emitted["loss_objective"] == emitted["loss_critic"] == 0
    assert not any(grad.any() for grad in grads.values())


def test_entries_that_the_actor_makes_itself_are_not_read() -> None:
    """A trunk's stored output would be stale after one step, so it is recomputed."""
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
