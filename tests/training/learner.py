"""A loss, its optimiser and update step, on frames that every test of the step uses."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.objectives import LossModule

from amber_trl.training import UpdateStep
from tests.training.problem import make_loss, make_minibatch

FRAMES = make_minibatch(4096, seed=1)
SIZES = (64, 512, 37, 2)


@dataclass
class Replay:
    """The part of a buffer that an epoch reads; draws given rows."""

    storage: TensorDictBase
    indices: Sequence[Tensor]
    age: Tensor

    def epoch(self) -> Sequence[Tensor]:
        return self.indices


class Learner:
    """A loss, its optimiser and update step, which can start over without recompiling."""

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
        # Adam uses the given step counts: a shared one would count twice.
        self.optimizer.load_state_dict(copy.deepcopy(optimizer_state))

    def epoch(self, frames: TensorDictBase, indices: Sequence[Tensor]) -> TensorDict:
        """An epoch over four batches, the newest of them in slot 1."""
        replay: Any = Replay(frames, indices, torch.tensor([1, 0, 3, 2]))
        return self.update.epoch(replay)

    def state(self) -> list[Tensor]:
        """A copy of parameters and optimiser state."""
        parameters = list(self.loss.parameters())
        entries = [self.optimizer.state.get(p, {}) for p in parameters]
        moments = [value for entry in entries for _, value in sorted(entry.items())]
        return [tensor.detach().clone() for tensor in parameters + moments]

    def anneal(self, left: float) -> None:
        self.loss.clip_epsilon = 0.3 * left
        self.optimizer.param_groups[0]["lr"] = 3e-4 * left


def ppo_learner(*, compile: bool) -> Learner:
    """Stock PPO with the paper's Adam; the same parameters every time."""
    loss = make_loss(functional=False)
    return Learner(loss, torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5), compile=compile)


class Regression(LossModule):
    """A small loss, which compiles in seconds; a stored weight makes it a different one."""

    functional = False

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)]
        self.network = TensorDictModule(torch.nn.Sequential(*layers), ["x"], ["y"])
        self.power = 2  # read once, when the graph is built

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        error = self.network(tensordict.select("x"))["y"] - tensordict["target"]
        if "weight" in tensordict.keys():  # noqa: SIM118
            return TensorDict({"loss_fit": (error * tensordict["weight"]).mean()})
        return TensorDict({"loss_fit": error.abs().pow(self.power).mean()})


def regression_learner(*, compile: bool, power: int = 2) -> Learner:
    loss = Regression()
    loss.power = power
    return Learner(loss, torch.optim.Adam(loss.parameters(), lr=1e-2), compile=compile)


def regression_frames(rows: int = 128) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    return TensorDict({"x": x, "target": x.sum(-1, keepdim=True).sin()}, [rows])


def draw_indices(steps: int, seed: int = 0) -> list[Tensor]:
    """One minibatch of rows per step, of changing size."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(len(FRAMES), (SIZES[k % len(SIZES)],), generator=generator)
        for k in range(steps)
    ]


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The distance of two tensors divided by the norm of the second."""
    return float(((ours - theirs).norm() / theirs.norm().clamp_min(1e-12)).detach())


def bad_frames(kind: str) -> TensorDictBase:
    """The frames with one, row 7, that makes ``"loss"`` or ``"gradient"`` not finite."""
    frames = FRAMES.clone()
    if kind == "loss":
        frames["advantage"][7] = torch.nan
    else:  # a finite squared error, whose gradient's norm overflows float32
        frames["value_target"][7] = 1.8e19
    return frames
