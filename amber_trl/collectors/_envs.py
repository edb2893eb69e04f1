"""Steps Gymnasium environments and writes what they give into arrays, time first."""

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

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64
"""Bytes to which torch aligns a new tensor."""

_NUMBERS = (float, int, np.number, np.bool_)


class Environments:
    """The Gymnasium environments of a collector, and the batch being written.

    It steps them itself: one, or those inside a ``SyncVectorEnv``. The vector environment only
    resets them, and stays as if it had stepped them itself.

    Args:
        env: the TorchRL environment, for its specs.
        gym_env: the Gymnasium environment in it, or the ``SyncVectorEnv`` with autoreset disabled.
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
        """What the environments show now, ``[envs, ...]``: the next batch's first frame."""
        self.ends: list[tuple[int, int]] = []
        """Frame and environment of each episode's end in the batch."""
        self._env = gym_env
        self._vector = gym_env if isinstance(gym_env, SyncVectorEnv) else None
        self._envs: list[Any] = [gym_env] if self._vector is None else list(self._vector.envs)

    def reset(self, *, seed: int | None = None, mask: Array | None = None) -> None:
        """Resets all environments, or those of a boolean mask, and refreshes ``carry``."""
        self._reset_into(self.carry.numpy(), mask, seed)

    def start(self, frames: int) -> None:
        """Makes room for a batch; its first frame is what ``carry`` holds."""
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
        """What the actor sees in each frame; filled as the batch goes."""
        return list((self._seen if self.batch_size else self._seen[:, 0]).unbind(0))

    def step(self, frame: int, actions: Iterable[Any]) -> None:
        """Takes a step in every environment, and resets those whose episode is over."""
        array, rewards, shape, after = self._array, self._rewards, self.shape, frame + 1
        over: list[int] = []
        for index, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            observation, reward, terminated, truncated, _ = step(action)
            # NumPy would broadcast another shape, and turn None into NaN.
            if getattr(observation, "shape", None) != shape:
                _check_observation(observation, shape)
            if not isinstance(reward, _NUMBERS):
                reward = _number("reward", reward)
            array[after, index] = observation
            rewards[frame, index] = reward
            if terminated is not False or truncated is not False:
                self._terminated[frame, index] = terminated = _flag("terminated", terminated)
                self._truncated[frame, index] = truncated = _flag("truncated", truncated)
                if terminated or truncated:
                    over.append(index)
        if over:
            self._restart(frame, over)

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the batch's frames start from and lead to, each ``[frames, envs, ...]``."""
        if self._vector is not None:
            # What a partial reset by others would return for the ones it does not reset.
            self._vector._env_obs = list(self._array[-1].copy())
        after = self._seen[1:].clone()
        for end, final in zip(self.ends, self._finals, strict=True):
            after[end] = torch.from_numpy(final)
        self.carry = self._seen[-1].clone()
        leads_to = {
            self.key: after,
            # Adding zero turns -0.0 into 0.0, as TorchRL does by summing from 0.
            "reward": torch.from_numpy(self._rewards + 0.0),
            "terminated": torch.from_numpy(self._terminated),
            "truncated": torch.from_numpy(self._truncated),
        }
        starts_from = {self.key: self._seen[:-1].contiguous()}
        # The batch is the caller's now.
        del self._seen, self._array, self._rewards, self._terminated, self._truncated
        return starts_from, leads_to

    def _rows(self, frames: int) -> Tensor:
        """Zeros ``[frames, envs, ...]``, each frame aligned as a tensor of its own would be.

        The bits of a matrix product may depend on it, and have to be those of TorchRL's collector.
        """
        dtype = self.carry.dtype
        size, unit = self.carry.numel(), _ALIGNMENT // dtype.itemsize
        rows = torch.zeros(frames, -(-size // unit) * unit, dtype=dtype)
        return rows[:, :size].view(frames, self.num_envs, *self.shape)

    def _restart(self, frame: int, over: list[int]) -> None:
        row = self._array[frame + 1]
        self.ends += [(frame, index) for index in over]
        self._finals += [np.array(row[index]) for index in over]
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[over] = True
        self._reset_into(row, mask, None)

    def _reset_into(self, rows: Array, mask: Array | None, seed: int | None) -> None:
        if self._vector is None:
            observation, _ = self._env.reset(seed=seed)
            _check_observation(observation, self.shape)
            rows[0] = observation
            return
        options = {} if mask is None else {"options": {"reset_mask": mask}}
        observations, _ = self._vector.reset(seed=seed, **options)
        chosen = slice(None) if mask is None else mask
        rows[chosen] = observations[chosen]


def action_reader(env: EnvBase, action_space: Space[Any]) -> Callable[[Tensor], Iterable[Any]]:
    """The function that turns an actor's action into one action for each environment.

    Its arrays share no memory with the tensor, so that no environment can change a record.
    """
    spec = env.full_action_spec[env.action_key]
    if type(spec) in (BoundedContinuous, UnboundedContinuous):

        def read(action: Tensor) -> Array:
            return action.cpu().numpy().copy()

    else:

        def read(action: Tensor) -> Array:
            return np.array(spec.to_numpy(action, safe=False))

    if env.batch_size:
        return read
    if isinstance(action_space, Discrete):
        return lambda action: (int(read(action)),)
    return lambda action: (read(action),)


def _check_observation(observation: Any, expected: tuple[int, ...]) -> None:
    if np.shape(observation) != expected:
        raise ValueError(
            f"the environment returned an observation of shape {np.shape(observation)}, but its "
            f"observation space says {expected}: correct the environment or its space"
        )


def _number(name: str, value: Any) -> float:
    if value is None or (found := np.asarray(value)).size != 1:
        raise ValueError(
            f"the environment returned {name}={value!r}, which must be one number: correct it, or "
            "wrap it in an environment that returns one"
        )
    return float(found.item())


def _flag(name: str, value: Any) -> bool:
    return bool(value if isinstance(value, bool | np.bool_) else _number(name, value))
