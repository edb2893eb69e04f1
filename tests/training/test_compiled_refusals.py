"""Unsupported losses and optimisers are refused by name."""

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.objectives import KLPENPPOLoss

from amber_trl.training import UpdateStep
from tests.training.learner import (
    FRAMES,
    Learner,
    Regression,
    regression_frames,
    regression_learner,
)
from tests.training.problem import OBSERVATION_SIZE, make_loss


def compiled_adam(loss: Any, **options: Any) -> UpdateStep:
    return UpdateStep(loss, torch.optim.Adam(loss.parameters(), **options), compile=True)


def test_a_functional_loss() -> None:
    with pytest.raises(ValueError, match="ClipPPOLoss was built with functional=True"):
        compiled_adam(make_loss(functional=True))


class _OwnAdam(torch.optim.Adam):
    pass


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, _OwnAdam])
def test_other_optimizers(kind: Any) -> None:
    loss = Regression()
    with pytest.raises(TypeError, match=f"optimizer is a {kind.__name__}, and only"):
        UpdateStep(loss, kind(loss.parameters(), lr=0.1), compile=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amsgrad": True}, "amsgrad=True"),
        ({"maximize": True}, "maximize=True"),
        ({"differentiable": True}, "differentiable=True"),
        ({"lr": torch.tensor(1e-3)}, "a tensor as lr"),
    ],
)
def test_options_of_the_optimizer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compiled_adam(Regression(), **options)


def test_options_and_parameters_that_come_later(compiled: Learner) -> None:
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


class _PerFrame(Regression):
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super().forward(tensordict).set("per_frame", tensordict["target"])


class _Broken(Regression):
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        torch._dynamo.graph_break()
        return super().forward(tensordict)


def test_metrics_per_frame() -> None:
    with pytest.raises(ValueError, match="'per_frame' with shape \\(64, 1\\) for 64 frames"):
        compiled_adam(_PerFrame())(regression_frames(16))


def test_a_loss_that_is_not_one_graph() -> None:
    with pytest.raises(RuntimeError, match=r"_Broken cannot be compiled as one.*compile=False"):
        compiled_adam(_Broken())(regression_frames(16))


@pytest.mark.parametrize("kind", ["batch normalisation", "KL penalty"])
def test_a_refused_loss_is_unchanged(kind: str) -> None:
    frames: TensorDictBase = FRAMES[:64].clone()
    if kind == "KL penalty":  # writes its beta, and emits a value per frame
        loss = make_loss(KLPENPPOLoss, functional=False)
        with torch.no_grad():
            frames = loss.actor_network(frames)
    else:  # writes its statistics in train mode
        loss = make_loss(functional=False)
        loss.critic_network.module.insert(0, torch.nn.BatchNorm1d(OBSERVATION_SIZE))
    before = copy.deepcopy(loss.state_dict())
    update = compiled_adam(loss)
    with pytest.raises((RuntimeError, ValueError), match="compile=False"):
        update(frames)
    after = loss.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_failing_compiler_is_reported_with_its_requirements() -> None:
    learner = regression_learner(compile=True)
    options = {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
    with (
        torch._inductor.config.patch(options),
        pytest.raises(RuntimeError, match=r"failed on Regression.*TORCHINDUCTOR_CACHE_DIR"),
    ):
        learner.update(regression_frames())


def test_frames_that_lack_a_key(compiled: Learner) -> None:
    with pytest.raises(KeyError, match="value_target"):
        compiled.update(FRAMES[:64].exclude("value_target"))
