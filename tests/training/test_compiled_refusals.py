"""What cannot be compiled is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss, LossModule

from amber_trl.training import UpdateStep
from tests.training.learner import FRAMES, Learner, regression_frames, regression_learner
from tests.training.problem import OBSERVATION_SIZE, make_loss


def _adam(loss: LossModule, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(loss.parameters(), **options)


def assert_same(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)


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
    with pytest.raises(TypeError, match=f"optimizer is a {kind.__name__}, and only"):
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
        with pytest.raises(ValueError, match="are other tensors than when"):
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


def test_says_that_batch_normalisation_in_train_mode_cannot_be_compiled() -> None:
    loss = make_loss(functional=False)
    loss.critic_network.module.insert(0, torch.nn.BatchNorm1d(OBSERVATION_SIZE))
    before = copy.deepcopy(loss.state_dict())
    update = UpdateStep(loss, _adam(loss), compile=True)
    with pytest.raises(RuntimeError, match=r"ClipPPOLoss cannot be compiled.*compile=False"):
        update(FRAMES[:16])
    assert_same(loss.state_dict(), before)


def test_a_refused_loss_is_as_it_was() -> None:
    loss = make_loss(KLPENPPOLoss, functional=False)
    with torch.no_grad():
        frames = loss.actor_network(FRAMES[:64].clone())
    before = copy.deepcopy(loss.state_dict())
    update = UpdateStep(loss, _adam(loss), compile=True)
    with pytest.raises(ValueError, match="'kl' with shape"):
        update(frames)
    assert_same(loss.state_dict(), before)


def test_says_what_a_compiler_that_fails_needs() -> None:
    learner = regression_learner(compile=True, power=5)  # in no cache
    with (
        torch._inductor.config.patch(
            {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
        ),
        pytest.raises(RuntimeError, match=r"failed on Regression.*TORCHINDUCTOR_CACHE_DIR"),
    ):
        learner.update(regression_frames())


def test_refuses_frames_that_lack_a_key(compiled: Learner) -> None:
    with pytest.raises(KeyError, match="value_target"):
        compiled.update(FRAMES[:64].exclude("value_target"))
