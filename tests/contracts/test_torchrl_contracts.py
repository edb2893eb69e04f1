"""The contracts of TorchRL's replay buffers: states, files, copies, generators and gauges."""

import copy
import functools
import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data.replay_buffers.samplers import Sampler

from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchSampler,
)
from tests.data.frames import (
    L,
    M,
    N,
    assert_same,
    check_aligned,
    epoch_of,
    frames_of,
    make_batch,
    make_filter,
    make_replay,
    seen,
)

# TorchRL advises loading into a memory map that already has its files; a fresh one has none.
pytestmark = pytest.mark.filterwarnings("ignore:Loading the storage on an uninitialized TensorDict")

SAMPLERS = pytest.mark.parametrize(
    "sampler", [AdaptiveMinibatchSampler(N), EpisodicMinibatchSampler(N)], ids=["random", "runs"]
)
USED = pytest.mark.parametrize("used", [0, 1, 5], ids=["fresh", "partly filled", "used"])


@pytest.fixture(params=["tensor", "memmap", "memmap in a directory", "cuda"])
def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    directories = (tmp_path / f"memmap{number}" for number in range(99))
    makers: dict[str, Callable[[], Storage]] = {
        "tensor": lambda: LazyTensorStorage(L * N),
        "memmap": lambda: LazyMemmapStorage(L * N),
        "memmap in a directory": lambda: LazyMemmapStorage(L * N, scratch_dir=next(directories)),
        "cuda": lambda: LazyTensorStorage(L * N, device="cuda"),
    }
    return makers[request.param]


def saved(replay: MultiBatchReplayBuffer) -> tuple[dict[str, Any], list[Any]]:
    """A state in the middle of an epoch, and everything that follows from it."""
    replay.sample()
    return replay.state_dict(), future(replay)


def future(replay: MultiBatchReplayBuffer) -> list[Any]:
    """The rest of the epoch, the next ones, and those after another batch."""
    rest = [replay.sample()["frame"].tolist()]
    ages, written = replay.age.tolist(), replay.write_count
    epochs = [epoch_of(replay), epoch_of(replay)]
    replay.extend(make_batch(9))
    check_aligned(replay[:].cpu())
    return [rest, ages, written, len(replay), epochs, epoch_of(replay), replay.age.tolist()]


@SAMPLERS
@USED
@pytest.mark.parametrize("stored", [1, 2, 4])
def test_a_loaded_buffer_continues_where_the_saved_one_was(
    make_storage: Callable[[], Storage], stored: int, used: int, sampler: MultiBatchSampler
) -> None:
    original = make_replay(*range(stored), storage=make_storage(), sampler=copy.deepcopy(sampler))
    state, expected = saved(original)
    generator = torch.Generator(state["_rng"][1])
    other = make_replay(
        *range(20, 20 + used),
        storage=make_storage(),
        sampler=copy.deepcopy(sampler),
        generator=generator,
    )
    if used:
        other.sample()
    other.load_state_dict(state)
    assert torch.equal(generator.get_state(), state["_rng"][0])
    assert future(other) == expected
    assert not torch.equal(generator.get_state(), state["_rng"][0])  # it is the generator in use


@USED
@pytest.mark.parametrize("through_file", [False, True])
def test_states_share_no_memory(
    make_storage: Callable[[], Storage], used: int, through_file: bool
) -> None:
    original = make_replay(0, 1, storage=make_storage())
    state, expected = saved(original)
    if through_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    kept = copy.deepcopy(state)
    other = make_replay(*range(20, 20 + used), storage=make_storage())
    other.load_state_dict(state)
    assert future(other) == expected  # using it does not change the state
    assert_same(state, kept)
    other.load_state_dict(state)
    scramble(state)
    assert future(other) == expected


def scramble(state: Any) -> None:
    if isinstance(state, torch.Tensor):
        state.zero_()
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            scramble(value)


def test_an_empty_state_empties() -> None:
    state = make_replay().state_dict()
    for numbers in ((), (3,), (3, 4, 5, 6)):
        replay = make_replay(*numbers)
        replay.load_state_dict(state)
        assert (len(replay), replay.age.tolist(), replay.can_sample()) == (0, [], False)
        replay.extend(make_batch(0))
        assert seen(epoch_of(replay)) == frames_of(0)


@USED
def test_files_hold_all_and_are_not_needed_after_loading(
    make_storage: Callable[[], Storage], tmp_path: Path, used: int
) -> None:
    original = make_replay(0, 1, 2, 3, storage=make_storage())
    original.sample()
    original.dumps(tmp_path / "files")
    expected = future(original)
    generator = torch.Generator(original.storage.device)
    other = make_replay(
        *range(20, 20 + used), storage=make_storage(), generator=generator, sampler=None
    )
    other.loads(tmp_path / "files")
    for file in (tmp_path / "files").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    shutil.rmtree(tmp_path / "files")
    before = generator.get_state()
    assert future(other) == expected
    assert not torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("format_", ["directory", "archive"])
