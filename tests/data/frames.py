"""Batches in which every field identifies its transition, and buffers small enough to count."""

import math
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import ProbabilisticActor

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.modules import gaussian_actor
from amber_trl.transforms import DropFactorController, ISStalenessFilter

L, N, M = 3, 8, 2


def make_batch(number: int, *shape: int, shift: float = 0.0) -> TensorDict:
    """Batch ``number``, its frames numbered ``number * N``, ``number * N + 1``, ...

    The recorded log-probability is that of :func:`make_actor`'s actor minus ``shift``, so that every
    ratio is ``exp(shift)``.
    """
    shape = shape or (N,)
    frame = number * N + torch.arange(N).reshape(shape)
    observation = torch.stack([frame, frame + 0.25, frame + 0.5], -1)
    batch = TensorDict(
        {
            "observation": observation,
            "action": torch.stack([frame, -frame], -1).float() / 1024,
            "next": {
                "observation": observation + 1,
                "reward": frame[..., None].double(),
                "done": (frame % 4 == 3)[..., None],
            },
            "frame": frame,
        },
        shape,
    )
    log_prob = -batch["action"].square().sum(-1) / 2 - math.log(2 * math.pi)
    return batch.set("action_log_prob", log_prob - shift)


def make_actor() -> ProbabilisticActor:
    """A Gaussian actor of mean 0 and deviation 1 at first."""
    actor = gaussian_actor(3, 2, hidden_sizes=())
    for parameter in actor.parameters():
        torch.nn.init.zeros_(parameter)
    return actor


def make_filter(
    drop_factor: float | DropFactorController = 0.25, **kwargs: Any
) -> ISStalenessFilter:
    return ISStalenessFilter(make_actor(), drop_factor, **kwargs)


def make_replay(*numbers: int, num_batches: int = L, **kwargs: Any) -> MultiBatchReplayBuffer:
    """A buffer of ``num_batches`` batches of 8 frames, minibatches of 2, with batches ``numbers``."""
    replay = MultiBatchReplayBuffer(num_batches, N, M, **kwargs)
    for number in numbers:
        replay.extend(make_batch(number))
    return replay


def check_aligned(frames: TensorDict) -> None:
    """All fields of every row belong to the same transition."""
    batches = {number: make_batch(number) for number in (frames["frame"] // N).unique().tolist()}
    expected = TensorDict.stack(
        [batches[frame // N][frame % N] for frame in frames["frame"].tolist()]
    )
    for key, value in expected.items(True, True):
        assert torch.equal(frames[key], value), key


def frames_of(*numbers: int) -> list[int]:
    """The frames of these batches, ascending."""
    return sorted(number * N + frame for number in numbers for frame in range(N))


def epoch_of(replay: MultiBatchReplayBuffer) -> list[list[int]]:
    """The frames of each minibatch of one epoch."""
    return [minibatch["frame"].tolist() for minibatch in replay]


def seen(epoch: list[list[int]]) -> list[int]:
    return sorted(frame for minibatch in epoch for frame in minibatch)


def assert_same(state: Any, other: Any, path: str = "state") -> None:
    """Bit for bit, NaN and unwritten memory included."""
    assert type(state) is type(other), path
    if isinstance(state, Tensor):
        assert (state.shape, state.dtype) == (other.shape, other.dtype), path
        same = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (state, other))
        assert torch.equal(*same), path
    elif isinstance(state, dict):
        assert list(state) == list(other), path
        for key in state:
            assert_same(state[key], other[key], f"{path}[{key!r}]")
    elif isinstance(state, list | tuple):
        assert len(state) == len(other), path
        for number, (left, right) in enumerate(zip(state, other, strict=True)):
            assert_same(left, right, f"{path}[{number}]")
    else:
        assert state == other, path
