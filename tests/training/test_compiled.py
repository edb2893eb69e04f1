"""The compiled update step against the eager one, which is TorchRL's stock loop."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor
from torchrl.data import LazyMemmapStorage
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from amber_trl.modules import ObservationNormalizer, gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import NonFiniteError
from amber_trl.training._compiled import _MAX_CUDA_GRAPHS, _CudaGraphs
from tests.training.learner import (
    FRAMES,
    Learner,
    Regression,
    bad_frames,
    draw_indices,
    ppo_learner,
    regression_frames,
    regression_learner,
    relative,
)
from tests.training.problem import ACTION_SIZE, OBSERVATION_SIZE, make_loss

STEPS = 1000


def test_each_of_a_thousand_steps_agrees_in_float32(compiled: Learner, eager: Learner) -> None:
    for k, index in enumerate(draw_indices(STEPS)):
        for learner in (compiled, eager):
            learner.anneal(1 - k / STEPS)
        compiled.become(eager.loss.state_dict(), eager.optimizer.state_dict())
        ours, theirs = (x.epoch(FRAMES, [index]) for x in (compiled, eager))
        for p, q in zip(compiled.loss.parameters(), eager.loss.parameters(), strict=True):
            assert relative(p, q) <= 1e-5
            for name, value in eager.optimizer.state[q].items():
                assert relative(compiled.optimizer.state[p][name], value) <= 1e-4, name
        if k % 50 == 0:
            torch.testing.assert_close(ours.to_dict(), theirs.to_dict(), rtol=1e-4, atol=1e-5)


def test_gathering_inside_the_graph_changes_nothing(compiled: Learner) -> None:
    indices = draw_indices(8)
    in_graph = compiled.epoch(FRAMES, indices)
    state = compiled.state()
    compiled.start_over()
    outside: TensorDict = torch.stack([compiled.update(FRAMES[index]) for index in indices])
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), state, strict=True))
    torch.testing.assert_close(in_graph.to_dict(), outside.to_dict(), rtol=0.0, atol=0.0)


def test_the_same_loss_runs_bit_identically_and_another_is_not_taken_for_it() -> None:
    first, same, other, expected = (
        regression_learner(compile=True),
        regression_learner(compile=True),
        regression_learner(compile=True, power=3),
        regression_learner(compile=False, power=3),
    )
    rows = list(torch.arange(128).split(16))
    for learner in (first, same, other, expected):
        learner.epoch(regression_frames(), rows)
    assert all(torch.equal(p, q) for p, q in zip(first.state(), same.state(), strict=True))
    for p, q in zip(other.state(), expected.state(), strict=True):
        assert relative(p, q) <= 1e-4


def test_writes_in_place(compiled: Learner) -> None:
    compiled.epoch(FRAMES, draw_indices(1))
    entries = [compiled.optimizer.state[p] for p in compiled.loss.parameters()]
    tensors = [*compiled.loss.parameters(), *(t for entry in entries for t in entry.values())]
    places = [tensor.data_ptr() for tensor in tensors]
    before = compiled.state()
    compiled.epoch(FRAMES, draw_indices(3))
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert not any(torch.equal(p, q) for p, q in zip(compiled.state(), before, strict=True))
    assert all(p.grad is None for p in compiled.loss.parameters())


def test_optimizer_state_is_adam_s_both_ways(compiled: Learner, eager: Learner) -> None:
    straight = ppo_learner(compile=False)
    straight.epoch(FRAMES, draw_indices(30))
    compiled.epoch(FRAMES, draw_indices(30)[:10])
    state = compiled.optimizer.state_dict()
    assert state["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert state["state"][0]["step"] == 10.0
    eager.become(compiled.loss.state_dict(), state)
    eager.epoch(FRAMES, draw_indices(30)[10:20])
    compiled.become(eager.loss.state_dict(), eager.optimizer.state_dict())
    compiled.epoch(FRAMES, draw_indices(30)[20:])
    for ours, theirs in zip(compiled.state(), straight.state(), strict=True):
        assert relative(ours, theirs) < 1e-4


def test_reads_hyperparameters_at_every_call(compiled: Learner, eager: Learner) -> None:
    for learner in (compiled, eager):
        learner.epoch(FRAMES, draw_indices(2))
        group = learner.optimizer.param_groups[0]
        group |= {"lr": 1e-2, "betas": (0.5, 0.8), "eps": 1e-2, "weight_decay": 0.1}
        learner.loss.clip_epsilon = 0.01
        learner.epoch(FRAMES, draw_indices(5, seed=1))
    for ours, theirs in zip(compiled.state(), eager.state(), strict=True):
        assert relative(ours, theirs) < 1e-4


def test_memory_mapped_frames_are_read_where_they_are(compiled: Learner, tmp_path: Any) -> None:
    storage = LazyMemmapStorage(len(FRAMES), scratch_dir=tmp_path)
    storage.set(range(len(FRAMES)), FRAMES)
    compiled.epoch(storage[:], draw_indices(3))
    state = compiled.state()
    compiled.start_over()
    compiled.epoch(FRAMES, draw_indices(3))
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), state, strict=True))


def test_an_index_out_of_bounds_raises_and_changes_nothing(compiled: Learner) -> None:
    before = compiled.state()
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled.epoch(FRAMES, [torch.tensor([0, len(FRAMES)])])
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), before, strict=False))


# Data and parameters other than those compiled with -----------------------------------------------


@pytest.fixture(scope="module")
def learners() -> tuple[Learner, Learner]:
    return regression_learner(compile=False), regression_learner(compile=True)


def _assert_agree(learners: tuple[Learner, Learner], stored: TensorDict, rows: int) -> None:
    indices = torch.arange(2 * rows).split(rows)
    eager, compiled = learners
    expected, found = eager.epoch(stored, indices), compiled.epoch(stored, indices)
    torch.testing.assert_close(found.to_dict(), expected.to_dict(), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(compiled.state(), eager.state(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_entries_may_be_one_tensor_and_later_two(learners: tuple[Learner, Learner]) -> None:
    frames = regression_frames(40)
    frames["weight"] = frames["target"]
    _assert_agree(learners, frames, 1)  # compiled with these entries, for one row
    _assert_agree(learners, frames.copy().set("weight", torch.randn(40, 1)), 1)


def test_a_key_may_be_missing_later(learners: tuple[Learner, Learner]) -> None:
    frames = regression_frames()
    _assert_agree(learners, frames.copy().set("weight", torch.randn(128, 1)), 64)
    _assert_agree(learners, frames, 64)


def test_replaced_parameters_are_refused(learners: tuple[Learner, Learner]) -> None:
    update, layer = learners[1].update, learners[1].loss.network.module[2]
    kept = layer.weight
    layer.weight = torch.nn.Parameter(torch.zeros_like(kept))
    with pytest.raises(ValueError, match=r"are other tensors than when .*build a new UpdateStep"):
        update(regression_frames())
    layer.weight = kept
    update(regression_frames())


# Other losses, optimisers and dtypes -------------------------------------------------------------


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_a_thousand_free_steps_agree_in_float64() -> None:
    def learner(compile: bool) -> Learner:
        torch.manual_seed(0)
        normalizer = ObservationNormalizer(OBSERVATION_SIZE)
        normalizer.update(FRAMES["observation"])
        options: Any = {"hidden_sizes": (16,), "normalizer": normalizer}
        actor = gaussian_actor(OBSERVATION_SIZE, ACTION_SIZE, **options)
        critic = value_critic(OBSERVATION_SIZE, **options)
        loss = AmberPPOLoss(actor, critic, clip_epsilon=0.3, functional=False)
        groups = [
            {"params": list(actor.parameters()), "weight_decay": 0.1},
            {"params": list(critic.parameters()), "lr": 1e-3, "betas": (0.8, 0.99)},
        ]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, eps=1e-5)
        return Learner(loss, optimizer, compile=compile, max_grad_norm=0.5)

    ours, theirs = learner(True), learner(False)
    frames = FRAMES.to(torch.float64)
    for k, index in enumerate(draw_indices(STEPS)):
        for x in (ours, theirs):
            x.anneal(1 - k / STEPS)
        metrics, expected = (x.epoch(frames, [index]) for x in (ours, theirs))
        assert "grad_norm" in metrics
        if k % 50 == 0:
            torch.testing.assert_close(metrics.to_dict(), expected.to_dict(), rtol=1e-8, atol=1e-8)
    for p, q in zip(ours.state(), theirs.state(), strict=True):
        assert relative(p, q) <= 1e-8


class _PartlyUsed(torch.nn.Module):
    """A linear layer with an unused second layer."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.used = torch.nn.Linear(size, out)
        self.unused = torch.nn.Linear(size, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.used(x))


