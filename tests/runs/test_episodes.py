from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from amber_trl.runs._episodes import Episode, EpisodeRecorder


def _batch(reward: Any, terminated: Any, truncated: Any = None) -> TensorDict:
    reward = torch.as_tensor(reward, dtype=torch.float32)[..., None]
    terminated = torch.as_tensor(terminated, dtype=torch.bool)[..., None]
    following: dict[str, Any] = {"reward": reward, "terminated": terminated, "done": terminated}
    if truncated is not None:
        following["truncated"] = torch.as_tensor(truncated, dtype=torch.bool)[..., None]
        following["done"] = terminated | following["truncated"]
    return TensorDict({"next": following}, reward.shape[:-1])


def test_two_environments_over_two_batches_by_hand() -> None:
    recorder = EpisodeRecorder()
    first = _batch(
        [[1, 2, 4, 8], [10, 20, 40, 80]], [[0, 1, 0, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 1, 0]]
    )
    # env 0 ends at t=1: frame 0 + 1*2 + 0 + 1 = 3; env 1 at t=2: frame 0 + 2*2 + 1 + 1 = 6
    assert recorder.record(first, 0) == [
        Episode(3, 3.0, 2, True, False),
        Episode(6, 70.0, 3, False, True),
    ]
    second = _batch([[100, 200], [300, 400]], [[1, 1], [0, 1]], [[0, 0], [0, 1]])
    # both carry over; at t=1 env 0 (frame 8 + 2 + 1) comes before env 1 (frame 8 + 2 + 2)
    assert recorder.record(second, 8) == [
        Episode(9, 4 + 8 + 100, 3, True, False),
        Episode(11, 200.0, 1, True, False),
        Episode(12, 80 + 300 + 400, 3, True, True),
    ]


def test_a_flat_batch_is_one_environment() -> None:
    recorder = EpisodeRecorder()
    assert recorder.record(_batch([1, 2, 3], [0, 1, 0]), 0) == [Episode(2, 3.0, 2, True, False)]
    assert recorder.record(_batch([4], [1]), 3) == [Episode(4, 7.0, 2, True, False)]


def test_returns_add_up_in_float64() -> None:
    recorder = EpisodeRecorder()
    recorder.record(_batch([[2.0**24]], [[0]]), 0)
    assert recorder.record(_batch([[1.0, 1.0]], [[0, 1]]), 1)[0].episode_return == 2.0**24 + 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 999))
def test_agrees_with_stepping_frame_by_frame(envs: int, steps: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    recorder, recorded, expected = EpisodeRecorder(), [], []
    returns, lengths, frame = [0.0] * envs, [0] * envs, 0
    for length in steps:
        reward = torch.randint(-9, 9, (envs, length), generator=generator).double()
        terminated, truncated = torch.rand((2, envs, length), generator=generator) < 0.3
        recorded += recorder.record(_batch(reward, terminated, truncated), frame)
        state, recorder = recorder.state_dict(), EpisodeRecorder()
        recorder.load_state_dict(state)
        for t in range(length):
            for e in range(envs):
                frame += 1
                returns[e] += reward[e, t].item()
                lengths[e] += 1
                ends = bool(terminated[e, t]), bool(truncated[e, t])
                if any(ends):
                    expected.append(Episode(frame, returns[e], lengths[e], *ends))
                    returns[e], lengths[e] = 0.0, 0
    assert recorded == expected


@pytest.mark.parametrize("key", ["reward", "done", "truncated"])
def test_more_than_one_number_per_frame_is_refused(key: str) -> None:
    batch = _batch(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))
    batch["next", key] = batch["next", key].expand(2, 4, 2).clone()
    with pytest.raises(ValueError, match=rf"'{key}'\) of shape \[2, 4, 2\]"):
        EpisodeRecorder().record(batch, 0)
    with pytest.raises(ValueError, match=r"\[E, T\]"):
        EpisodeRecorder().record(_batch([[[1.0]]], [[[0]]]), 0)


def test_environments_joined_along_time_are_refused() -> None:
    batch = _batch([[1, 1, 1, 1]], [[0, 0, 0, 0]])
    batch["collector", "traj_ids"] = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(ValueError, match="cat_results"):
        EpisodeRecorder().record(batch, 0)
