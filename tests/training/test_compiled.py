"""The compiled update step against the eager one, which is TorchRL's stock loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor
from torchrl.data import LazyMemmapStorage
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, LossModule

from amber_trl.modules import ObservationNormalizer, gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import NonFiniteError, UpdateStep
from tests.training.problem import ACTION_SIZE, OBSERVATION_SIZE, make_loss, make_minibatch

STEPS = 1000
FRAMES = make_minibatch(4096, seed=1)
SIZES = (64, 512, 37, 2)


class Learner:
    """A loss, its optimiser and update step, which can start over without compiling again."""

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        *,
        compile: bool,
        max_grad_norm: float | None = None,
    ) -> None:
        self.loss, self.optimizer = loss, optimizer
        self.update = UpdateStep(loss, optimizer, compile=compile, max_grad_norm=max_grad_norm)
        self._start = copy.deepcopy((loss.state_dict(), optimizer.state_dict()))

    def start_over(self) -> None:
        self.become(*self._start)
        self.update.clear_nonfinite()

    def become(self, loss_state: dict[str, Any], optimizer_state: dict[str, Any]) -> None:
        self.loss.load_state_dict(loss_state)
        # Adam takes step counts as they are: a shared one would count twice.
        self.optimizer.load_state_dict(copy.deepcopy(optimizer_state))

    def state(self) -> list[Tensor]:
        """Parameters and optimiser state, copied."""
        parameters = list(self.loss.parameters())
        entries = [self.optimizer.state.get(p, {}) for p in parameters]
        moments = [value for entry in entries for _, value in sorted(entry.items())]
        return [tensor.detach().clone() for tensor in parameters + moments]

    def anneal(self, left: float) -> None:
        self.loss.clip_epsilon = 0.3 * left
        self.optimizer.param_groups[0]["lr"] = 3e-4 * left


def _ppo(*, compile: bool, seed: int = 0) -> Learner:
    loss = make_loss(functional=False, seed=seed)
    return Learner(loss, torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5), compile=compile)


def _indices(steps: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(len(FRAMES), (SIZES[k % len(SIZES)],), generator=generator)
        for k in range(steps)
    ]


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).norm() / theirs.norm().clamp_min(1e-12)).detach())


@pytest.fixture(scope="module")
def compiled_once() -> Learner:
    learner = _ppo(compile=True)
    learner.update.epoch(FRAMES, _indices(1))
    return learner


@pytest.fixture
def compiled(compiled_once: Learner) -> Iterator[Learner]:
    """Starts over, and must not be compiled again."""
    compiled_once.start_over()
    with torch.compiler.set_stance("fail_on_recompile"):
        yield compiled_once


@pytest.fixture
def eager() -> Learner:
    return _ppo(compile=False)


def test_each_of_a_thousand_steps_agrees_in_float32(compiled: Learner, eager: Learner) -> None:
    for k, index in enumerate(_indices(STEPS)):
        for learner in (compiled, eager):
            learner.anneal(1 - k / STEPS)
        compiled.become(eager.loss.state_dict(), eager.optimizer.state_dict())
        ours, theirs = (x.update.epoch(FRAMES, [index]) for x in (compiled, eager))
        for p, q in zip(compiled.loss.parameters(), eager.loss.parameters(), strict=True):
            assert _relative(p, q) <= 1e-5
            for name, value in eager.optimizer.state[q].items():
                assert _relative(compiled.optimizer.state[p][name], value) <= 1e-4, name
        torch.testing.assert_close(ours.to_dict(), theirs.to_dict(), rtol=1e-4, atol=1e-5)


def test_returns_what_eager_returns(compiled: Learner, eager: Learner) -> None:
    ours, theirs = compiled.update(FRAMES[:64]), eager.update(FRAMES[:64])
    assert set(ours.keys()) == set(theirs.keys())
    for key, value in theirs.items():
        assert ours[key].shape == value.shape
        assert ours[key].dtype == value.dtype
    torch.testing.assert_close(ours.to_dict(), theirs.to_dict())


def test_gathering_inside_the_graph_changes_nothing(compiled: Learner) -> None:
    indices = _indices(8)
    in_graph = compiled.update.epoch(FRAMES, indices)
    state = compiled.state()
    compiled.start_over()
    outside: TensorDict = torch.stack([compiled.update(FRAMES[index]) for index in indices])
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), state, strict=True))
    torch.testing.assert_close(in_graph.to_dict(), outside.to_dict(), rtol=0.0, atol=0.0)


def test_a_second_run_is_bit_identical_and_a_different_one_is_its_own(
    compiled_once: Learner,
) -> None:
    compiled_once.start_over()
    same, other = _ppo(compile=True), _ppo(compile=True, seed=1)
    for learner in (compiled_once, same, other):
        learner.update.epoch(FRAMES, _indices(50))
    first, second, third = compiled_once.state(), same.state(), other.state()
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(first[:12], third[:12], strict=True))


def test_writes_in_place(compiled: Learner) -> None:
    compiled.update.epoch(FRAMES, _indices(1))
    entries = [compiled.optimizer.state[p] for p in compiled.loss.parameters()]
    tensors = [*compiled.loss.parameters(), *(t for entry in entries for t in entry.values())]
    places = [tensor.data_ptr() for tensor in tensors]
    before = compiled.state()
    compiled.update.epoch(FRAMES, _indices(3))
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert not any(torch.equal(p, q) for p, q in zip(compiled.state(), before, strict=True))
    assert all(p.grad is None for p in compiled.loss.parameters())


def test_optimizer_state_is_adam_s_both_ways(compiled: Learner, eager: Learner) -> None:
    straight = _ppo(compile=False)
    straight.update.epoch(FRAMES, _indices(30))
    compiled.update.epoch(FRAMES, _indices(30)[:10])
    state = compiled.optimizer.state_dict()
    assert state["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert state["state"][0]["step"] == 10.0
    eager.become(compiled.loss.state_dict(), state)
    eager.update.epoch(FRAMES, _indices(30)[10:20])
    compiled.become(eager.loss.state_dict(), eager.optimizer.state_dict())
    compiled.update.epoch(FRAMES, _indices(30)[20:])
    for ours, theirs in zip(compiled.state(), straight.state(), strict=True):
        assert _relative(ours, theirs) < 1e-4


def test_reads_hyperparameters_at_every_call(compiled: Learner, eager: Learner) -> None:
    for learner in (compiled, eager):
        learner.update.epoch(FRAMES, _indices(2))
        group = learner.optimizer.param_groups[0]
        group |= {"lr": 1e-2, "betas": (0.5, 0.8), "eps": 1e-2, "weight_decay": 0.1}
        learner.loss.clip_epsilon = 0.01
        learner.update.epoch(FRAMES, _indices(5, seed=1))
    for ours, theirs in zip(compiled.state(), eager.state(), strict=True):
        assert _relative(ours, theirs) < 1e-4


def test_memory_mapped_frames_are_read_where_they_are(compiled: Learner, tmp_path: Any) -> None:
    storage = LazyMemmapStorage(len(FRAMES), scratch_dir=tmp_path)
    storage.set(range(len(FRAMES)), FRAMES)
    compiled.update.epoch(storage[:], _indices(3))
    state = compiled.state()
    compiled.start_over()
    compiled.update.epoch(FRAMES, _indices(3))
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), state, strict=True))


def test_an_index_out_of_bounds_raises_and_changes_nothing(compiled: Learner) -> None:
    before = compiled.state()
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled.update.epoch(FRAMES, [torch.tensor([0, len(FRAMES)])])
    assert all(torch.equal(p, q) for p, q in zip(compiled.state(), before, strict=False))


# Non-finite losses and gradients -----------------------------------------------------------------


def _bad_frames(kind: str) -> TensorDictBase:
    frames = FRAMES.clone()
    if kind == "loss":
        frames["advantage"][7] = torch.nan
    else:  # a finite squared error, whose gradient's norm overflows float32
        frames["value_target"][7] = 1.8e19
    return frames


@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_what_is_not_finite_changes_nothing_until_cleared(
    mode: str, kind: str, request: pytest.FixtureRequest
) -> None:
    learner: Learner = request.getfixturevalue(mode)
    frames, bad, good = _bad_frames(kind), torch.tensor([7, 3]), _indices(3)
    learner.update.epoch(FRAMES, good)
    learner.update.raise_if_nonfinite()
    before = learner.state()
    metrics = learner.update.epoch(frames, [bad])
    assert torch.isfinite(metrics["loss_critic"]).all()
    learner.update.epoch(FRAMES, good)
    assert all(torch.equal(p, q) for p, q in zip(learner.state(), before, strict=True))
    assert learner.update.nonfinite.item()
    for _ in range(2):  # it stays up until it is cleared
        with pytest.raises(NonFiniteError, match=r"update 0 since .* rows \[7, 3\]") as caught:
            learner.update.raise_if_nonfinite()
        assert caught.value.update == 0
        assert caught.value.index is not None
        assert torch.equal(caught.value.index, bad)
    learner.update.clear_nonfinite()
    learner.update.raise_if_nonfinite()
    learner.update.epoch(FRAMES, good)
    assert not any(torch.equal(p, q) for p, q in zip(learner.state(), before, strict=True))


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_names_the_first_update_and_the_index_of_its_minibatch(
    mode: str, request: pytest.FixtureRequest
) -> None:
    learner: Learner = request.getfixturevalue(mode)
    frames = _bad_frames("loss")
    rows = [torch.tensor(r) for r in ([1, 2], [3, 4], [5, 7], [7, 8])]
    for index in rows:
        minibatch = frames[index]
        minibatch["index"] = index + 100
        learner.update(minibatch)
    with pytest.raises(NonFiniteError, match=r"update 2 since") as caught:
        learner.update.raise_if_nonfinite()
    assert caught.value.index is not None
    assert caught.value.index.tolist() == [105, 107]


def test_a_minibatch_without_index_is_reported_without(eager: Learner) -> None:
    eager.update(_bad_frames("loss")[:16])
    with pytest.raises(NonFiniteError, match="was not finite: parameters") as caught:
        eager.update.raise_if_nonfinite()
    assert caught.value.index is None


def test_forgets_indices_that_are_known_to_be_well(
    eager: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amber_trl.training._guard._MAX_REMEMBERED", 4)
    eager.update.epoch(FRAMES, _indices(9))
    eager.update.epoch(_bad_frames("loss"), [torch.tensor([7, 1])])
    eager.update.epoch(FRAMES, _indices(9))
    with pytest.raises(NonFiniteError, match=r"update 1 since .* rows \[7, 1\]"):
        eager.update.raise_if_nonfinite()


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
        actor = gaussian_actor(OBSERVATION_SIZE, ACTION_SIZE, normalizer=normalizer)
        critic = value_critic(OBSERVATION_SIZE, normalizer=normalizer)
        loss = AmberPPOLoss(actor, critic, clip_epsilon=0.3, functional=False)
        groups = [
            {"params": list(actor.parameters()), "weight_decay": 0.1},
            {"params": list(critic.parameters()), "lr": 1e-3, "betas": (0.8, 0.99)},
        ]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, eps=1e-5)
        return Learner(loss, optimizer, compile=compile, max_grad_norm=0.5)

    ours, theirs = learner(True), learner(False)
    frames = FRAMES.to(torch.float64)
    for k, index in enumerate(_indices(STEPS)):
        for x in (ours, theirs):
            x.anneal(1 - k / STEPS)
        metrics, expected = (x.update.epoch(frames, [index]) for x in (ours, theirs))
        torch.testing.assert_close(metrics.to_dict(), expected.to_dict(), rtol=1e-8, atol=1e-8)
        assert "grad_norm" in metrics
    for p, q in zip(ours.state(), theirs.state(), strict=True):
        assert _relative(p, q) <= 1e-8


class _PartlyUsed(torch.nn.Module):
    """A linear layer that keeps another one for nothing."""

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
        optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2, weight_decay=0.1)
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
        metrics, expected = (x.update.epoch(frames, _indices(20)) for x in (ours, theirs))
        torch.testing.assert_close(metrics.to_dict(), expected.to_dict(), rtol=1e-4, atol=1e-5)
        for p, q in zip(ours.state(), theirs.state(), strict=True):
            assert _relative(p, q) < 1e-4


# Refusals ----------------------------------------------------------------------------------------


def _adam(loss: LossModule, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(loss.parameters(), **options)


def test_refuses_a_functional_loss_by_name() -> None:
    loss = make_loss(functional=True)
    with pytest.raises(ValueError, match="ClipPPOLoss was built with functional=True"):
        UpdateStep(loss, _adam(loss), compile=True)


class _OwnAdam(torch.optim.Adam):
    pass


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, _OwnAdam])
def test_refuses_other_optimizers_by_name(kind: type[torch.optim.Optimizer]) -> None:
    loss = make_loss(functional=False)
    optimizer = kind(loss.parameters(), lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=f"the optimizer is {kind.__name__}, and only"):
        UpdateStep(loss, optimizer, compile=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amsgrad": True}, "amsgrad=True"),
        ({"maximize": True}, "maximize=True"),
        ({"differentiable": True}, "differentiable=True"),
        ({"lr": torch.tensor(1e-3)}, "lr is a tensor"),
    ],
)
def test_refuses_options_by_name(options: dict[str, Any], message: str) -> None:
    loss = make_loss(functional=False)
    with pytest.raises(ValueError, match=message):
        UpdateStep(loss, _adam(loss, **options), compile=True)


def test_refuses_options_and_parameters_that_come_later(compiled: Learner) -> None:
    group = compiled.optimizer.param_groups[0]
    group["amsgrad"] = True
    with pytest.raises(ValueError, match="amsgrad=True"):
        compiled.update(FRAMES[:64])
    group["amsgrad"] = False
    compiled.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    try:
        with pytest.raises(ValueError, match="has 13 parameters and had 12"):
            compiled.update(FRAMES[:64])
    finally:
        compiled.optimizer.param_groups.pop()


def test_refuses_metrics_per_frame() -> None:
    class PerFrame(ClipPPOLoss):
        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            emitted: TensorDictBase = super().forward(tensordict)
            return emitted.set("per_frame", tensordict["advantage"])

    loss = make_loss(PerFrame, functional=False)
    update = UpdateStep(loss, _adam(loss), compile=True)
    with pytest.raises(ValueError, match="'per_frame' with shape \\(64, 1\\) for 64 frames"):
        update(FRAMES[:16])


def test_says_that_a_loss_cannot_be_compiled() -> None:
    class Sorted(ClipPPOLoss):
        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            torch._dynamo.graph_break()
            emitted: TensorDictBase = super().forward(tensordict)
            return emitted

    loss = make_loss(Sorted, functional=False)
    update = UpdateStep(loss, _adam(loss), compile=True)
    with pytest.raises(
        RuntimeError, match=r"Sorted cannot be compiled as one graph.*compile=False"
    ):
        update(FRAMES[:16])


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_refuses_an_epoch_of_nothing(mode: str, request: pytest.FixtureRequest) -> None:
    learner: Learner = request.getfixturevalue(mode)
    with pytest.raises(ValueError, match="indices is empty"):
        learner.update.epoch(FRAMES, [])


def test_refuses_frames_that_lack_a_key(compiled: Learner) -> None:
    with pytest.raises(KeyError, match="value_target"):
        compiled.update(FRAMES[:64].exclude("value_target"))


# CUDA --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graphs_agree_with_eager() -> None:
    def learner(compile: bool) -> Learner:
        loss = make_loss(functional=False).to("cuda")
        optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5, fused=True)
        return Learner(loss, optimizer, compile=compile)

    ours, theirs = learner(True), learner(False)
    frames, indices = FRAMES.to("cuda"), [index.to("cuda") for index in _indices(40)]
    for k in range(4):
        for x in (ours, theirs):
            x.anneal(1 - k / 4)
            x.update.epoch(frames, indices[10 * k : 10 * k + 8])
            for index in indices[10 * k + 8 : 10 * k + 10]:
                x.update(frames[index])
        for p, q in zip(ours.state(), theirs.state(), strict=True):
            assert _relative(p, q) < 1e-4
        ours.become(theirs.loss.state_dict(), theirs.optimizer.state_dict())
    before = ours.state()
    ours.update.epoch(_bad_frames("loss").to("cuda"), [torch.tensor([7, 3], device="cuda")])
    assert all(torch.equal(p, q) for p, q in zip(ours.state(), before, strict=True))
    with pytest.raises(NonFiniteError, match=r"rows \[7, 3\]"):
        ours.update.raise_if_nonfinite()