def test_discrete_actions_with_shared_unused_and_frozen_parameters() -> None:
    def make_learner(compile: bool) -> Learner:
        torch.manual_seed(0)
        body = TensorDictModule(torch.nn.Linear(OBSERVATION_SIZE, 8), ["observation"], ["hidden"])
        policy = TensorDictModule(_PartlyUsed(8, ACTION_SIZE), ["hidden"], ["logits"])
        actor = ProbabilisticActor(
            TensorDictSequential(body, policy),
            in_keys=["logits"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        )
        critic = TensorDictSequential(body, ValueOperator(torch.nn.Linear(8, 1), ["hidden"]))
        loss = ClipPPOLoss(actor, critic, functional=False)
        groups = [{"params": []}, {"params": list(loss.parameters())}]
        optimizer = torch.optim.Adam(groups, lr=1e-2, weight_decay=0.1)
        return Learner(loss, optimizer, compile=compile)

    ours, theirs = make_learner(True), make_learner(False)
    frames = FRAMES.clone()
    choice = torch.randint(ACTION_SIZE, (len(frames),), generator=torch.Generator().manual_seed(0))
    frames["action"] = choice
    frames["action_log_prob"] = torch.full((len(frames),), -1.8)
    for frozen in ((), ("critic_network",)):
        for learner in (ours, theirs):
            for name in frozen:
                getattr(learner.loss, name).requires_grad_(False)
        metrics, expected = (x.epoch(frames, draw_indices(20)) for x in (ours, theirs))
        torch.testing.assert_close(metrics.to_dict(), expected.to_dict(), rtol=1e-4, atol=1e-5)
        for p, q in zip(ours.state(), theirs.state(), strict=True):
            assert relative(p, q) < 1e-4


# CUDA --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This module is instantiated on a machine without CUDA")
def test_a_cuda_graph_is_captured_for_each_size_place_and_mode() -> None:
    """Without a device nothing is captured, and each graph runs the step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loss = Regression().to(device)
    graphs = _CudaGraphs(loss)

    def step(total: Tensor, stored: list[Tensor], index: Tensor) -> Tensor:
        total.add_(stored[0][index].sum())
        return total + 1.0

    def captured(total: Tensor, stored: Tensor, rows: int) -> int:
        update = torch.no_grad()(graphs.bind(step, total, [stored]))
        for _ in range(4):  # two of them precede the first replay of the capture
            before = total.clone()
            metrics = update(torch.arange(rows, device=device))
            assert total == before + rows
            assert metrics == total + 1.0
        return len(graphs._graphs)

    total, stored = torch.zeros((), device=device), torch.ones(80, device=device)
    assert captured(total, stored, 3) == 1
    assert captured(total, stored, 4) == 2
    assert captured(total, stored, 3) == 2
    assert captured(total, stored[:8], 3) == 3
    assert captured(total.clone(), stored, 3) == 4
    loss.eval()
    assert captured(total, stored, 3) == 5
    assert [captured(total, stored, rows) for rows in range(1, 80)][-1] == _MAX_CUDA_GRAPHS
    assert TensorDict in torch.utils._pytree.SUPPORTED_NODES


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graphs_agree_with_eager() -> None:
    def learner(compile: bool) -> Learner:
        loss = make_loss(functional=False).to("cuda")
        optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5, fused=True)
        return Learner(loss, optimizer, compile=compile)

    ours, theirs = learner(True), learner(False)
    frames, indices = FRAMES.to("cuda"), [index.to("cuda") for index in draw_indices(40)]
    for k in range(4):
        for x in (ours, theirs):
            x.anneal(1 - k / 4)
            x.epoch(frames, indices[10 * k : 10 * k + 8])
            for index in indices[10 * k + 8 : 10 * k + 10]:
                x.update(frames[index])
        for p, q in zip(ours.state(), theirs.state(), strict=True):
            assert relative(p, q) < 1e-4
        ours.become(theirs.loss.state_dict(), theirs.optimizer.state_dict())
    before = ours.state()
    ours.epoch(bad_frames("loss").to("cuda"), [torch.tensor([7, 3], device="cuda")])
    assert all(torch.equal(p, q) for p, q in zip(ours.state(), before, strict=True))
    with pytest.raises(NonFiniteError, match=r"rows \[7, 3\]"):
        ours.update.raise_if_nonfinite()
