"""Extracts finished training episodes from collected batches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

WINDOW = 100
"""Episodes over which returns are averaged: the last hundred, as in the AMBER paper."""

COLUMNS = ("frame", "return", "length", "terminated", "truncated")
"""Columns of ``episodes.csv``: the fields of an episode."""


class Episode(NamedTuple):
    """One finished training episode; a row of ``episodes.csv``."""

    frame: int
    """Frames of all environments up to and including the episode's last."""
    episode_return: float
    length: int
    terminated: bool
    truncated: bool


class EpisodeRecorder:
    """Turns ``[E, T]`` batches into finished episodes, also across batch boundaries.

    Frame ``t`` of environment ``e`` in a batch that starts after ``f`` frames is frame
    ``f + t * E + e + 1`` of the training, as if the environments were stepped in turn. Returns
    accumulate in float64. Each batch takes a few vectorised operations on the CPU; only finished
    episodes are looped over.

    It reads ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")`` and
    ``("next", "truncated")`` (false where an environment has no time limit), each ``[..., 1]``.
    """

    def __init__(self) -> None:
        self._returns: Tensor | float = 0.0  # of the running episodes, [E]
        self._lengths: Tensor | int = 0

    def record(self, batch: TensorDictBase, frames: int) -> list[Episode]:
        """Adds the next batch, ``[E, T]`` or ``[T]``, and returns the episodes that ended in it.

        ``frames`` were collected before it. Rewards and flags must be the environment's own.
        """
        reward = _per_frame(batch, "reward").to(torch.float64)
        done, terminated = _per_frame(batch, "done"), _per_frame(batch, "terminated")
        limited = ("next", "truncated") in batch.keys(True)
        truncated = _per_frame(batch, "truncated") if limited else torch.zeros_like(done)
        ids = batch.get(("collector", "traj_ids"), None)
        changes = None if ids is None else ids.cpu().diff(dim=-1) != 0
        if changes is not None and (changes & ~done.view(ids.shape)[..., :-1]).any():
            raise ValueError(
                "a trajectory changes within the batch where no episode ended, so it joins "
                "environments along time: collect [environments, time] (cat_results='stack')"
            )
        num_envs = len(done)
        # Segment k of an environment contains the frames after its k-th episode end in this batch. The first
        # segment continues what the last batch left.
        segment = done.cumsum(1) - done.long()
        num_segments = int(done.sum(1).max()) + 1
        returns = reward.new_zeros(num_envs, num_segments)
        lengths = torch.zeros(num_envs, num_segments, dtype=torch.int64)
        returns[:, 0], lengths[:, 0] = self._returns, self._lengths
        returns.scatter_add_(1, segment, reward)
        lengths.scatter_add_(1, segment, torch.ones_like(segment))

        step, env = done.T.nonzero().unbind(1)  # by step, then by environment: the order of frames
        ended = segment[env, step]
        columns = (
            frames + step * num_envs + env + 1,
            returns[env, ended],
            lengths[env, ended],
            terminated[env, step],
            truncated[env, step],
        )
        last = done.sum(1, keepdim=True)
        self._returns = returns.gather(1, last).squeeze(1)
        self._lengths = lengths.gather(1, last).squeeze(1)
        return [Episode(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def drop_unfinished(self) -> None:
        """Discards the running episodes, for when every environment starts a new one."""
        self._returns, self._lengths = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return and length so far of each environment's unfinished episode."""
        return {"returns": self._returns, "lengths": self._lengths}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved position."""
        self._returns, self._lengths = state["returns"], state["lengths"]


def _per_frame(batch: TensorDictBase, name: str) -> Tensor:
    """One number per frame, ``[E, T]``, on the CPU, where scatter_add_ is deterministic."""
    value: Tensor = batch["next", name]
    if batch.ndim not in (1, 2) or value.shape not in (batch.shape, (*batch.shape, 1)):
        raise ValueError(
            f"('next', {name!r}) of shape {list(value.shape)} in a batch of shape "
            f"{list(batch.shape)}: the batch must be [E, T] or [T], with one number per frame; "
            "record what the collector yields, and several rewards or agents one at a time"
        )
    return value.detach().cpu().reshape(-1, batch.shape[-1])
