"""A collection that can be saved in one process and continued in another."""

import io
from typing import Any

import torch
from tensordict import TensorDictBase

from amber_trl.collectors import GymCollector
from amber_trl.envs import SimulatorState, make_env
from amber_trl.modules import categorical_actor, gaussian_actor

FRAMES = 45  # per environment and batch


class Collecting:
    """Environments of one task, a random actor, and their saved state.

    Episodes end after at most 30 frames, so that each batch of 45 has resets and ends in the middle of an
    episode.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self.env = make_env(env_id, num_envs, seed=seed, max_episode_steps=30)
        sizes = self.env.observation_spec["observation"].shape[-1], self.env.action_spec.shape[-1]
        torch.manual_seed(1)
        if self.env.action_spec.dtype.is_floating_point:
            actor = gaussian_actor(*sizes)
        else:
            actor = categorical_actor(sizes[0], self.env.action_spec.space.n)
        self.collector = GymCollector(self.env, actor, frames_per_batch=FRAMES * num_envs)
        self.simulators = SimulatorState(self.env)

    def batches(self, number: int) -> list[TensorDictBase]:
        return [self.collector.rollout() for _ in range(number)]

    def save(self) -> bytes:
        """Everything needed to continue, as it would be in a file."""
        file = io.BytesIO()
        state = {
            "simulators": self.simulators.state_dict(),
            "collector": dict(self.collector.state_dict()),
            "generator": torch.random.get_rng_state(),
        }
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
        self.simulators.load_state_dict(state["simulators"])
        self.collector.load_state_dict(state["collector"], restore_carrier=True)
        torch.random.set_rng_state(state["generator"])


def assert_same_bits(one: list[TensorDictBase], other: list[TensorDictBase]) -> None:
    for first, second in zip(one, other, strict=True):
        for key, value in first.items(True, True):
            assert torch.equal(value, second.get(key)), key
