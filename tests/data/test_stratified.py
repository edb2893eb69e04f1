"""Minibatches in which each batch has its share, by hand and in a buffer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from amber_trl.data import ActiveBatches, MultiBatchReplayBuffer, StratifiedMinibatchSampler
from tests.data.frames import make_batch

N = 8


def epoch_of(sampler: StratifiedMinibatchSampler, slots: list[int], batch_size: int) -> Tensor:
    batches = ActiveBatches(torch.tensor(slots), torch.arange(len(slots)), None, N)
    return sampler.draw_epoch(batches, batch_size, torch.Generator().manual_seed(0))


def counts(epoch: Tensor, slots: list[int]) -> list[list[int]]:
    return [[int((rows // N == slot).sum()) for slot in slots] for rows in epoch]


def test_equal_shares_are_one_pass_with_as_many_frames_of_each_batch() -> None:
    slots = [2, 0, 1]
    epoch = epoch_of(StratifiedMinibatchSampler(N), slots, 2)
    assert counts(epoch, slots) == [[2, 2, 2]] * 4
    assert epoch.flatten().sort().values.tolist() == list(range(24))
    assert epoch.tolist() != epoch.sort().values.tolist()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((4, 3, 2, 1), [3, 2, 2, 1]),  # of 8: 3.2, 2.4, 1.6, 0.8
        ((1, 1, 1, 0), [3, 3, 2, 0]),  # of 8: 2.67 each, newest first
        ((3, 1, 1, 1), [4, 2, 1, 1]),  # of 8: 4, 1.33, 1.33, 1.33
        ((1e-50, 1e-50, 0, 0), [4, 4, 0, 0]),
        ((1e308, 1e308, 1e308, 1e308), [2, 2, 2, 2]),
    ],
)
def test_shares_are_rounded_by_their_remainders(shares: Any, expected: list[int]) -> None:
    slots = [1, 0, 3, 2]
    epoch = epoch_of(StratifiedMinibatchSampler(N, shares), slots, 2)
    assert counts(epoch, slots) == [expected] * 4


def test_no_row_is_drawn_again_before_all_of_its_batch() -> None:
    epoch = epoch_of(StratifiedMinibatchSampler(N, (3, 1)), [0, 1], 2)  # 12 of 8 rows, 4 of 8
    newest, older = (epoch[epoch // N == slot] for slot in (0, 1))
    assert sorted(newest.bincount(minlength=N).tolist()) == [1] * 4 + [2] * 4
    assert older.bincount(minlength=2 * N).max() == 1


def test_shares_of_the_batches_in_use_count() -> None:
    sampler = StratifiedMinibatchSampler(N, (3, 1))
    replay = MultiBatchReplayBuffer(2, N, 2, sampler=sampler)
    for iteration, sizes in enumerate(([2], [3, 1], [3, 1])):
        replay.extend(make_batch(N))
        newest = sampler.newest_slot
        assert newest == iteration % 2
        for minibatch in replay:
            own = int((minibatch["index"] // N == newest).sum())
            assert [own, len(minibatch) - own][: len(sizes)] == sizes
            assert len(minibatch) == replay.batch_size == sum(sizes)


def test_draws_depend_on_the_seed_and_the_settings() -> None:
    one, same, other = (
        StratifiedMinibatchSampler(N, shares) for shares in ((3, 1), (3, 1), (2, 1))
    )
    assert torch.equal(epoch_of(one, [0, 1], 2), epoch_of(same, [0, 1], 2))
    same.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="shares"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    "shares", [(), (0, 1), (1, -1), (1, float("nan")), (1, float("inf")), (1,)]
)
def test_invalid_shares_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="shares"):
        epoch_of(StratifiedMinibatchSampler(N, shares), [0, 1], 2)


def test_batches_in_use_that_have_no_share_are_refused() -> None:
    sampler = StratifiedMinibatchSampler(N, (1, 0))
    older = ActiveBatches(torch.tensor([0]), torch.tensor([1]), None, N)
    with pytest.raises(ValueError, match="shares"):
        sampler.draw_epoch(older, 2, None)
