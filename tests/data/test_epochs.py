"""When an epoch begins, ends, and must not begin; and how refresh affects it."""

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import SamplerWithoutReplacement

from amber_trl.data import AdaptiveMinibatchSampler, MultiBatchReplayBuffer
from amber_trl.transforms import Reason
from tests.data.frames import M, N, epoch_of, frames_of, make_batch, make_filter, make_replay, seen


def test_after_a_break_the_next_loop_is_a_whole_epoch() -> None:
    replay = make_replay(0, 1, 2)
    for stop in (0, 1):
        for number, _ in enumerate(replay):
            if number == stop:
                break
        epoch = epoch_of(replay)
        assert [len(minibatch) for minibatch in epoch] == [3 * M] * (N // M)
        assert seen(epoch) == frames_of(0, 1, 2)


def test_sample_walks_through_the_epochs() -> None:
    replay = make_replay(0, 1)
    for _ in range(3):
        frames = torch.cat([replay.sample()["frame"] for _ in range(N // M)])
        assert sorted(frames.tolist()) == frames_of(0, 1)


def test_sample_returns_its_info_if_asked() -> None:
    minibatch, info = make_replay(0).sample(return_info=True)
    assert info["index"].tolist() == minibatch["index"].tolist()


def test_sample_takes_another_size_per_batch_in_use() -> None:
    replay = make_replay(0, 1, 2)
    with pytest.warns(UserWarning, match="conflicting batch_sizes"):  # as any TorchRL buffer
        assert len(replay.sample(4)) == 12
    with pytest.raises(ValueError, match="batch_size=2 in the middle of an epoch of batch_size=4"):
        replay.sample()


@pytest.mark.parametrize(
    "change",
    [
        lambda replay: replay.extend(make_batch(3)),
        lambda replay: replay.refresh(),
        lambda replay: replay.set_sampler(AdaptiveMinibatchSampler(N)),
        lambda replay: replay.load_state_dict(replay.state_dict()),
        lambda replay: replay.empty(),
        lambda replay: epoch_of(replay),
    ],
    ids=["extend", "refresh", "set_sampler", "load", "empty", "nested loop"],
)
def test_a_change_ends_the_running_loop_without_an_error(
    change: Callable[[MultiBatchReplayBuffer], object],
) -> None:
    replay = make_replay(0, 1, 2, staleness=make_filter())
    replay.refresh()
    loops = 0
    for _ in replay:
        change(replay)
        loops += 1
    assert loops == 1


def test_a_refused_batch_does_not_disturb_the_running_loop() -> None:
    replay = make_replay(0, 1)
    frames = []
    for minibatch in replay:
        frames += minibatch["frame"].tolist()
        with pytest.raises(ValueError, match="batch of 4 frames"):
            replay.extend(make_batch(2)[:4])
    assert sorted(frames) == frames_of(0, 1)


def test_nothing_is_sampled_before_the_first_batch() -> None:
    for replay in (make_replay(), make_replay(staleness=make_filter())):
        assert not replay.can_sample()
        assert replay.num_active == 0
        with pytest.raises(RuntimeError, match="empty storage"):
            replay.sample()
        with pytest.raises(RuntimeError, match="empty storage"):
            next(iter(replay))


def test_refresh_needs_a_filter_and_a_batch() -> None:
    with pytest.raises(RuntimeError, match="without a staleness filter: build the buffer with"):
        make_replay(0).refresh()
    replay = make_replay(staleness=make_filter())
    with pytest.raises(RuntimeError, match="empty buffer"):
        replay.refresh()


def test_with_a_filter_sampling_waits_for_refresh() -> None:
    replay = make_replay(staleness=make_filter())
    for number in range(2):
        replay.extend(make_batch(number))
        assert not replay.can_sample()
        with pytest.raises(RuntimeError, match=r"call refresh\(\) once after extend\(\)"):
            replay.sample()
        with pytest.raises(RuntimeError, match="sampling before refresh"):
            next(iter(replay))
        replay.refresh()
        assert replay.can_sample()
        assert len(epoch_of(replay)) == N // M


def test_refresh_leaves_stale_batches_out_and_they_come_back_by_measurement_only() -> None:
    replay = make_replay(staleness=make_filter())
    for number, shift in enumerate([0.0, 1.0, 0.1, 2.0]):  # batch 0 is gone, 1 is stale
        replay.extend(make_batch(number, shift=shift))
    ledger = replay.refresh()
    assert ledger.batch_size == torch.Size([3])
    assert ledger["age"].tolist() == [0, 1, 2]
    assert ledger["slot"].tolist() == [0, 2, 1]
    deviation = torch.tensor([2.0, 0.1, 1.0]).exp() - 1
    torch.testing.assert_close(ledger["staleness"], deviation, rtol=1e-5, atol=1e-5)
    assert ledger["active"].tolist() == [True, True, False]
    assert ledger["reason"].tolist() == [Reason.NEWEST, Reason.FRESH, Reason.STALE]
    assert (replay.num_active, replay.batch_size) == (2, 2 * M)
    for _ in range(2):
        epoch = epoch_of(replay)
        assert [len(minibatch) for minibatch in epoch] == [2 * M] * (N // M)
        assert seen(epoch) == frames_of(2, 3)
    replay.staleness.drop_factor = 2.0  # type: ignore[union-attr]
    replay.refresh()
    assert seen(epoch_of(replay)) == frames_of(1, 2, 3)
    replay.staleness.drop_factor = 0.0  # type: ignore[union-attr]
    replay.refresh()
    assert seen(epoch_of(replay)) == frames_of(3)


def test_ablation_without_scaling_keeps_minibatches_small() -> None:
    replay = make_replay(0, 1, 2, sampler=AdaptiveMinibatchSampler(N, scale_minibatch=False))
    assert replay.batch_size == M
    epoch = epoch_of(replay)
    assert [len(minibatch) for minibatch in epoch] == [M] * (3 * N // M)
    assert seen(epoch) == frames_of(0, 1, 2)


def test_epoch_returns_the_rows_that_iterating_would_sample() -> None:
    replay = MultiBatchReplayBuffer(3, 8, 2, generator=torch.Generator().manual_seed(7))
    other = MultiBatchReplayBuffer(3, 8, 2, generator=torch.Generator().manual_seed(7))
    for step in range(2):
        batch = TensorDict({"row": torch.arange(8) + 8 * step}, [8])
        replay.extend(batch)
        other.extend(batch)
    for _ in range(2):
        next(iter(replay))  # left unfinished, and drawn in both
        next(iter(other))
        sampled = torch.stack([minibatch["index"] for minibatch in other])
        assert torch.equal(torch.stack(list(replay.epoch())), sampled)


def test_rows_at_once_need_a_batch_a_refresh_a_sampler_of_batches_and_no_transform() -> None:
    with pytest.raises(RuntimeError, match="empty"):
        make_replay().epoch()
    with pytest.raises(RuntimeError, match="refresh"):
        make_replay(0, staleness=make_filter()).epoch()
    with pytest.raises(TypeError, match="SamplerWithoutReplacement"):
        make_replay(0, sampler=SamplerWithoutReplacement()).epoch()
    with pytest.raises(TypeError, match="1 transforms"):
        make_replay(0, transform=lambda frames: frames).epoch()
