"""The eager update step against TorchRL's stock loop, and its refusals."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import ReplayBuffer
from torchrl.objectives import ClipPPOLoss, LossModule

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.training import UpdateStep
from amber_trl.training._metrics import total_loss
from tests.training.problem import make_loss, make_minibatch


def _stock_step(loss: LossModule, optimizer: torch.optim.Optimizer, minibatch: TensorDict) -> None:
    emitted = loss(minibatch)
    loss_value: torch.Tensor = emitted["loss_objective"] + emitted["loss_critic"]
    loss_value.backward()
    optimizer.step()
    optimizer.zero_grad()


def _equal_parameters(first: LossModule, second: LossModule) -> bool:
    return all(
        torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize(
    "optimizer_type", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop]
)
def test_is_bit_identical_to_the_stock_loop(
    functional: bool, optimizer_type: Callable[..., torch.optim.Optimizer]
) -> None:
    ours, stock = make_loss(functional=functional), make_loss(functional=functional)
    our_optimizer = optimizer_type(ours.parameters(), lr=3e-3)
    stock_optimizer = optimizer_type(stock.parameters(), lr=3e-3)
    update = UpdateStep(ours, our_optimizer)
    for seed in range(5):
        minibatch = make_minibatch(seed=seed)
        update(minibatch.clone())
        _stock_step(stock, stock_optimizer, minibatch.clone())
    assert _equal_parameters(ours, stock)
    torch.testing.assert_close(
        our_optimizer.state_dict(), stock_optimizer.state_dict(), rtol=0.0, atol=0.0
    )


def test_an_epoch_is_the_loop_over_the_buffer() -> None:
    learners = []
    for _ in range(2):
        loss = make_loss()
        replay = MultiBatchReplayBuffer(2, 64, 16, generator=torch.Generator().manual_seed(0))
        for seed in range(3):
            replay.extend(make_minibatch(seed=seed))
        learners.append((loss, UpdateStep(loss, torch.optim.Adam(loss.parameters())), replay))
    (ours, update, replay), (stock, step, other) = learners
    for _ in range(2):
        metrics = update.epoch(replay)
        looped: TensorDict = torch.stack([step(minibatch) for minibatch in other])
        torch.testing.assert_close(metrics.to_dict(), looped.to_dict(), rtol=0.0, atol=0.0)
    assert metrics.batch_size == torch.Size([4])
    assert _equal_parameters(ours, stock)


def test_an_epoch_needs_frames_on_the_device_of_the_loss() -> None:
    loss, frames = make_loss(), make_minibatch().to("meta")
    replay: Any = SimpleNamespace(
        storage=frames, age=torch.zeros(1), epoch=lambda: [torch.arange(4)]
    )
    with pytest.raises(ValueError, match=r"frames on meta, and the loss is on cpu.*device='cpu'"):
        UpdateStep(loss, torch.optim.Adam(loss.parameters())).epoch(replay)


def test_an_epoch_needs_a_buffer_that_draws_one() -> None:
    loss = make_loss()
    update = UpdateStep(loss, torch.optim.Adam(loss.parameters()))
    with pytest.raises(TypeError, match="ReplayBuffer, which has no epoch"):
        update.epoch(ReplayBuffer())
    with pytest.raises(RuntimeError, match="empty"):
        update.epoch(MultiBatchReplayBuffer(2, 64, 16))


def test_returns_what_the_loss_emits_detached() -> None:
    loss = make_loss()
    expected = loss(make_minibatch())
    metrics = UpdateStep(loss, torch.optim.Adam(loss.parameters()))(make_minibatch())
    assert set(metrics.keys()) == set(expected.keys())
    assert metrics.batch_size == torch.Size([])
    for key, value in metrics.items():
        assert not value.requires_grad
        assert torch.equal(value, expected[key])


def test_clips_the_whole_gradient() -> None:
    ours, stock = make_loss(), make_loss()
    minibatch = make_minibatch()
    update = UpdateStep(ours, torch.optim.SGD(ours.parameters(), lr=1.0), max_grad_norm=0.1)
    metrics = update(minibatch)
    torch.autograd.backward(total_loss(stock(minibatch)))
    gradient = torch.cat([p.grad.flatten() for p in stock.parameters() if p.grad is not None])
    torch.testing.assert_close(metrics["grad_norm"], gradient.norm())
    moved = torch.cat(
        [(p - q).flatten() for p, q in zip(ours.parameters(), stock.parameters(), strict=True)]
    )
    torch.testing.assert_close(moved.norm(), torch.tensor(0.1), rtol=1e-4, atol=0.0)


def test_is_not_disturbed_by_gradients_left_behind() -> None:
    ours, stock = make_loss(), make_loss()
    torch.autograd.backward(total_loss(ours(make_minibatch(seed=7))))
    UpdateStep(ours, torch.optim.SGD(ours.parameters(), lr=0.1))(make_minibatch())
    _stock_step(stock, torch.optim.SGD(stock.parameters(), lr=0.1), make_minibatch())
    assert _equal_parameters(ours, stock)


class _Emits(LossModule):
    """Emits ``{key: w * ones(shape)}``."""

    def __init__(self, key: str, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.network = TensorDictModule(torch.nn.Linear(1, 1), ["x"], ["y"])
        self.key, self.shape = key, shape

    def forward(self, tensordict: TensorDict) -> TensorDict:
        return TensorDict({self.key: self.network(tensordict)["y"].mean().expand(self.shape)})


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (_Emits("objective"), KeyError, "no key starts with 'loss_'"),
        (_Emits("loss_fit", (3,)), ValueError, r"loss_fit has shape \(3,\) and must be a scalar"),
    ],
)
def test_refuses_a_loss_without_scalar_terms(
    loss: LossModule, error: type[Exception], message: str
) -> None:
    update = UpdateStep(loss, torch.optim.SGD(loss.parameters(), lr=0.1))
    with pytest.raises(error, match=message):
        update(TensorDict({"x": torch.ones(4, 1)}, [4]))


def test_refuses_an_optimizer_that_misses_parameters() -> None:
    loss = make_loss(functional=False)
    assert isinstance(loss, ClipPPOLoss)
    optimizer = torch.optim.Adam(loss.actor_network.parameters())
    with pytest.raises(ValueError, match=r"lacks the loss's parameters .*critic_network"):
        UpdateStep(loss, optimizer)
    loss.critic_network.requires_grad_(False)
    UpdateStep(loss, optimizer)(make_minibatch())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"loss": torch.nn.Linear(1, 1)}, TypeError, "loss is a Linear, not a"),
        ({"loss": make_loss(seed=1)}, ValueError, "are not the loss's"),
        ({"max_grad_norm": 0.0}, ValueError, "max_grad_norm=0.0"),
        ({"max_grad_norm": float("inf")}, ValueError, "max_grad_norm=inf"),
        ({"max_grad_norm": float("nan")}, ValueError, "max_grad_norm=nan"),
        ({"compile": "off"}, TypeError, "compile='off' is not a bool"),
    ],
)
def test_refuses_other_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    loss = make_loss()
    optimizer = torch.optim.Adam(loss.parameters())
    with pytest.raises(error, match=message):
        UpdateStep(**{"loss": loss, "optimizer": optimizer, **arguments})
