"""The compiled step where data or parameters are other than those it was compiled with."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import LossModule

from amber_trl.training import UpdateStep
from tests.training.learner import Replay


class _Regression(LossModule):
    functional = False

    def __init__(self, network: TensorDictModule) -> None:
        super().__init__()
        self.network = network

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        value = self.network(tensordict.select("x"))["y"]
        emitted = {"loss_fit": (value - tensordict["target"]).square().mean()}
        if "weight" in tensordict.keys():  # noqa: SIM118
            emitted["loss_fit"] = ((value - tensordict["target"]) * tensordict["weight"]).mean()
        return TensorDict(emitted)


class _Learner:
    def __init__(self, *, compile: bool) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.loss = _Regression(TensorDictModule(network, ["x"], ["y"]))
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-2)
        self.update = UpdateStep(self.loss, self.optimizer, compile=compile)


@pytest.fixture(scope="module")
def learners() -> tuple[_Learner, _Learner]:
    return _Learner(compile=False), _Learner(compile=True)


def _assert_agree(learners: tuple[_Learner, _Learner], stored: TensorDict, rows: int) -> None:
    indices = torch.arange(2 * rows).split(rows)
    replay = Replay(stored, indices, torch.zeros(1))
    expected, found = (learner.update.epoch(replay) for learner in learners)
    for key in expected.keys():  # noqa: SIM118
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)
    eager, compiled = (list(learner.loss.parameters()) for learner in learners)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)


def test_entries_may_be_one_tensor_and_later_two(learners: tuple[_Learner, _Learner]) -> None:
    one, two = torch.randn(40, 1), torch.randn(40, 1)
    data = TensorDict({"x": torch.randn(40, 3), "target": one, "weight": one}, [40])
    _assert_agree(learners, data, 1)  # compiled with these entries, for one row
    _assert_agree(learners, data.copy().set("weight", two), 1)


def test_a_key_may_be_missing_later(learners: tuple[_Learner, _Learner]) -> None:
    data = TensorDict({"x": torch.randn(128, 3), "target": torch.randn(128, 1)}, [128])
    _assert_agree(learners, data.copy().set("weight", torch.randn(128, 1)), 64)
    _assert_agree(learners, data, 64)


def test_replaced_parameters_are_refused(learners: tuple[_Learner, _Learner]) -> None:
    _, learner = learners
    data = TensorDict({"x": torch.randn(64, 3), "target": torch.randn(64, 1)}, [64])
    layer = learner.loss.network.module[2]
    kept = layer.weight
    layer.weight = nn.Parameter(torch.zeros_like(kept))
    with pytest.raises(ValueError, match=r"are other tensors than when .*build a new UpdateStep"):
        learner.update(data)
    layer.weight = kept
    learner.update(data)