def test_torchrl_s_checkpoint_saves_and_loads_it(tmp_path: Path, format_: Any) -> None:
    original, other = make_replay(0, 1), make_replay(20)
    original.sample()
    Checkpoint(replay=original).save(tmp_path / "checkpoint", format=format_)
    Checkpoint(replay=other).load(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
    assert future(other) == future(original)


def unlike(**kwargs: Any) -> MultiBatchReplayBuffer:
    arguments = {"num_batches": L, "frames_per_batch": N, "minibatch_size": M} | kwargs
    replay = MultiBatchReplayBuffer(**arguments)
    size = replay.frames_per_batch
    for number in range(2):
        replay.extend(make_batch(number)[:size] if size <= N else make_batch(number))
    return replay


def other_layout(change: Callable[[Any], Any]) -> MultiBatchReplayBuffer:
    replay = make_replay()
    for number in range(2):
        replay.extend(change(make_batch(number)))
    return replay


UNLIKE: dict[str, tuple[Callable[[], MultiBatchReplayBuffer], str]] = {
    "another L": (lambda: unlike(num_batches=2), "num_batches=3 given to .* num_batches=2"),
    "another N": (
        lambda: unlike(frames_per_batch=4, num_batches=6),
        "frames_per_batch=8 given to a buffer of frames_per_batch=4",
    ),
    "more keys": (lambda: other_layout(lambda td: td.set("value", td["frame"])), "value"),
    "fewer keys": (lambda: other_layout(lambda td: td.exclude("action")), "action"),
    "another dtype": (
        lambda: other_layout(lambda td: td.set("action", td["action"].double())),
        "'action'.*float32.*float64",
    ),
    "another shape": (
        lambda: other_layout(lambda td: td.set("action", td["action"][:, :1])),
        r"'action'.*\(2,\).*\(1,\)",
    ),
}


@pytest.mark.parametrize("files", [False, True], ids=["state", "files"])
@pytest.mark.parametrize("case", UNLIKE)
def test_a_state_of_another_buffer_is_refused_and_nothing_changes(
    case: str, files: bool, tmp_path: Path
) -> None:
    make_other, message = UNLIKE[case]
    original, other = make_replay(5, 6, 7), make_other()
    original.dumps(tmp_path / "files")
    before = other.state_dict()
    load: Callable[[], Any] = functools.partial(other.loads, tmp_path / "files")
    if not files:
        load = functools.partial(other.load_state_dict, original.state_dict())
    with pytest.raises((KeyError, ValueError, FileNotFoundError), match=message):
        load()
    assert_same(other.state_dict(), before)


def test_a_state_of_a_stock_buffer_is_refused() -> None:
    stock = TensorDictReplayBuffer(storage=LazyTensorStorage(L * N), batch_size=M)
    stock.extend(make_batch(0))
    with pytest.raises(ValueError, match="frames_per_batch=None given to a buffer of"):
        make_replay().load_state_dict(stock.state_dict())


@USED
def test_sampling_after_a_load_waits_for_refresh_with_a_filter(used: int, tmp_path: Path) -> None:
    original = make_replay(staleness=make_filter())
    for number, shift in enumerate([0.0, 1.0, 0.0]):
        original.extend(make_batch(number, shift=shift))
    original.refresh()
    original.dumps(tmp_path / "files")
    other = make_replay(*range(20, 20 + used), staleness=make_filter())
    for files in (False, True):
        if used:
            other.refresh()
        if files:
            other.loads(tmp_path / "files")
        else:
            other.load_state_dict(original.state_dict())
        assert not other.can_sample()
        with pytest.raises(RuntimeError, match="stored or loaded"):
            other.sample()
        other.refresh()
        assert seen(epoch_of(other)) == frames_of(0, 2)


def test_the_actor_is_in_no_state_and_is_not_overwritten(tmp_path: Path) -> None:
    staleness = make_filter()
    replay = make_replay(0, staleness=staleness)
    state = replay.state_dict()
    replay.dumps(tmp_path / "files")
    assert state["_transforms"] == {}
    assert not any("log_std" in key for key in _paths(state))
    with torch.no_grad():
        for parameter in staleness.actor.parameters():
            parameter.fill_(3.0)
    replay.load_state_dict(state)
    replay.loads(tmp_path / "files")
    assert all((parameter == 3.0).all() for parameter in staleness.actor.parameters())
    assert replay.refresh()["staleness"] > 0.5  # measured against the live actor


def _paths(state: Any, path: str = "") -> list[str]:
    if not isinstance(state, dict):
        return [path]
    return [p for key, value in state.items() for p in _paths(value, f"{path}/{key}")]


@pytest.mark.parametrize("copy_", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
@SAMPLERS
def test_a_copy_is_independent_and_continues_identically(
    copy_: Callable[[MultiBatchReplayBuffer], MultiBatchReplayBuffer], sampler: MultiBatchSampler
) -> None:
    generator = torch.Generator().manual_seed(1)
    original = make_replay(0, 1, 2, 3, generator=generator, sampler=copy.deepcopy(sampler))
    original.sample()
    twin = copy_(original)
    assert future(twin) == future(original)
    before = generator.get_state()
    epoch_of(twin)
    assert torch.equal(generator.get_state(), before)
    twin[:]["frame"].zero_()
    check_aligned(original[:])


@pytest.mark.parametrize("empty_write_count", [True, False])
def test_empty_forgets(empty_write_count: bool) -> None:
    replay = make_replay(0, 1, 2, 3)
    replay.sample()
    replay.empty(empty_write_count=empty_write_count)
    assert (len(replay), replay.age.tolist(), replay.num_active) == (0, [], 0)
    assert replay.write_count == (0 if empty_write_count else 4 * N)
    assert not replay.can_sample()
    with pytest.raises(RuntimeError, match="empty storage"):
        replay.sample()
    replay.extend(make_batch(7))
    assert replay.age.tolist() == [0]
    assert seen(epoch_of(replay)) == frames_of(7)


def test_empty_forgets_what_was_in_use() -> None:
    replay = make_replay(staleness=make_filter())
    for number, shift in enumerate([1.0, 0.0]):
        replay.extend(make_batch(number, shift=shift))
    replay.refresh()
    replay.empty()
    replay.extend(make_batch(2))
    with pytest.raises(RuntimeError, match="sampling before refresh"):
        replay.sample()
    replay.refresh()
    assert seen(epoch_of(replay)) == frames_of(2)


def test_another_sampler_draws_from_the_buffer_s_generator() -> None:
    epochs = []
    for set_it in (False, True):
        replay = make_replay(0, 1, generator=torch.Generator().manual_seed(3))
        if set_it:
            first = replay.sampler
            assert replay.set_sampler(AdaptiveMinibatchSampler(N)) is first
        epochs.append(epoch_of(replay))
    assert epochs[0] == epochs[1]


def test_another_sampler_waits_for_refresh_with_a_filter() -> None:
    replay = make_replay(staleness=make_filter())
    for number, shift in enumerate([1.0, 0.0]):
        replay.extend(make_batch(number, shift=shift))
    replay.refresh()
    replay.set_sampler(EpisodicMinibatchSampler(N))
    with pytest.raises(RuntimeError, match="sampling before refresh"):
        replay.sample()
    replay.refresh()
    assert set(seen(epoch_of(replay))) <= set(frames_of(1))


@pytest.mark.parametrize("buffer_type", [ReplayBuffer, TensorDictReplayBuffer])
@SAMPLERS
def test_the_sampler_keeps_its_contracts_in_a_stock_buffer(
    buffer_type: type[ReplayBuffer], sampler: MultiBatchSampler, tmp_path: Path
) -> None:
    def make(numbers: range) -> ReplayBuffer:
        buffer = buffer_type(
            storage=LazyTensorStorage(L * N),
            sampler=copy.deepcopy(sampler),
            writer=TensorDictRoundRobinWriter(),
            batch_size=M,
            generator=torch.Generator().manual_seed(1),
        )
        for number in numbers:
            buffer.extend(make_batch(number))
        return buffer

    def follows(buffer: ReplayBuffer) -> list[list[int]]:
        return [buffer.sample()["frame"].tolist() for _ in range(5)]

    original = make(range(3))
    _sampler_of(original).set_active([0, 2])
    original.sample()
    state = original.state_dict()
    original.dumps(tmp_path / "files")
    loaded, read, unpickled = (
        make(range(5, 7)),
        make(range(1)),
        pickle.loads(pickle.dumps(original)),
    )
    loaded.load_state_dict(state)
    read.loads(tmp_path / "files")
    expected = follows(original)
    assert len(expected[0]) == 2 * M
    assert [follows(buffer) for buffer in (loaded, read, unpickled)] == [expected] * 3


def _sampler_of(buffer: ReplayBuffer) -> MultiBatchSampler:
    sampler: Sampler = buffer.sampler
    assert isinstance(sampler, MultiBatchSampler)
    return sampler
