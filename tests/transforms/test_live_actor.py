"""What measuring must not change; and the filter references an actor without owning it."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs import Compose, TransformedEnv
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type
from torchrl.modules import IndependentNormal

from amber_trl.envs import make_env
from amber_trl.modules import gaussian_actor
from amber_trl.transforms import ISStalenessFilter
from tests.transforms.problem import collect, drift, gaussian, make_actor


class Regularised(nn.Module):
    """A network whose output depends on its mode, and whose buffers do in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(3).eval()
        self.mean = nn.Linear(3, 2)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.mean(self.frozen(self.dropout(self.norm(observation))))
        if loc.isnan().any():
            raise ArithmeticError("broken observation")
        return loc, torch.ones_like(loc)


@pytest.fixture
def actor() -> Any:
    actor = make_actor(Regularised(), IndependentNormal, ["loc", "scale"])
    assert actor.training
    return actor


@pytest.fixture
def frames(actor: Any) -> TensorDict:
    frames = collect(actor, 16).reshape(2, 8)
    drift(actor)
    return frames


def modes(actor: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in actor.named_modules()}


def snapshot(actor: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in actor.state_dict().items()}


def test_the_actor_is_unchanged(actor: Any, frames: TensorDict) -> None:
    network = actor.module[0].module
    network.frozen.eval()
    mode, state = modes(actor), snapshot(actor)
    stored = frames.clone()
    generator = torch.get_rng_state()
    first = ISStalenessFilter(actor).measure(frames)
    assert torch.equal(torch.get_rng_state(), generator)
    assert modes(actor) == mode
    assert mode["module.0.module.norm"]
    assert not mode["module.0.module.frozen"]
    assert all(torch.equal(value, state[key]) for key, value in actor.state_dict().items())
    assert all(parameter.grad is None for parameter in actor.parameters())
    assert (frames == stored).all()
    assert {*frames.keys(True, True)} == {*stored.keys(True, True)}
    # In eval mode, so twice the same, and the same as an actor that is in eval mode already.
    actor.eval()
    again = ISStalenessFilter(actor).measure(frames)
    assert torch.equal(first["staleness"], again["staleness"])
    assert not any(modes(actor).values())


def test_an_exception_leaves_the_modes(actor: Any, frames: TensorDict) -> None:
    mode = modes(actor)
    frames["observation"][1, 3] = torch.nan
    with (
        set_exploration_type(ExplorationType.RANDOM),
        pytest.raises(ArithmeticError, match="broken"),
    ):
        ISStalenessFilter(actor).measure(frames)
    assert modes(actor) == mode
    assert exploration_type() != ExplorationType.RANDOM


def test_the_caller_keeps_its_exploration_type(actor: Any, frames: TensorDict) -> None:
    staleness = ISStalenessFilter(actor)
    expected = staleness.measure(frames)["staleness"]
    for kind in (ExplorationType.RANDOM, ExplorationType.MODE):
        with set_exploration_type(kind):
            assert torch.equal(staleness.measure(frames)["staleness"], expected)
            assert exploration_type() == kind


def test_no_graph_is_kept(actor: Any, frames: TensorDict) -> None:
    frames["action_log_prob"] = frames["action_log_prob"].clone().requires_grad_()
    staleness = ISStalenessFilter(actor)
    ledger = staleness.measure(frames)
    assert not any(value.requires_grad for value in ledger.values())
    assert torch.is_grad_enabled()
    frames.pop("action_log_prob")
    gc.collect()
    held = [value for value in vars(staleness).values() if isinstance(value, Tensor)]
    assert held == []


def test_the_actor_is_not_part_of_the_filter(actor: Any) -> None:
    staleness = ISStalenessFilter(actor)
    assert list(staleness.parameters()) == list(staleness.buffers()) == []
    assert staleness.state_dict() == {}
    assert list(staleness.modules()) == [staleness]
    staleness.eval()
    assert actor.training
    staleness.double().apply(lambda module: module.requires_grad_(False))
    assert all(p.requires_grad and p.dtype == torch.float32 for p in actor.parameters())
    assert staleness.actor is actor


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda item: pickle.loads(pickle.dumps(item))]
)
def test_a_copy_has_no_actor(
    actor: Any, frames: TensorDict, duplicate: Callable[[Any], Any]
) -> None:
    staleness = ISStalenessFilter(actor, 0.125, metric="kl", report_only=True, mask_key="in_use")
    twin = duplicate(staleness)
    for use in (twin.measure, twin.select, twin, twin.check_frames):
        with pytest.raises(RuntimeError, match=r"no actor.*set_actor"):
            use(frames)
    assert repr(twin) == repr(staleness)
    twin.set_actor(actor)
    expected = staleness.measure(frames)
    assert (twin.measure(frames) == expected).all()
    assert twin.out_keys == ["in_use"]
    assert (twin.drop_factor, twin.report_only) == (0.125, True)
    twin.drop_factor = 1
    assert staleness.drop_factor == 0.125


def test_another_actor_can_be_set() -> None:
    first, second = gaussian(), gaussian(out_keys=["torque"])
    frames = collect(second, 2, 8)
    staleness = ISStalenessFilter(first)
    staleness.set_actor(second)
    assert staleness.in_keys == ["observation", "torque", "torque_log_prob"]
    assert (staleness.measure(frames)["staleness"] < 1e-5).all()
    with pytest.raises(TypeError, match="get_dist"):
        staleness.set_actor(nn.Linear(3, 2))
    assert staleness.actor is second


@pytest.mark.parametrize("wrap", [lambda transform: transform, Compose])
def test_it_is_not_an_environment_transform(wrap: Callable[[Any], Any]) -> None:
    actor = gaussian_actor(3, 1)
    env = TransformedEnv(make_env("Pendulum-v1", 1, seed=0), wrap(ISStalenessFilter(actor)))
    for use in (lambda: env.rollout(2), env.reset, env.fake_tensordict):
        with pytest.raises(RuntimeError, match="environment transform"):
            use()
    env.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_actor_and_storage_may_be_on_different_devices() -> None:
    actor = gaussian()
    frames = collect(actor, 2, 8)
    drift(actor)
    expected = ISStalenessFilter(actor).measure(frames)
    for actor_device, storage_device in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
        staleness = ISStalenessFilter(actor.to(actor_device), metric="per_dimension")
        ledger = staleness.measure(frames.to(storage_device))
        assert ledger.device is not None
        assert ledger.device.type == storage_device
        torch.testing.assert_close(ledger["kl"].cpu(), expected["kl"], rtol=1e-3, atol=1e-5)
        assert staleness.select(frames.to(storage_device)).batch_size[0] % 8 == 0
