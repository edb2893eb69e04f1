"""Components to save: a small learner in which every part changes at each step."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchrl.checkpoint import GlobalRNGState

from amber_trl.checkpoints import Checkpoints


class Counter:
    """Numbers, strings and nested containers."""

    def __init__(self) -> None:
        self.frames = 0

    def state_dict(self) -> dict[str, Any]:
        return {"frames": self.frames, "nested": [{"name": "x", "rows": (1, 2.5, None, True)}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["nested"] == [{"name": "x", "rows": (1, 2.5, None, True)}]
        self.frames = state["frames"]


class Learner:
    """A network that fits noise; a step moves weights, momenta, counter and generator."""

    def __init__(self) -> None:
        self.network = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.1)
        self.counter = Counter()

    def step(self, frames: int = 10) -> None:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.network(torch.randn(4, 3)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.counter.frames += frames

    def components(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "optimizer": self.optimizer,
            "counter": self.counter,
            "generators": GlobalRNGState(),
        }

    def checkpoints(self, directory: Path, *, keep_last: int = 2) -> Checkpoints:
        return Checkpoints(directory, self.components(), keep_last=keep_last)

    def fingerprint(self) -> list[float]:
        """Everything that is saved, and the next random number, without drawing it."""
        generator = torch.random.get_rng_state()
        values = [
            *self.network.weight.flatten().tolist(),
            *self.optimizer.state[self.network.weight]["exp_avg"].flatten().tolist(),
            float(self.counter.frames),
            torch.rand(()).item(),
        ]
        torch.random.set_rng_state(generator)
        return values


def stepped(
    directory: Path, steps: int, *, keep_last: int = 2
) -> tuple[Learner, list[list[float]]]:
    """A learner after some steps, with a checkpoint and a fingerprint for each step."""
    learner = Learner()
    checkpoints = learner.checkpoints(directory, keep_last=keep_last)
    fingerprints = []
    for _ in range(steps):
        learner.step()
        checkpoints.save(learner.counter.frames, score=None)
        fingerprints.append(learner.fingerprint())
    return learner, fingerprints
