"""Which rows the samplers return: each active row once, in equal minibatches, uniformly."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer, TensorStorage

from amber_trl.data import (
    ActiveBatches,
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
)
from tests.data.frames import N, assert_same, frames_of, make_batch, make_filter, make_replay

BUFFERS = pytest.mark.parametrize("buffer_type", [ReplayBuffer, TensorDictReplayBuffer])
quick = settings(max_examples=60, deadline=None, derandomize=True)


def stored(rows: int, device: str = "cpu") -> TensorStorage:
    return TensorStorage(torch.arange(rows, device=device), device=device)


def draw_epoch(sampler: MultiBatchSampler, storage: TensorStorage, batch_size: int) -> list[Tensor]:
    minibatches = [sampler.sample(storage, batch_size)[0]]
    while not sampler.ran_out:
        minibatches.append(sampler.sample(storage, batch_size)[0])
    return minibatches


def rows_of(slots: list[int], frames: int) -> list[int]:
    return [slot * frames + frame for slot in sorted(slots) for frame in range(frames)]


def make_buffer(
    buffer_type: type[ReplayBuffer], sampler: MultiBatchSampler, batches: int, **kwargs: Any
) -> ReplayBuffer:
    """A stock buffer with room for four batches of 8 rows."""
    buffer = buffer_type(storage=LazyTensorStorage(32), sampler=sampler, batch_size=2, **kwargs)
    buffer.extend(TensorDict({"row": torch.arange(8 * batches)}, [8 * batches]))
    return buffer


def rows_seen(buffer: ReplayBuffer) -> list[list[int]]:
    return [minibatch["row"].tolist() for minibatch in buffer]


def flat(epoch: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(epoch))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, list[int] | None]:
    """Batches stored, minibatches of an epoch, ``M_PPO`` and a pattern of active slots."""
    batches = draw(st.integers(1, 6))
    slots = st.lists(st.integers(0, batches - 1), min_size=1, unique=True)
    minibatches, batch_size = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    return batches, minibatches, batch_size, draw(st.none() | slots)


@quick
@given(cases(), st.booleans())
def test_an_epoch_is_one_pass_over_the_active_rows(
    case: tuple[int, int, int, list[int] | None], scale: bool
) -> None:
    batches, minibatches, batch_size, slots = case
    frames = minibatches * batch_size
    sampler = AdaptiveMinibatchSampler(frames, scale_minibatch=scale)
    storage = stored(batches * frames)
    sampler.set_active(slots)
    active = list(range(batches)) if slots is None else slots
    assert sampler.num_active(storage) == len(active)
    size, number = batch_size, minibatches * len(active)
    if scale:
        size, number = number // minibatches * batch_size, minibatches
    for _ in range(2):
        epoch = draw_epoch(sampler, storage, batch_size)
        assert [len(minibatch) for minibatch in epoch] == [size] * number
        assert torch.cat(epoch).sort().values.tolist() == rows_of(active, frames)
        assert size == sampler.minibatch_size(batch_size, len(active))


@quick
@given(cases(), st.integers(1, 4))
def test_an_episodic_minibatch_is_one_run_in_one_environment_of_one_active_batch(
    case: tuple[int, int, int, list[int] | None], envs: int
) -> None:
    batches, minibatches, batch_size, slots = case
    active = list(range(batches)) if slots is None else slots
    length = len(active) * batch_size
    steps = batch_size * (len(active) + minibatches - 1)
    frames = steps * envs
    sampler = EpisodicMinibatchSampler(frames, steps)
    sampler.set_active(slots)
    epoch = draw_epoch(sampler, stored(batches * frames), batch_size)
    assert len(epoch) == frames // batch_size
    for minibatch in epoch:
        assert minibatch.tolist() == list(range(int(minibatch[0]), int(minibatch[0]) + length))
        assert int(minibatch[0]) // steps == int(minibatch[-1]) // steps
        assert int(minibatch[0]) // frames in active


def test_episodic_starts_are_uniform() -> None:
    torch.manual_seed(1)
    sampler = EpisodicMinibatchSampler(12, 6)  # 2 environments of 6 in each batch of 12
    sampler.set_active([0, 2])  # runs of 2 * 2 start at offset 0, 1 or 2
    storage = stored(36)
    starts = [m[0] for _ in range(400) for m in draw_epoch(sampler, storage, 2)]
    counts = torch.stack(starts).bincount(minlength=36)
    possible = [slot + env + offset for slot in (0, 24) for env in (0, 6) for offset in range(3)]
    assert counts.nonzero().flatten().tolist() == possible
    expected = len(starts) / len(possible)
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    assert chi_square < 31.3  # 99.9 % of the distribution with 11 degrees of freedom


def test_every_row_is_equally_likely_in_every_minibatch() -> None:
    torch.manual_seed(1)
    sampler, storage = AdaptiveMinibatchSampler(4), stored(8)
    epochs = [torch.stack(draw_epoch(sampler, storage, 2)) for _ in range(1000)]
    in_first = torch.stack(epochs)[:, 0].flatten().bincount(minlength=8)
    assert ((in_first - 500) ** 2 / 250).sum() < 24.4 * 8 / 7  # 99.9 %, 7 degrees of freedom


def test_a_run_longer_than_an_environment_s_frames_is_refused() -> None:
    sampler, storage = EpisodicMinibatchSampler(8, 4), stored(24)
    sampler.set_active([1, 2])
    draw_epoch(sampler, storage, 2)
    sampler.set_active(None)
    with pytest.raises(ValueError, match=r"2 \* 3 = 6 frames is longer than frames_per_env=4"):
        sampler.sample(storage, 2)


def test_frames_per_env_defaults_to_one_environment() -> None:
    assert EpisodicMinibatchSampler(8).frames_per_env == 8
    with pytest.raises(ValueError, match="frames_per_env=3 does not divide frames_per_batch=8"):
        EpisodicMinibatchSampler(8, 3)


@pytest.mark.parametrize(
    ("slots", "active"),
    [
        ([2, 0], (0, 2)),
        (torch.tensor([2, 0]), (0, 2)),
        (torch.tensor([True, False, True]), (0, 2)),
        (range(2), (0, 1)),
        (torch.tensor([1]).numpy(), (1,)),
        (None, None),
    ],
)
def test_set_active_takes_numbers_or_a_mask(slots: Any, active: tuple[int, ...] | None) -> None:
    sampler = AdaptiveMinibatchSampler(4)
    sampler.set_active(slots)
    assert sampler.active == active


@pytest.mark.parametrize(
    "slots",
    [[], torch.tensor([False]), [-1], [1, 1], [0.7], [True, False], torch.tensor([[False, True]])],
)
def test_set_active_refuses_anything_but_a_set_of_slots(slots: Any) -> None:
    sampler = AdaptiveMinibatchSampler(4)
    sampler.set_active([1])
    with pytest.raises((TypeError, ValueError), match="slots="):
        sampler.set_active(slots)
    assert sampler.active == (1,)


@pytest.mark.parametrize("slots", [[0, 2], torch.tensor([True] * 3)])
def test_active_slots_that_are_not_stored_are_refused(slots: Any) -> None:
    sampler = AdaptiveMinibatchSampler(4)
    sampler.set_active(slots)
    with pytest.raises(ValueError, match="while 2 batches are stored"):
        sampler.sample(stored(8), 2)


def test_anything_but_a_storage_of_whole_batches_is_refused() -> None:
    sampler = AdaptiveMinibatchSampler(4)
    with pytest.raises(RuntimeError, match=r"7 rows.*frames_per_batch=4"):
        sampler.sample(stored(7), 2)
    with pytest.raises(RuntimeError, match="ndim=2"):
        sampler.sample(TensorStorage(torch.zeros(4, 2), ndim=2), 2)
    with pytest.raises(RuntimeError, match="empty storage"):
        sampler.sample(LazyTensorStorage(8), 2)
    with pytest.raises(ValueError, match="batch_size=3 does not divide frames_per_batch=4"):
        sampler.sample(stored(8), 3)


def test_another_batch_size_waits_for_the_next_epoch() -> None:
    sampler, storage = AdaptiveMinibatchSampler(4), stored(8)
    sampler.sample(storage, 1)
    with pytest.raises(ValueError, match="batch_size=2 in the middle of an epoch of batch_size=1"):
        sampler.sample(storage, 2)
    assert len(draw_epoch(sampler, storage, 1)) == 3
    assert len(draw_epoch(sampler, storage, 2)) == 2
    sampler.sample(storage, 2)
    sampler.discard_epoch()
    assert len(draw_epoch(sampler, storage, 4)) == 1


@BUFFERS
def test_extending_a_stock_buffer_restarts_with_every_batch(
    buffer_type: type[ReplayBuffer],
) -> None:
    sampler = AdaptiveMinibatchSampler(8)
    buffer = make_buffer(buffer_type, sampler, 2)
    sampler.set_active([0])
    buffer.sample()
    buffer.extend(TensorDict({"row": torch.arange(16, 24)}, [8]))
    assert sampler.active is None
    assert sorted(flat(rows_seen(buffer))) == list(range(24))
    sampler.set_active([1])
    for row in range(24, 32):
        buffer.add(TensorDict({"row": torch.tensor(row)}, []))
    assert sampler.active is None
    assert sorted(flat(rows_seen(buffer))) == list(range(32))
    sampler.set_active([1])
    buffer.empty()
    assert sampler.active is None


@BUFFERS
def test_ran_out_is_as_torchrl_has_it(buffer_type: type[ReplayBuffer]) -> None:
    buffer = make_buffer(buffer_type, AdaptiveMinibatchSampler(8), 2)
    first = next(iter(buffer))["row"].tolist()
    rest = rows_seen(buffer)  # TorchRL's own loop continues where the last one was left
    assert len(rest) == 3
    assert sorted(first + flat(rest)) == list(range(16))
    assert buffer.sampler.ran_out
    buffer.sampler.ran_out = False
    assert not buffer.sampler.ran_out
    assert len(rows_seen(buffer)) == 4


@BUFFERS
@pytest.mark.parametrize("sampler_type", [AdaptiveMinibatchSampler, EpisodicMinibatchSampler])
def test_the_generator_decides_the_epoch_and_nothing_else_does(
    buffer_type: type[ReplayBuffer], sampler_type: type[MultiBatchSampler]
) -> None:
    generator = torch.Generator().manual_seed(5)
    buffer = make_buffer(buffer_type, sampler_type(8), 2, generator=generator)
    outside = torch.get_rng_state()
    first, second = rows_seen(buffer), rows_seen(buffer)
    assert first != second
    assert torch.equal(torch.get_rng_state(), outside)
    torch.manual_seed(1)
    buffer.set_rng(torch.Generator().manual_seed(5))
    assert [rows_seen(buffer), rows_seen(buffer)] == [first, second]


@pytest.mark.parametrize("sampler_type", [AdaptiveMinibatchSampler, EpisodicMinibatchSampler])
def test_a_state_shares_no_memory_either_way(sampler_type: type[MultiBatchSampler]) -> None:
    sampler, twin, storage = sampler_type(8), sampler_type(8), stored(16)
    first = sampler.sample(storage, 2)[0]
    for write in (first, sampler.state_dict()["epoch"]):
        state = sampler.state_dict()
        kept = state["epoch"].clone()
        write.fill_(99)  # the receiver owns the returned tensors
        assert torch.equal(state["epoch"], kept)
    twin.load_state_dict(state)
    state["epoch"].fill_(99)
    rest = [minibatch.tolist() for minibatch in draw_epoch(twin, storage, 2)]
    assert rest == [minibatch.tolist() for minibatch in draw_epoch(sampler, storage, 2)]
    assert max(flat(rest)) < 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampler_type", [AdaptiveMinibatchSampler, EpisodicMinibatchSampler])
def test_a_cpu_generator_serves_a_storage_elsewhere(sampler_type: type[MultiBatchSampler]) -> None:
    epochs = []
    for device in ("cpu", "cuda"):
        sampler = sampler_type(8)
        sampler._rng = torch.Generator().manual_seed(5)
        epochs.append(draw_epoch(sampler, stored(24, device), 2))
        assert epochs[-1][0].device.type == device
    assert torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]).cpu())


@pytest.mark.parametrize(
    "state",
    [
        EpisodicMinibatchSampler(8).state_dict(),
        AdaptiveMinibatchSampler(8, scale_minibatch=False).state_dict(),
        AdaptiveMinibatchSampler(4).state_dict(),
        {},
    ],
)
def test_a_state_of_another_sampler_is_refused(state: dict[str, Any]) -> None:
    sampler = AdaptiveMinibatchSampler(8)
    before = sampler.state_dict()
    with pytest.raises(ValueError, match="state of a sampler with"):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def test_runs_that_cross_environments_are_refused_when_these_are_known() -> None:
    for frames, fits in ((None, False), (8, False), (4, True), (2, True)):
        replay = MultiBatchReplayBuffer(1, 8, 2, sampler=EpisodicMinibatchSampler(8, frames))
        batch = TensorDict({"frame": torch.arange(8).view(2, 4)}, [2, 4])
        if fits:
            replay.extend(batch)
        else:
            with pytest.raises(ValueError, match=r"\[2, 4\] with frames_per_env=8.*env=4"):
                replay.extend(batch)
        assert len(replay) == 8 * fits


def replay_of(sampler: MultiBatchSampler, **kwargs: Any) -> MultiBatchReplayBuffer:
    """Four batches in a buffer of three, so that slot 0 has the newest and slot 2 the middle one."""
    generator = torch.Generator().manual_seed(5)
    return make_replay(0, 1, 2, 3, sampler=sampler, generator=generator, **kwargs)


@pytest.mark.parametrize(
    ("sampler", "epochs"),
    [
        (
            AdaptiveMinibatchSampler(8),
            [
                [[3, 18, 19, 7], [6, 21, 16, 17], [4, 5, 2, 1], [23, 20, 22, 0]],
                [[0, 4, 22, 2], [5, 17, 21, 6], [19, 18, 16, 20], [7, 23, 3, 1]],
            ],
        ),
        (
            EpisodicMinibatchSampler(8),
            [
                [[19, 20, 21, 22], [4, 5, 6, 7], [20, 21, 22, 23], [16, 17, 18, 19]],
                [[20, 21, 22, 23], [2, 3, 4, 5], [2, 3, 4, 5], [4, 5, 6, 7]],
            ],
        ),
    ],
)
def test_epochs_match_those_recorded_before_samplers_saw_ages(
    sampler: MultiBatchSampler, epochs: list[list[list[int]]]
) -> None:
    replay = replay_of(sampler)
    sampler.set_active([0, 2])
    assert [[rows.tolist() for rows in replay.epoch()] for _ in epochs] == epochs


class Shown(MultiBatchSampler):
    """Keeps its arguments."""

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Any:
        self.batches, self.generator = batches, generator
        return batches.rows.view(-1, self.minibatch_size(batch_size, len(batches.slots)))


def test_a_sampler_is_shown_the_batches_in_use_the_newest_first() -> None:
    sampler = Shown(N)
    replay = make_replay(staleness=make_filter(), sampler=sampler)
    for number, shift in enumerate([0.0, 1.0, 0.1, 0.2]):  # batch 0 is gone, 1 is stale
        replay.extend(make_batch(number, shift=shift))
    ledger = replay.refresh()
    replay.epoch()
    shown = sampler.batches
    assert (shown.slots.tolist(), shown.age.tolist()) == ([0, 2], [0, 1])
    assert shown.ledger is not None
    assert_same(shown.ledger.to_dict(), ledger[:2].to_dict())
    assert replay[shown.rows[0]]["frame"].tolist() == frames_of(3)
    assert sampler.generator is replay._rng


def test_ages_are_known_with_and_without_a_filter_and_after_another_sampler_or_a_load() -> None:
    replay, other = replay_of(first := Shown(N)), make_replay(sampler=Shown(N))
    replay.epoch()
    other.load_state_dict(replay.state_dict())
    other.epoch()
    replay.set_sampler(second := Shown(N))
    replay.epoch()
    stock = make_buffer(ReplayBuffer, third := Shown(8), 4)
    stock.extend(TensorDict({"row": torch.arange(8)}, [8]))
    stock.sample()
    for sampler in (first, second, other._sampler):
        assert sampler.batches.slots.tolist() == [0, 2, 1]
        assert sampler.batches.age.tolist() == [0, 1, 2]
        assert sampler.batches.ledger is None
    assert third.batches.slots.tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ([[0] * 6], "give an int64 tensor"),
        (torch.zeros(4, 6), "float32"),
        (torch.zeros(0, 6, dtype=torch.int64), r"\[0, 6\]"),
        (torch.zeros(4, 5, dtype=torch.int64), "minibatch_size"),
        (torch.full((4, 6), -1), "row -1"),
        (torch.full((4, 6), 9), r"row 9.*slots \[0, 2\]"),
    ],
)
def test_the_rows_of_a_sampler_are_checked(result: Any, says: str) -> None:
    class Wrong(MultiBatchSampler):
        def minibatch_size(self, batch_size: int, num_active: int) -> int:
            return 6

        def draw_epoch(self, *shown: Any) -> Any:
            return result

    replay = replay_of(sampler := Wrong(N))
    sampler.set_active([0, 2])
    with pytest.raises(ValueError, match=rf"Wrong.draw_epoch returned.*{says}"):
        replay.epoch()
