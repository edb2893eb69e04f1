"""Finished training episodes, read off collected batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

WINDOW = 100
"""Episodes over which returns are averaged: the last hundred, as the AMBER paper does."""


class Episode(NamedTuple):
    """One finished training episode; a row of ``episodes.csv``."""

    frame: int
    """Frames of all environments up to and including the one that ended it."""
    episode_return: float
    length: int
    terminated: bool
    truncated: bool


class EpisodeRecorder:
    """Turns ``[E, T]`` batches into finished episodes, across the borders of batches.

    Frame ``t`` of environment ``e`` in a batch that starts after ``f`` frames is frame
    ``f + t * E + e + 1`` of the training, as if the environments were stepped in turn. Returns
    accumulate in float64. The work per batch is a few vectorised operations on the CPU; only
    finished episodes are looped over.

    It reads ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")`` and
    ``("next", "truncated")`` (false where an environment has no time limit), each ``[..., 1]``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.runs._episodes import EpisodeRecorder
        >>> done = torch.tensor([[False, True], [False, False]])[..., None]
        >>> batch = TensorDict(
        ...     {"next": {"reward": torch.ones(2, 2, 1), "done": done, "terminated": done}}, [2, 2]
        ... )
        >>> EpisodeRecorder().record(batch, frames=0)
        [Episode(frame=3, episode_return=2.0, length=2, terminated=True, truncated=False)]
    """

    def __init__(self) -> None:
        self._returns = torch.zeros(0, dtype=torch.float64)
        self._lengths = torch.zeros(0, dtype=torch.int64)

    def record(self, batch: TensorDictBase, frames: int) -> list[Episode]:
        """Takes in the next batch, ``[E, T]`` or ``[T]``; returns the episodes that ended in it.

        Args:
            batch: in the order collected, with the environment's own rewards and flags.
            frames: frames collected before it.

        Raises:
            ValueError: if the batch has another shape, or another number of environments than
                the ones before it.
        """
        reward, done, terminated, truncated = self._read(batch)
        num_envs = len(done)
        # Segment k of a lane holds the frames after its k-th end in this batch; the first segment
        # continues what the last batch left.
        segment = done.cumsum(1) - done.long()
        num_segments = int(done.sum(1).max()) + 1
        returns = reward.new_zeros(num_envs, num_segments)
        lengths = torch.zeros(num_envs, num_segments, dtype=torch.int64)
        returns[:, 0], lengths[:, 0] = self._returns, self._lengths
        returns.scatter_add_(1, segment, reward)
        lengths.scatter_add_(1, segment, torch.ones_like(segment))

        ends = done.T.nonzero()  # by step, then by environment: the order of frames
        step, env = ends[:, 0], ends[:, 1]
        ended = segment[env, step]
        episodes = [
            Episode(*values)
            for values in zip(
                (frames + step * num_envs + env + 1).tolist(),
                returns[env, ended].tolist(),
                lengths[env, ended].tolist(),
                terminated[env, step].tolist(),
                truncated[env, step].tolist(),
                strict=True,
            )
        ]
        last = done.sum(1, keepdim=True)
        self._returns = returns.gather(1, last).squeeze(1)
        self._lengths = lengths.gather(1, last).squeeze(1)
        return episodes

    def drop_unfinished(self) -> None:
        """Forgets the running episodes, as when every environment starts a new one."""
        self._returns.zero_()
        self._lengths.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return and length so far of each environment's unfinished episode, copied."""
        return {"returns": self._returns.clone(), "lengths": self._lengths.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved position."""
        self._returns, self._lengths = state["returns"].clone(), state["lengths"].clone()

    def _read(self, batch: TensorDictBase) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if batch.ndim not in (1, 2) or batch.numel() == 0:
            raise ValueError(
                f"batch of shape {list(batch.shape)} given to EpisodeRecorder: it must be [E, T] "
                "or [T] with at least one frame; pass what the collector yields, before flattening"
            )
        following = batch["next"]
        done = _lanes("done", following["done"], batch)
        if not self._returns.numel():
            self._returns = torch.zeros(len(done), dtype=torch.float64)
            self._lengths = torch.zeros(len(done), dtype=torch.int64)
        if len(done) != len(self._returns):
            raise ValueError(
                f"batch of {len(done)} environments given to an EpisodeRecorder that has recorded "
                f"{len(self._returns)}: use one recorder per collector"
            )
        truncated = following.get("truncated", None)
        return (
            _lanes("reward", following["reward"], batch).to(torch.float64),
            done,
            _lanes("terminated", following["terminated"], batch),
            torch.zeros_like(done) if truncated is None else _lanes("truncated", truncated, batch),
        )


def _lanes(name: str, value: Tensor, batch: TensorDictBase) -> Tensor:
    if value.shape not in (batch.shape, (*batch.shape, 1)):
        raise ValueError(
            f"('next', {name!r}) of shape {list(value.shape)} in a batch of shape "
            f"{list(batch.shape)} given to EpisodeRecorder: it must be one number per frame, of "
            "several rewards or agents give one at a time"
        )
    # On the CPU, where scatter_add_ is deterministic.
    return value.detach().cpu().reshape(-1, batch.shape[-1])
