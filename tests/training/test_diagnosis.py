"""What a non-finite update says about where it comes from."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.objectives import LossModule

from amber_trl.training import NonFiniteError, UpdateStep
from tests.training.learner import FRAMES, Learner, bad_frames

_AGE = torch.tensor([1, 0, 3, 2])  # four batches of 1024 frames


def _cause(learner: Learner, frames: object, rows: list[int]) -> str:
    learner.update.epoch(frames, [torch.tensor(rows)])
    with pytest.raises(NonFiniteError) as caught:
        learner.update.raise_if_nonfinite(frames, _AGE)
    assert caught.value.cause is not None
    assert caught.value.cause in str(caught.value)
    return caught.value.cause


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_names_a_stored_value_its_frame_and_age(mode: str, request: pytest.FixtureRequest) -> None:
    cause = _cause(request.getfixturevalue(mode), bad_frames("loss"), [5, 7, 9])
    assert "the stored 'advantage', row 7: frame 7 of the batch of age 1" in cause


def test_names_the_gradient_of_a_frame_whose_values_are_all_finite(eager: Learner) -> None:
    frames = FRAMES.clone()
    frames["value_target"][2050] = 1.2e19  # its square is finite, its gradient's norm is not
    cause = _cause(eager, frames, [5, 2050])
    assert "gradient" in cause
    assert "row 2050: frame 2 of the batch of age 3" in cause


def test_names_a_loss_that_overflows(eager: Learner) -> None:
    frames = FRAMES.clone()
    frames["value_target"][3] = 1e30
    assert "loss_critic, row 3" in _cause(eager, frames, [0, 3])


def test_names_a_parameter(eager: Learner) -> None:
    name, parameter = next(iter(eager.loss.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = torch.nan
    assert f"the parameter {name}" in _cause(eager, FRAMES, [0, 1])


class _Product(LossModule):
    """Fits the product of all rows, which overflows where that of two does not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        return TensorDict({"loss_fit": self.weight * tensordict["x"].prod()})


def test_says_when_no_frame_fails_alone() -> None:
    loss = _Product()
    update = UpdateStep(loss, torch.optim.Adam(loss.parameters()))
    frames = TensorDict({"x": torch.full((64,), 1e6)}, [64])
    update.epoch(frames, [torch.arange(64)])
    with pytest.raises(NonFiniteError) as caught:
        update.raise_if_nonfinite(frames)
    assert caught.value.cause == "What is not finite: loss_fit"


def test_leaves_gradients_generator_and_stored_frames_alone(eager: Learner) -> None:
    frames = bad_frames("gradient")
    eager.update.epoch(frames, [torch.tensor([7])])
    before, generator = frames.clone(), torch.random.get_rng_state()
    gradients = [p.grad for p in eager.loss.parameters()]
    with pytest.raises(NonFiniteError):
        eager.update.raise_if_nonfinite(frames, _AGE)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert all(p.grad is g for p, g in zip(eager.loss.parameters(), gradients, strict=True))
    assert (frames == before).all()
    assert set(frames.keys()) == set(before.keys())
