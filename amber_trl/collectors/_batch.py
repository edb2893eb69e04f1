"""Puts together the TensorDict of a batch, and numbers its trajectories."""

from collections.abc import Iterable, Mapping

import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor


class TrajectoryIds:
    """Numbers trajectories in the order in which they start.

    Args:
        num_envs: number of environments; their first trajectories are 0, 1, ...
    """

    def __init__(self, num_envs: int) -> None:
        self.current = torch.arange(num_envs)
        self.next = num_envs

    def renew(self, mask: Tensor) -> None:
        """Starts new trajectories in the environments of a boolean mask."""
        for env in mask.nonzero().flatten().tolist():
            self._start(env)

    def over(self, frames: int, ends: Iterable[tuple[int, int]]) -> Tensor:
        """The ids of a batch's frames.

        Args:
            frames: number of frames per environment.
            ends: frame and environment of each episode's end, in order.

        Returns:
            int64 ``[frames, envs]``.
        """
        ids = self.current.repeat(frames, 1)
        for frame, env in ends:
            self._start(env)
            ids[frame + 1 :, env] = self.current[env]
        return ids

    def _start(self, env: int) -> None:
        self.current[env] = self.next
        self.next += 1


def make_batch(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    written: Mapping[NestedKey, Tensor],
    traj_ids: Tensor,
    batch_size: torch.Size,
    reward_dtype: torch.dtype,
) -> TensorDict:
    """Lays out a batch as TorchRL's collector does.

    Args:
        before: what the frames start from, each ``[frames, envs, ...]``.
        after: what they lead to, with ``reward``, ``terminated`` and ``truncated``
            ``[frames, envs]``.
        written: what the actor gave, each ``[frames, *batch_size, ...]``.
        traj_ids: ``[frames, envs]``.
        batch_size: the environment's.
        reward_dtype: dtype of the rewards in the batch.

    Returns:
        TensorDict of batch size ``[*batch_size, frames]``, the last dimension named ``time``.
    """

    def envs_first(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1).contiguous() if batch_size else tensor

    def laid_out(tensor: Tensor) -> Tensor:
        return envs_first(tensor if batch_size else tensor.squeeze(1))

    start = {key: laid_out(value) for key, value in before.items()}
    end = {key: laid_out(value) for key, value in after.items()}
    end["reward"] = end["reward"].to(reward_dtype)
    end["done"] = end["terminated"] | end["truncated"]
    for key in ("reward", "done", "terminated", "truncated"):
        end[key] = end[key].unsqueeze(-1)
    never = {key: torch.zeros_like(end[key]) for key in ("done", "terminated", "truncated")}
    outputs = {key: envs_first(value.cpu()) for key, value in written.items()}
    return TensorDict(
        {
            **start,
            **never,
            **outputs,
            "next": end,
            "collector": {"traj_ids": laid_out(traj_ids)},
        },
        batch_size=[*batch_size, len(traj_ids)],
        names=[*(None for _ in batch_size), "time"],
    )
