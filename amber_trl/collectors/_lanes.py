"""Steps Gymnasium environments and writes what they give into arrays, time first."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import Env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64
"""Bytes to which torch aligns a new tensor."""


class Lanes(abc.ABC):
    """The environments of a collector, one lane each, and the batch being written.

    Args:
        env: the TorchRL environment, for its specs.
    """

    def __init__(self, env: EnvBase) -> None:
        self.batch_size: torch.Size = env.batch_size
        self.num_lanes = self.batch_size.numel()
        self.specs: dict[str, TensorSpec] = dict(env.observation_spec.items(True, True))
        self.carry: dict[str, Tensor] = {key: self._empty(spec) for key, spec in self.specs.items()}
        """What the environments show now, ``[lanes, ...]``: the next batch's first frame."""
        self.ends: list[tuple[int, int]] = []
        """Frame and lane of each episode's end in the batch."""
        self._batched = bool(self.batch_size)

    @abc.abstractmethod
    def reset(self, *, seed: int | None = None, mask: Array | None = None) -> None:
        """Resets all lanes, or those of a boolean mask, and refreshes ``carry``."""

    @abc.abstractmethod
    def step(self, frame: int, actions: Any) -> None:
        """Takes a step in every lane, and resets those whose episode is over."""

    def start(self, frames: int) -> None:
        """Makes room for a batch; its first frame is what ``carry`` holds."""
        shape = (frames, self.num_lanes)
        self._seen = {key: self._rows(spec, frames + 1) for key, spec in self.specs.items()}
        for key, seen in self._seen.items():
            seen[0] = self.carry[key]
        self._arrays = {key: seen.numpy() for key, seen in self._seen.items()}
        self._rewards: Array = np.zeros(shape)
        self._terminated: Array = np.zeros(shape, dtype=np.bool_)
        self._truncated: Array = np.zeros(shape, dtype=np.bool_)
        self._finals: list[tuple[int, int, dict[str, Any]]] = []
        self.ends = []

    def inputs(self, key: str) -> list[Tensor]:
        """What the actor sees of a key in each frame; filled as the batch goes."""
        seen = self._seen[key]
        return list((seen if self._batched else seen[:, 0]).unbind(0))

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the batch's frames start from and lead to, each ``[frames, lanes, ...]``."""
        after = {key: seen[1:].clone() for key, seen in self._seen.items()}
        for frame, lane, final in self._finals:
            for key, value in final.items():
                after[key][frame, lane] = torch.as_tensor(value)
        self.carry = {key: seen[-1].clone() for key, seen in self._seen.items()}
        before = {key: seen[:-1].contiguous() for key, seen in self._seen.items()}
        # Adding zero turns -0.0 into 0.0, as TorchRL does by summing from 0.
        after["reward"] = torch.from_numpy(self._rewards + 0.0)
        after["terminated"] = torch.from_numpy(self._terminated)
        after["truncated"] = torch.from_numpy(self._truncated)
        # The batch is the caller's now.
        del self._seen, self._arrays, self._rewards, self._terminated, self._truncated
        return before, after

    def _empty(self, spec: TensorSpec) -> Tensor:
        return torch.zeros(self.num_lanes, *self._feature(spec), dtype=spec.dtype)

    def _rows(self, spec: TensorSpec, frames: int) -> Tensor:
        """Zeros ``[frames, lanes, ...]``, each frame aligned as a tensor of its own would be.

        The bits of a matrix product may depend on it, and have to be those of TorchRL's collector.
        """
        feature = self._feature(spec)
        size, unit = self.num_lanes * feature.numel(), _ALIGNMENT // spec.dtype.itemsize
        rows = torch.zeros(frames, -(-size // unit) * unit, dtype=spec.dtype)
        return rows[:, :size].view(frames, self.num_lanes, *feature)

    def _feature(self, spec: TensorSpec) -> torch.Size:
        return spec.shape[len(self.batch_size) :]

    def _end(self, frame: int, lane: int, final: dict[str, Any]) -> None:
        self.ends.append((frame, lane))
        self._finals.append((frame, lane, final))


class DirectLanes(Lanes):
    """Steps the environments themselves: one, or those inside a ``SyncVectorEnv``.

    The vector environment only resets them. It stays as if it had stepped them itself.

    Args:
        env: the TorchRL environment, for its specs.
        gym_env: a Gymnasium environment, or a ``SyncVectorEnv`` with autoreset disabled.
    """

    def __init__(self, env: EnvBase, gym_env: Env[Any, Any] | SyncVectorEnv[Any, Any]) -> None:
        super().__init__(env)
        self._env = gym_env
        self._vector = gym_env if isinstance(gym_env, SyncVectorEnv) else None
        self._envs = [gym_env] if self._vector is None else self._vector.envs
        (self._key,) = self.specs

    def reset(self, *, seed: int | None = None, mask: Array | None = None) -> None:
        """Resets all lanes, or those of a boolean mask, and refreshes ``carry``."""
        self._reset_into(self.carry[self._key].numpy(), mask, seed)

    def start(self, frames: int) -> None:
        """Makes room for a batch; its first frame is what ``carry`` holds."""
        super().start(frames)
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._array = self._arrays[self._key]

    def step(self, frame: int, actions: Iterable[Any]) -> None:
        """Takes a step in every lane, and resets those whose episode is over."""
        array, rewards, after = self._array, self._rewards, frame + 1
        over: list[int] = []
        for lane, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            observation, rewards[frame, lane], terminated, truncated, _ = step(action)
            if frame == 0:
                _check_shape(observation, array.shape[2:])
            array[after, lane] = observation
            if terminated or truncated:
                self._terminated[frame, lane] = terminated
                self._truncated[frame, lane] = truncated
                over.append(lane)
        if over:
            self._restart(frame, over)

    def finish(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the batch's frames start from and lead to, each ``[frames, lanes, ...]``."""
        if self._vector is not None:
            # What a partial reset by others would return for the lanes it does not reset.
            self._vector._env_obs = list(self._array[-1].copy())
        del self._array
        return super().finish()

    def _restart(self, frame: int, over: list[int]) -> None:
        row = self._array[frame + 1]
        for lane in over:
            self._end(frame, lane, {self._key: row[lane].copy()})
        mask = np.zeros(self.num_lanes, dtype=np.bool_)
        mask[over] = True
        self._reset_into(row, mask, None)

    def _reset_into(self, rows: Array, mask: Array | None, seed: int | None) -> None:
        if self._vector is None:
            observation, _ = self._env.reset(seed=seed)
            _check_shape(observation, rows[0].shape)
            rows[0] = observation
            return
        options = {} if mask is None else {"options": {"reset_mask": mask}}
        observations, _ = self._vector.reset(seed=seed, **options)
        lanes = slice(None) if mask is None else mask
        rows[lanes] = observations[lanes]


def _check_shape(observation: Any, expected: tuple[int, ...]) -> None:
    # NumPy would broadcast it.
    if np.shape(observation) != expected:
        raise ValueError(
            f"the environment returned an observation of shape {np.shape(observation)}, but its "
            f"observation space says {expected}: correct its space"
        )


class VectorLanes(Lanes):
    """Steps a vector environment as a whole: one that is wrapped, or that resets by itself.

    Args:
        env: the TorchRL environment, for its specs. What it has besides the observation is read
            from the environment's infos; an info that is absent reads as zero.
        vector: a Gymnasium vector environment whose autoreset is disabled or SAME_STEP.
        observation_key: which key of the specs is the observation.
    """

    def __init__(
        self, env: EnvBase, vector: VectorEnv[Any, Any, Any], observation_key: str
    ) -> None:
        super().__init__(env)
        self._vector = vector
        self._key = observation_key
        self._info_keys = [key for key in self.specs if key != observation_key]
        mode = vector.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP):
            raise ValueError(
                f"the vector environment's autoreset_mode is {mode}: build it with "
                "autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED"
            )
        self._same_step = mode == AutoresetMode.SAME_STEP

    def reset(self, *, seed: int | None = None, mask: Array | None = None) -> None:
        """Resets all lanes, or those of a boolean mask, and refreshes ``carry``."""
        rows = {key: value.numpy() for key, value in self.carry.items()}
        self._reset_into(rows, mask, seed)

    def step(self, frame: int, actions: Any) -> None:
        """Takes a step in every lane, and resets those whose episode is over."""
        observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        self._rewards[frame] = rewards
        self._terminated[frame] = terminated
        self._truncated[frame] = truncated
        rows = {key: array[frame + 1] for key, array in self._arrays.items()}
        self._write(rows, observations, infos, None)
        over = terminated | truncated
        if not over.any():
            return
        for lane in np.flatnonzero(over).tolist():
            self._end(frame, lane, self._final(rows, infos, lane))
        if not self._same_step:
            self._reset_into(rows, over, None)
        elif over.all():
            # TorchRL resets once more when all episodes end in one step.
            self._reset_into(rows, None, None)

    def _final(self, rows: dict[str, Array], infos: dict[str, Any], lane: int) -> dict[str, Any]:
        if not self._same_step:
            return {key: row[lane].copy() for key, row in rows.items()}
        last = infos.get("final_info", {})
        final = {key: last[key][lane] if key in last else 0 for key in self._info_keys}
        return {self._key: infos["final_obs"][lane], **final}

    def _reset_into(self, rows: dict[str, Array], mask: Array | None, seed: int | None) -> None:
        options = {} if mask is None else {"options": {"reset_mask": mask.copy()}}
        observations, infos = self._vector.reset(seed=seed, **options)
        self._write(rows, observations, infos, mask)

    def _write(
        self, rows: dict[str, Array], observations: Array, infos: dict[str, Any], mask: Array | None
    ) -> None:
        lanes = slice(None) if mask is None else mask
        rows[self._key][lanes] = observations[lanes]
        for key in self._info_keys:
            rows[key][lanes] = infos[key][lanes] if key in infos else 0
