"""Feeding TorchRL's own losses with the frames that the filter keeps in use."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose
from torchrl.modules import ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, LossModule, ReinforceLoss

from amber_trl.transforms import ISStalenessFilter
from tests.transforms.problem import collect, gaussian

STALE = 1


@pytest.fixture
def actor() -> Any:
    return gaussian()


@pytest.fixture
def frames(actor: Any) -> TensorDict:
    """Three batches; the second is stale."""
    frames = collect(actor, 3, 8)
    frames["advantage"] = torch.randn(3, 8, 1)
    frames["value_target"] = torch.randn(3, 8, 1)
    frames["next", "reward"] = torch.randn(3, 8, 1)
    frames["frame"] = torch.arange(24).view(3, 8)
    frames["action_log_prob"][STALE] -= 1
    return frames


def make_loss(loss_type: Any, actor: Any) -> Any:
    critic = ValueOperator(nn.Linear(3, 1), ["observation"])
    if loss_type is ReinforceLoss:
        return ReinforceLoss(actor, critic)
    return loss_type(actor, critic, entropy_bonus=False)


def total(loss: LossModule, frames: TensorDict) -> torch.Tensor:
    emitted = loss(frames)
    return sum(value for key, value in emitted.items() if key.startswith("loss_"))


def gradients(loss: LossModule, frames: TensorDict) -> torch.Tensor:
    grads = torch.autograd.grad(total(loss, frames), list(loss.parameters()), allow_unused=True)
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def test_select_returns_the_frames_in_use_in_order(actor: Any, frames: TensorDict) -> None:
    staleness = ISStalenessFilter(actor)
    selected = staleness.select(frames)
    assert selected["frame"].tolist() == [*range(8), *range(16, 24)]
    assert {*selected.keys(True, True)} == {*frames.keys(True, True)}
    # The newest is in use, stale or not.
    everything = staleness.select(frames, torch.tensor([1, 0, 2]))
    assert everything["frame"].tolist() == list(range(24))


def test_select_of_one_batch(actor: Any, frames: TensorDict) -> None:
    staleness = ISStalenessFilter(actor)
    assert staleness.select(frames[0]).batch_size == (8,)
    empty = staleness.select(frames[STALE])
    assert empty.batch_size == (0,)
    assert empty["action"].shape == (0, 2)


@pytest.mark.parametrize("mask_key", ["staleness_mask", ("staleness", "mask")])
def test_forward_marks_the_frames_in_use(actor: Any, frames: TensorDict, mask_key: Any) -> None:
    staleness = ISStalenessFilter(actor, mask_key=mask_key)
    marked = staleness(frames)
    assert marked is frames
    assert staleness.out_keys == [mask_key]
    mask = frames[mask_key]
    assert (mask.dtype, mask.shape) == (torch.bool, (3, 8))
    assert mask.any(1).tolist() == mask.all(1).tolist() == [True, False, True]
    mask[0, 0] = False  # no expanded view
    assert mask.sum() == 15
    assert staleness(frames[STALE])[mask_key].tolist() == [False] * 8


@pytest.mark.parametrize("loss_type", [ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_select_feeds_a_loss(actor: Any, frames: TensorDict, loss_type: Any) -> None:
    loss = make_loss(loss_type, actor)
    expected = gradients(loss, torch.cat([frames[0], frames[2]]))
    assert torch.equal(gradients(loss, ISStalenessFilter(actor).select(frames)), expected)
    assert not torch.equal(gradients(loss, frames.reshape(-1)), expected)


@pytest.mark.parametrize("loss_type", [ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_a_mask_is_as_good_where_ratios_are_finite(
    actor: Any, frames: TensorDict, loss_type: Any
) -> None:
    loss = make_loss(loss_type, actor)
    loss.loss_mask_key = "staleness_mask"
    staleness = ISStalenessFilter(actor)
    masked, selected = staleness(frames).reshape(-1), staleness.select(frames)
    torch.testing.assert_close(total(loss, masked), total(loss, selected))
    torch.testing.assert_close(gradients(loss, masked), gradients(loss, selected))


def test_a_masked_overflow_still_poisons_the_gradient(actor: Any, frames: TensorDict) -> None:
    loss = make_loss(ClipPPOLoss, actor)
    loss.loss_mask_key = "staleness_mask"
    frames["action_log_prob"][STALE] -= 1000
    staleness = ISStalenessFilter(actor)
    masked, selected = staleness(frames).reshape(-1), staleness.select(frames)
    assert total(loss, masked).isfinite()
    assert gradients(loss, masked).isnan().any()
    assert gradients(loss, selected).isfinite().all()


def test_in_a_stock_buffer_it_marks_minibatches(actor: Any, frames: TensorDict) -> None:
    staleness = ISStalenessFilter(actor)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), batch_size=8, transform=Compose(staleness)
    )
    buffer.extend(frames[0])
    assert buffer.sample()["staleness_mask"].all()
    buffer.extend(frames[STALE])
    assert not buffer.sample()["staleness_mask"].any()
    assert not any("actor" in str(key) for key in buffer.state_dict()["_transforms"])
