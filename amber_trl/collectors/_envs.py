"""Steps Gymnasium environments and writes their outputs into arrays, time first."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import Env, Space
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv
from torch import Tensor
from torchrl.data import BoundedContinuous, UnboundedContinuous
from torchrl.envs import EnvBase

from amber_trl.errors import NonFiniteDataError

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64
"""Bytes to which torch aligns a new tensor."""

_NUMBERS = (float, int, np.number, np.bool_)


class Environments:
    """The Gymnasium environments of a collector, and the batch being written.

    It steps and resets them itself, whether there is a single one or a ``SyncVectorEnv`` of several. The
    TorchRL environment only provides the specs.
    """

    def __init__(self, env: EnvBase, gym_env: Env[Any, Any] | SyncVectorEnv[Any, Any]) -> None:
        ((key, spec),) = env.observation_spec.items(True, True)
        self.batch_size: torch.Size = env.batch_size
        self.num_envs = self.batch_size.numel()
        self.key = str(key)
        """Key of the observations."""
        self.shape = tuple(spec.shape[len(self.batch_size) :])
        """Shape of one environment's observation."""
        self.carry = torch.zeros(self.num_envs, *self.shape, dtype=spec.dtype)
        """The current observations, ``[envs, ...]``: the next batch's first frame."""
        self.ends: list[tuple[int, int]] = []
        """Frame and environment of each episode end in the batch."""
        vector = isinstance(gym_env, SyncVectorEnv)
        self._envs: list[Any] = list(gym_env.envs) if vector else [gym_env]

    def reset(self, seed: int | None = None) -> None:
        """Resets all environments, with the seeds ``seed``, ``seed + 1`` and so on if it is given."""
        for index in range(self.num_envs):
            own_seed = None if seed is None else seed + index
            self._reset_one(index, self.carry.numpy(), own_seed)

    def start(self, frames: int) -> None:
        """Allocates a batch; its first frame is the observation in ``carry``."""
        self._seen = self._rows(frames + 1)
        self._seen[0] = self.carry
        self._array: Array = self._seen.numpy()
        self._rewards: Array = np.zeros((frames, self.num_envs))
        self._terminated: Array = np.zeros((frames, self.num_envs), dtype=np.bool_)
        self._truncated: Array = np.zeros((frames, self.num_envs), dtype=np.bool_)
        self._finals: list[Array] = []
        self.ends = []
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]

    def inputs(self) -> list[Tensor]:
        """The actor's observation in each frame; filled while the batch is collected."""
        return list((self._seen if self.batch_size else self._seen[:, 0]).unbind(0))

    def check_finite(self, error: Exception) -> None:
        """Names an observation that is not finite as the cause of an actor's error."""
        if not self._seen.isfinite().all():
            raise NonFiniteDataError(
                "the environment returned an observation that is not finite, and the actor "
                "raised an error: correct the environment"
            ) from error

    def step(self, frame: int, actions: Iterable[Any]) -> None:
        """Steps every environment, and resets those whose episode has ended."""
        row, rewards, shape = self._array[frame + 1], self._rewards[frame], self.shape
        over: list[int] = []
        for index, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            observation, reward, terminated, truncated, _ = step(action)
            # NumPy would broadcast another shape, and turn None into NaN.
            if getattr(observation, "shape", None) != shape:
                self._check(observation)
            if not isinstance(reward, _NUMBERS):
                reward = _number("reward", reward)
            row[index] = observation
            rewards[index] = reward
            if terminated is not False or truncated is not False:
                flags = (_number("terminated", terminated), _number("truncated", truncated))
                self._terminated[frame, index], self._truncated[frame, index] = flags
                if any(flags):
                    over.append(index)
        for index in over:
            self.ends.append((frame, index))
            self._finals.append(np.array(row[index]))
            self._reset_one(index, row)

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the batch's frames start from and what they lead to, each ``[frames, envs, ...]``."""
        after = self._seen[1:].clone()
        for end, final in zip(self.ends, self._finals, strict=True):
            after[end] = torch.from_numpy(final)
        self.carry = self._seen[-1].clone()
        leads_to = {
            self.key: after,
            # Adding zero turns -0.0 into 0.0, as in TorchRL, which sums from 0.
            "reward": torch.from_numpy(self._rewards + 0.0),
            "terminated": torch.from_numpy(self._terminated),
            "truncated": torch.from_numpy(self._truncated),
        }
        starts_from = {self.key: self._seen[:-1].contiguous()}
        # The caller owns the batch from here on.
        del self._seen, self._array, self._rewards, self._terminated, self._truncated
        return starts_from, leads_to

    def _rows(self, frames: int) -> Tensor:
        """Zeros ``[frames, envs, ...]``, each frame aligned like a separate tensor.

        Alignment can change the bits of a matrix product, which must equal those of TorchRL's collector.
        """
        dtype = self.carry.dtype
        size, unit = self.carry.numel(), _ALIGNMENT // dtype.itemsize
        rows = torch.zeros(frames, -(-size // unit) * unit, dtype=dtype)
        return rows[:, :size].view(frames, self.num_envs, *self.shape)

    def _reset_one(self, index: int, row: Array, seed: int | None = None) -> None:
        observation, _ = self._envs[index].reset(seed=seed)
        self._check(observation)
        row[index] = observation

    def _check(self, observation: Any) -> None:
        if np.shape(observation) != self.shape:
            raise ValueError(
                f"the environment returned an observation of shape {np.shape(observation)}, but "
                f"its observation space says {self.shape}: correct the environment or its space"
            )


def action_reader(env: EnvBase, action_space: Space[Any]) -> Callable[[Tensor], Iterable[Any]]:
    """The function that turns an actor's action into one action per environment.

    Its arrays share no memory with the tensor, so that no environment can change recorded actions.
    """
    spec = env.full_action_spec[env.action_key]
    as_it_is = type(spec) in (BoundedContinuous, UnboundedContinuous)

    def read(action: Tensor) -> Array:
        return np.array(action.cpu().numpy() if as_it_is else spec.to_numpy(action, safe=False))

    if env.batch_size:
        return read
    if isinstance(action_space, Discrete):
        return lambda action: (int(read(action)),)
    return lambda action: (read(action),)


def _number(name: str, value: Any) -> float:
    if value is None or (found := np.asarray(value)).size != 1:
        raise ValueError(
            f"the environment returned {name}={value!r}, which must be one number: correct it, or "
            "wrap it in an environment that returns one"
        )
    return float(found.item())
