"""Assembles the TensorDict of a batch, and numbers its trajectories."""

from collections.abc import Iterable, Mapping

import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor


class TrajectoryIds:
    """Numbers trajectories in the order in which they start, from 0 for the first environment."""

    def __init__(self, num_envs: int) -> None:
        self.current = torch.arange(num_envs)
        self.next = num_envs

    def renew(self) -> None:
        """Starts a new trajectory in every environment."""
        self.current = self.next + torch.arange(len(self.current))
        self.next += len(self.current)

    def over(self, frames: int, ends: Iterable[tuple[int, int]]) -> Tensor:
        """The ids of a batch's frames, ``[frames, envs]``, given where its episodes end."""
        ids = self.current.repeat(frames, 1)
        for frame, index in ends:
            ids[frame + 1 :, index] = self.current[index] = self.next
            self.next += 1
        return ids


def make_batch(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    written: Mapping[NestedKey, Tensor],
    traj_ids: Tensor,
    batch_size: torch.Size,
    reward_dtype: torch.dtype,
) -> TensorDict:
    """Lays out a batch as TorchRL's collector does, time last and named.

    ``before`` holds what the frames start from; ``after`` holds what they lead to, with ``reward``,
    ``terminated`` and ``truncated``; both are ``[frames, envs, ...]``. ``written`` holds the actor's
    outputs, ``[frames, *batch_size, ...]``.
    """

    def envs_first(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1).contiguous() if batch_size else tensor

    def laid_out(tensor: Tensor) -> Tensor:
        return envs_first(tensor if batch_size else tensor.squeeze(1))

    end = {key: laid_out(value) for key, value in after.items()}
    end["reward"] = end["reward"].to(reward_dtype)
    end["done"] = end["terminated"] | end["truncated"]
    for key in ("reward", "done", "terminated", "truncated"):
        end[key] = end[key].unsqueeze(-1)
    never = {key: torch.zeros_like(end[key]) for key in ("done", "terminated", "truncated")}
    return TensorDict(
        {
            **{key: laid_out(value) for key, value in before.items()},
            **never,
            **{key: envs_first(value.cpu()) for key, value in written.items()},
            "next": end,
            "collector": {"traj_ids": laid_out(traj_ids)},
        },
        batch_size=[*batch_size, len(traj_ids)],
        names=[*(None for _ in batch_size), "time"],
    )
