"""Which actors are recorded, and that every actor's batches equal those of an actor called on every frame."""

import copy
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torchrl.modules import AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule

from amber_trl.collectors import GymCollector
from tests.collectors.problem import Float32, assert_same_batch, gaussian, single

Change = Callable[[Any], None]


def collect(
    actor: TensorDictModuleBase, change: Change, *, capture: bool, batches: int = 2
) -> tuple[list[TensorDictBase], str | None]:
    """Batches of a copy of the actor, which changes after each batch."""
    actor = copy.deepcopy(actor)
    env = single("Pendulum-v1", max_episode_steps=7)
    env.set_seed(0)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    collector = GymCollector(env, actor, frames_per_batch=10, capture=capture)
    found = []
    for _, batch in zip(range(batches), collector, strict=False):
        found.append(batch)
        change(actor)
    return found, collector.capture_failure


def check(actor: TensorDictModuleBase, change: Change = lambda actor: None) -> str | None:
    """Asserts equality with an actor called on every frame; returns why it was not recorded."""
    actual, failure = collect(actor, change, capture=True)
    expected, _ = collect(actor, change, capture=False)
    for one, other in zip(actual, expected, strict=True):
        assert_same_batch(one, other)
    return failure


def acting(forward: Callable[[Any, Tensor], Tensor], **attributes: Any) -> TensorDictModule:
    """An actor from a function of a network and the observation."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Float32(3, 1)
            self.register_buffer("level", torch.tensor(0.3))
            for name, value in attributes.items():
                setattr(self, name, value)

        def forward(self, observation: Tensor) -> Tensor:
            return forward(self, observation)

    return TensorDictModule(Network(), ["observation"], ["action"])


def _noise(self: Any, x: Tensor) -> Tensor:
    return self.inner(x) + self.sigma * torch.randn(1)


def _in_place(self: Any, x: Tensor) -> Tensor:
    output = torch.zeros(2)
    output[1:] = self.inner(x)
    output.view(2, 1)[0].add_(torch.rand(()))
    return output.sum().reshape(1)


def _nested(self: Any, x: Tensor) -> Tensor:
    first, *others = torch.split(torch.cat([self.inner(x), x.float()]), 1)
    largest = torch.stack(others).max(dim=0)
    return torch.add(input=first, other=largest.values) * (largest.indices + 1)


def _autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        action: Tensor = self.inner(x)
    return action.float()


def _branch(self: Any, x: Tensor) -> Tensor:
    return self.inner(x) * (1 if self.level > 0.5 else 2)


def _explore(self: Any, x: Tensor) -> Tensor:
    return torch.where(torch.rand(()) < self.level, torch.rand(1), self.inner(x))


def _dropout(self: Any, x: Tensor) -> Tensor:
    return torch.dropout(self.inner(x), 0.5, self.training)


RECORDED: dict[str, TensorDictModuleBase] = {
    "noise": acting(_noise, sigma=0.5),
    "writes in place into its own tensors": acting(_in_place),
    "lists, tuples and keywords": acting(_nested),
    "the same action always": acting(lambda self, x: self.level.expand(1) * 2),
    "dropout": acting(_dropout),
    "batch norm in eval mode": acting(
        lambda self, x: self.norm(self.inner(x)[None])[0], norm=nn.BatchNorm1d(1).eval()
    ),
    "branch on a buffer": acting(_branch),
    "autocast": acting(_autocast),
    "in place on a network's output": acting(lambda self, x: torch.relu_(self.inner(x))),
    "literals": acting(
        lambda self, x: self.inner(x) * torch.tensor(0.5) + torch.tensor([0.1]) + torch.ones(1)
    ),
    "index by integers": acting(lambda self, x: self.inner(x[..., torch.tensor([2, 1, 0])])),
}


@pytest.mark.parametrize("name", RECORDED)
def test_is_recorded(name: str) -> None:
    assert check(RECORDED[name]) is None


def _count(self: Any, x: Tensor) -> Tensor:
    self.kept["a"]["calls"] += 1
    return self.inner(x) * (1 if self.kept["a"]["calls"] > 5 else -1)


def _hooked() -> TensorDictModule:
    """An actor whose sign is drawn by a hook, outside torch."""
    actor = acting(lambda self, x: self.inner(x))
    actor.module.register_forward_hook(
        lambda module, args, output: output if np.random.rand() < 0.5 else -output  # noqa: NPY002
    )
    return actor


def _numpy_noise(self: Any, x: Tensor) -> Tensor:
    return self.inner(x) + float(np.random.normal())  # noqa: NPY002


def _seldom(self: Any, x: Tensor) -> Tensor:
    return self.inner(x) * (10 if self.kept.random() < 0.3 else 1)


def _torch_noise(self: Any, x: Tensor) -> Tensor:
    return self.inner(x) + torch.randn(1, generator=self.kept)


def _set_data(self: Any, x: Tensor) -> Tensor:
    action: Tensor = self.inner(x)
    action.data = action.data + 1
    return action


CALLED: dict[str, TensorDictModuleBase] = {
    "branch on the observation": acting(lambda self, x: self.inner(x) * (1 if x[0] > 0 else -1)),
    "shape that depends on values": acting(lambda self, x: self.inner(x) * x[x > 0].numel()),
    "counter in a dict in a dict": acting(_count, kept={"a": {"calls": 0}}),
    "forward hooks": _hooked(),
    "batch norm in train mode": acting(
        lambda self, x: self.norm(self.inner(x).expand(2, 1))[0] + self.inner(x),
        norm=nn.BatchNorm1d(1),
    ),
    "random numbers of NumPy": acting(_numpy_noise),
    "a generator of NumPy of its own": acting(_seldom, kept=np.random.default_rng(1)),
    "a generator of Python of its own": acting(_seldom, kept=random.Random(2)),
    "a generator of torch of its own": acting(_torch_noise, kept=torch.Generator()),
    "computation in NumPy": acting(lambda self, x: torch.tensor(np.tanh(self.inner(x).numpy()))),
    "writes into its input": acting(lambda self, x: self.inner(x.clamp_(-0.5, 0.5))),
    "returns a buffer that it overwrites": acting(
        lambda self, x: self.own.copy_(self.inner(x)), own=torch.zeros(1)
    ),
    "sets an attribute of a tensor": acting(_set_data),
}


@pytest.mark.parametrize("name", CALLED)
def test_is_called_on_every_frame(name: str, caplog: pytest.LogCaptureFixture) -> None:
    failure = check(CALLED[name])
    assert failure is not None
    assert [failure in message for message in caplog.messages] == [True]  # reported once


def test_values_that_differ_between_calls_are_not_replayed() -> None:
    actor = acting(lambda self, x: self.inner(x) + time.perf_counter() % 1)
    _, failure = collect(actor, lambda actor: None, capture=True)
    assert failure is not None


def _set(name: str, value: Any) -> Change:
    return lambda actor: setattr(actor.module, name, value)


def _replace_parameter(actor: Any) -> None:
    layer = actor.module.inner.layers[0]
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def _swap_data(actor: Any) -> None:
    for parameter in actor.parameters():
        parameter.data = parameter.data * 2


def _step(actor: Any) -> None:
    for parameter in actor.parameters():
        parameter.data.mul_(1.5)


CHANGES: dict[str, tuple[TensorDictModuleBase, Change]] = {
    "parameters in place": (gaussian(3, 1), _step),
    "data of parameters": (gaussian(3, 1), _swap_data),
    "a parameter": (acting(lambda self, x: self.inner(x)), _replace_parameter),
    "a number": (acting(_noise, sigma=0.5), _set("sigma", 0.1)),
    "a limit that the first frame does not reach": (
        acting(lambda self, x: x[2:].clamp(max=self.limit), limit=9.0),
        _set("limit", 0.5),
    ),
    "a buffer it branches on": (acting(_branch), lambda actor: actor.module.level.fill_(0.8)),
    "rate of exploration": (acting(_explore), lambda actor: actor.module.level.fill_(0.6)),
    "train to eval": (acting(_dropout), lambda actor: actor.eval()),
    "to another dtype": (
        acting(lambda self, x: self.inner.layers(x.to(self.inner.layers[0].weight.dtype))),
        lambda actor: actor.double(),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_batches_is_seen(what: str) -> None:
    assert check(*CHANGES[what]) is None


def test_an_actor_that_becomes_recordable_is_recorded() -> None:
    actor = acting(
        lambda self, x: self.inner(x) * (1 if self.fixed or x[0] > 0 else 2), fixed=False
    )
    assert check(actor, _set("fixed", True)) is None


def test_torchrls_exploration_noise_is_supported() -> None:
    spec = single("Pendulum-v1").action_spec
    noise = AdditiveGaussianModule(spec, sigma_init=0.3, annealing_num_steps=10)
    actor = TensorDictSequential(acting(lambda self, x: self.inner(x)), noise)
    check(actor, lambda actor: actor[1].step(5))


def test_private_outputs_that_carry_noise_are_refused() -> None:
    env = single("Pendulum-v1")
    noise = OrnsteinUhlenbeckProcessModule(spec=env.action_spec, annealing_num_steps=10)
    actor = TensorDictSequential(acting(lambda self, x: self.inner(x)), noise)
    with pytest.raises(ValueError, match=r"_ou_prev_noise.*Collector"):
        GymCollector(env, actor, frames_per_batch=10)
