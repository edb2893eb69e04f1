"""A state that is damaged is refused by key, value and rule, before anything is loaded."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs import Transform

from amber_trl.data import AdaptiveMinibatchSampler, MultiBatchReplayBuffer
from tests.data.frames import L, N, assert_same, frames_of, make_filter, make_replay

State = dict[str, Any]
REQUIRED = ["_storage", "_sampler", "_writer", "_transforms", "_batch_size", "_rng"]


def put(*path_and_value: Any) -> Callable[[State], None]:
    *path, last, value = path_and_value

    def change(state: State) -> None:
        functools.reduce(lambda part, key: part[key], path, state)[last] = value

    return change


def drop(*path: str) -> Callable[[State], None]:
    return lambda state: functools.reduce(lambda part, key: part[key], path[:-1], state).pop(
        path[-1]
    )


DAMAGED: list[tuple[Callable[[State], None], str]] = [
    *((drop(key), rf"\['{key}'\] missing of the state") for key in REQUIRED),
    (drop("_storage", "_len"), r"\['_len'\] missing"),
    (drop("_writer", "_cursor"), r"\['_cursor'\] missing"),
    (drop("_sampler", "epoch"), r"\['epoch'\] missing"),
    (put("_storage", "_len", N + 1), r"_len=9 .* multiple of 8 in \[0, 24\]"),
    (put("_storage", "_len", 4 * N), r"_len=32 .* multiple of 8 in \[0, 24\]"),
    (put("_storage", "_storage", {}), r"_len=16 .* multiple of 8 in \[0, 0\]"),
    (put("_writer", "_cursor", 3), r"_cursor=3 .* multiple of 8 in \[0, 16\]"),
    (put("_writer", "_cursor", L * N), r"_cursor=24 .* in \[0, 16\]"),
    (put("_writer", "_cursor", 8.0), r"_cursor=8\.0 .* multiple"),
    (put("_writer", "_cursor", N), r"_cursor=8 .* while 16 of 24 .* must be 16"),
    (put("_batch_size", 3), r"_batch_size=3 does not divide frames_per_batch=8"),
    (put("_rng", None), r"_rng=None .* generator on cpu"),
    (put("_rng", (torch.zeros(3, dtype=torch.uint8), "cpu")), "_rng=.* generator on cpu"),
    (put("_transforms", {"0.scale": torch.ones(1)}), r"_transforms=\['0.scale'\] .* entries \[\]"),
    (put("_sampler", "active", [0, 2]), r"active=\[0, 2\] .* 2 batches, must be slots below 2"),
    (put("_sampler", "active", [1, 0]), r"active=\[1, 0\] .* ascending"),
    (put("_sampler", "active", 1), r"active=1 .* ascending"),
    (put("_sampler", "epoch", torch.tensor([[0, 2 * N]])), "epoch .* 0 to 16: .* below 16"),
    (put("_sampler", "epoch", torch.tensor([[-1, 0]])), "epoch .* rows -1 to 0"),
    (put("_sampler", "epoch", torch.zeros(2, 4)), "epoch=.*float32.* must be None or int64"),
    (put("_sampler", "position", 5), r"position=5 .* in \[0, 4\]"),
    (put("_sampler", "batch_size", -1), "batch_size=-1"),
]


@pytest.mark.parametrize("used", [0, 3])
@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_a_damaged_state_is_refused_and_nothing_changes(
    damage: Callable[[State], None], message: str, used: int
) -> None:
    original, other = make_replay(5, 6), make_replay(*range(used))
    original.sample()
    if used:
        other.sample()
    state, before = original.state_dict(), other.state_dict()
    damage(state)
    with pytest.raises((KeyError, ValueError), match=message):
        other.load_state_dict(state)
    assert_same(other.state_dict(), before)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("rng_state", None, "rng_state"),
        ("buffer_metadata.json", None, "buffer_metadata"),
        ("buffer_metadata.json", {"batch_size": 3}, "_batch_size=3"),
        (
            "writer/writer.json",
            {"frames_per_batch": N, "num_batches": L, "_cursor": 3},
            "_cursor=3",
        ),
    ],
)
def test_damaged_files_are_refused_and_nothing_changes(
    file: str, content: Any, message: str, tmp_path: Path
) -> None:
    original, other = make_replay(5, 6), make_replay(1)
    original.dumps(tmp_path / "files")
    path = tmp_path / "files" / file
    if content is not None:
        path.write_text(json.dumps(content))
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    before = other.state_dict()
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        other.loads(tmp_path / "files")
    assert_same(other.state_dict(), before)


class Scaled(Transform):
    """A transform with a state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size))


def test_the_state_of_other_transforms_is_refused_and_nothing_changes() -> None:
    state = make_replay(5, transform=Scaled(2)).state_dict()
    for other in (make_replay(1), make_replay(1, transform=Scaled(3))):
        before = other.state_dict()
        with pytest.raises(ValueError, match=r"_transforms=.*0\.scale"):
            other.load_state_dict(state)
        assert_same(other.state_dict(), before)


def test_files_of_other_transforms_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    make_replay(5, transform=Scaled(2)).dumps(tmp_path / "scaled")
    make_replay(5).dumps(tmp_path / "plain")
    for other, files in (
        (make_replay(1), "scaled"),
        (make_replay(1, transform=Scaled(3)), "scaled"),
        (make_replay(1, transform=Scaled(2)), "plain"),
    ):
        before, generator = other.state_dict(), other._rng
        with pytest.raises(ValueError, match=r"_transforms=.*0\.scale|0\.scale.*this buffer"):
            other.loads(tmp_path / files)
        assert_same(other.state_dict(), before)
        assert other._rng is generator


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


def test_a_buffer_without_a_generator_loads_the_state_of_one_without() -> None:
    original, other = make_replay(0), make_replay(1)
    for replay in (original, other):
        replay.set_rng(None)
    other.load_state_dict(original.state_dict())
    assert sorted(other[:]["frame"].tolist()) == frames_of(0)


def test_every_state_that_a_buffer_can_be_in_loads() -> None:
    def check(replay: MultiBatchReplayBuffer) -> None:
        other = make_replay(staleness=replay.staleness)
        other.load_state_dict(replay.state_dict())
        assert_same(other.state_dict(), replay.state_dict())

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


def test_a_sampler_alone_refuses_a_damaged_state() -> None:
    sampler = AdaptiveMinibatchSampler(N)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match="position=1"):
        sampler.load_state_dict(state | {"position": 1})
    with pytest.raises(KeyError, match=r"\['ran_out'\] missing of the state of Adaptive"):
        sampler.load_state_dict({key: state[key] for key in state if key != "ran_out"})
