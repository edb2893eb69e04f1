"""Loading: every state that a buffer can be in, and states that do not fit it."""

from pathlib import Path

import pytest
import torch
from torchrl.envs import Transform

from amber_trl.data import MultiBatchReplayBuffer
from tests.data.frames import L, assert_same, frames_of, make_filter, make_replay


def test_every_state_that_a_buffer_can_be_in_loads() -> None:
    def check(replay: MultiBatchReplayBuffer) -> None:
        other = make_replay(staleness=replay.staleness)
        other.load_state_dict(replay.state_dict())
        assert_same(other.state_dict(), replay.state_dict())
        if len(replay):
            assert other.storage[:].device == replay.storage[:].device == torch.device("cpu")

    replay = make_replay(staleness=make_filter())
    for number in range(2 * L):
        replay.extend(make_replay(number)[:])
        check(replay)
        replay.refresh()
        check(replay)
        for _ in replay:
            check(replay)
    replay.empty()
    check(replay)


def test_a_buffer_without_a_generator_loads_the_state_of_one_without() -> None:
    original, other = make_replay(0), make_replay(1)
    for replay in (original, other):
        replay.set_rng(None)
    other.load_state_dict(original.state_dict())
    assert sorted(other[:]["frame"].tolist()) == frames_of(0)


def test_a_load_keeps_the_minibatch_size(tmp_path: Path) -> None:
    original = make_replay(1)
    original.sample()
    original.dumps(tmp_path)
    for load, source in (("load_state_dict", original.state_dict()), ("loads", tmp_path)):
        other = MultiBatchReplayBuffer(L, original.frames_per_batch, 4)
        getattr(other, load)(source)
        assert other.batch_size == 4 * other.num_active
        assert len(list(other)) == other.frames_per_batch // 4


class Scaled(Transform):
    """A transform with a state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size))


def test_the_state_of_other_transforms_is_refused() -> None:
    state = make_replay(5, transform=Scaled(2)).state_dict()
    for other in (make_replay(1), make_replay(1, transform=Scaled(3))):
        with pytest.raises(RuntimeError, match="scale"):
            other.load_state_dict(state)


def test_a_load_that_fails_midway_leaves_nothing_to_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replay(5).dumps(tmp_path / "files")
    other = make_replay(1, staleness=make_filter())
    other.refresh()
    generator = other._rng

    def fail(path: Path) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(other._sampler, "loads", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        other.loads(tmp_path / "files")
    assert other._rng is generator
    with pytest.raises(RuntimeError, match="refresh"):
        other.sample()


def test_a_state_without_a_column_that_the_buffer_writes_is_refused() -> None:
    other = make_replay(age_key="age")
    with pytest.raises(KeyError, match=r"\['age'\] missing from the state"):
        other.load_state_dict(make_replay(1).state_dict())
    assert not len(other)
