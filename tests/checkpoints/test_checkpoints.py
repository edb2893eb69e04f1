"""What a directory of checkpoints keeps, loads and refuses if no file is damaged."""

import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import amber_trl
from amber_trl.checkpoints import (
    CheckpointError,
    Checkpoints,
    best_checkpoint,
    list_checkpoints,
    read_component,
    verify_run,
)
from tests.checkpoints.checkpointed import Learner, stepped


def _names(directory: Path) -> list[str]:
    return [path.stem for path in list_checkpoints(directory)]


def _save_all(directory: Path, *scores: float | None, keep_last: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(directory, {"a": nn.Linear(2, 1)}, keep_last=keep_last)
    for index, score in enumerate(scores):
        checkpoints.save(10 * index, score=score)
    return checkpoints


def test_everything_is_restored_and_continues_identically(tmp_path: Path) -> None:
    learner, fingerprints = stepped(tmp_path, 3)
    learner.step()
    then = learner.fingerprint()
    other = Learner()
    restored = other.checkpoints(tmp_path).restore()
    assert restored is not None
    assert restored.frames == 30
    assert restored.path == tmp_path / "000000000030.ckpt"
    assert restored.differences == ()
    assert other.fingerprint() == fingerprints[-1]
    other.step()
    assert other.fingerprint() == then


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert Learner().checkpoints(tmp_path / "none").restore() is None
    assert not (tmp_path / "none").exists()
    assert list_checkpoints(tmp_path / "none") == []
    with pytest.raises(FileNotFoundError, match="run="):
        verify_run(tmp_path)


@pytest.mark.parametrize(
    ("scores", "kept", "best"),
    [
        ([1.0, 5.0, 2.0, math.nan, None, 3.0], [10, 40, 50], 10),
        ([5.0, 5.0, 1.0, 1.0], [10, 20, 30], 10),  # the newest of equals
        ([math.inf, math.nan, None, -math.inf], [20, 30], None),
    ],
)
def test_the_last_two_and_the_best_are_kept(
    tmp_path: Path, scores: list[float | None], kept: list[int], best: int | None
) -> None:
    _save_all(tmp_path, *scores)
    assert [int(name) for name in _names(tmp_path)] == kept
    found = best_checkpoint(tmp_path)
    assert best == (found and int(found.stem))
    assert sorted(tmp_path.iterdir()) == list_checkpoints(tmp_path)


def test_the_next_process_knows_the_best_and_saves_nothing_before_the_newest(
    tmp_path: Path,
) -> None:
    _save_all(tmp_path, 9.0, 1.0, 1.0)
    checkpoints = Checkpoints(tmp_path, {"a": nn.Linear(2, 1)}, keep_last=1)
    with pytest.raises(ValueError, match="frames=5"):
        checkpoints.save(5, score=None)
    assert _names(tmp_path) == ["000000000000", "000000000010", "000000000020"]
    checkpoints.save(1000, score=2.0)
    assert _names(tmp_path) == ["000000000000", "000000001000"]


def test_saving_at_the_same_frames_supersedes(tmp_path: Path) -> None:
    network = nn.Linear(2, 1)
    checkpoints = Checkpoints(tmp_path, {"a": network})
    for frames in (999_999_999_999, 1_000_000_000_000):  # the name has one digit more
        checkpoints.save(frames, score=9.0)
    nn.init.constant_(network.weight, 7.0)
    again = checkpoints.save(1_000_000_000_000, score=1.0)
    older = tmp_path / "999999999999.ckpt"
    assert list_checkpoints(tmp_path) == [older, again]
    assert best_checkpoint(tmp_path) == older
    nn.init.zeros_(network.weight)
    restored = checkpoints.restore()
    assert restored is not None
    assert restored.path == again
    assert network.weight.tolist() == [[7.0, 7.0]]


def test_the_first_line_describes_the_rest(tmp_path: Path) -> None:
    details = {"exactness": "approximate", "reasons": ["a GPU"]}
    checkpoints = Checkpoints(tmp_path, {"a": nn.Linear(2, 1)})
    path = checkpoints.save(5, score=1.5, details=details)
    line, _, content = path.read_bytes().split(b"\n", 2)
    header = json.loads(line)
    assert (header["frames"], header["score"], header["details"]) == (5, 1.5, details)
    assert {"python", "torch", "torchrl", "amber_trl"} <= set(header["versions"])
    assert {"system", "processor", "instructions"} <= set(header["machine"])
    assert header["sha256"] == hashlib.sha256(content).hexdigest()
    restored = checkpoints.restore()
    assert restored is not None
    assert restored.details == details


@pytest.mark.parametrize("below", [".", "checkpoints", "checkpoints/000000000005.ckpt"])
def test_verify_takes_a_run_or_its_checkpoints_or_one(tmp_path: Path, below: str) -> None:
    path = Checkpoints(tmp_path / "checkpoints", {"a": nn.Linear(2, 1)}).save(5, score=1.5)
    assert verify_run(tmp_path / below) == [(path, None)]


def test_differences_from_the_saving_machine_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _ = stepped(tmp_path, 1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    monkeypatch.setattr("amber_trl._provenance.version", lambda name: "99.0")
    restored = learner.checkpoints(tmp_path).restore()
    assert restored is not None
    assert any(text.startswith("torch was 2") for text in restored.differences)
    assert restored.differences[-1].startswith("instructions was ")
    assert restored.differences[-1].endswith("is ABACUS")


def test_opening_removes_what_a_kill_left_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stepped(tmp_path, 1)
    left = tmp_path / "000000000020.ckpt.part"
    mine = [tmp_path / name for name in ("notes", "notes.part", "12.ckpt", "0000000000x0.ckpt")]
    for path in (left, *mine):
        path.write_text("x")
    with caplog.at_level(logging.INFO):
        Learner().checkpoints(tmp_path)
    assert str(left) in caplog.text
    assert not left.exists()
    assert all(path.exists() for path in mine)
    assert _names(tmp_path) == ["000000000010"]


def test_other_components_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, {"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)}).save(1, score=None)
    fresh = nn.Linear(2, 1)
    before = fresh.weight.clone()
    for components in ({"a": fresh}, {"a": fresh, "b": nn.Linear(2, 1), "c": fresh}):
        with pytest.raises(CheckpointError, match=r"components=.* saved with \['a', 'b'\]"):
            Checkpoints(tmp_path, components).restore()
    assert torch.equal(fresh.weight, before)
    with pytest.raises(CheckpointError, match=r"'c'.* \['a', 'b'\]"):
        read_component(path, "c")


def test_a_state_that_does_not_fit_names_the_component(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Checkpoints(tmp_path, {"a": nn.Linear(2, 1)}).save(1, score=None)
    with pytest.raises(CheckpointError, match=r"(?s)component 'a' .*size mismatch"):
        Checkpoints(tmp_path, {"a": nn.Linear(3, 1)}).restore()
    assert not caplog.records, "it is not the checkpoint that is wrong"


@pytest.mark.parametrize("content", [np.random.default_rng(0), lambda: 0])
def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path: Path, content: object) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"content": content}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    checkpoints = Checkpoints(tmp_path, {"a": nn.Linear(2, 1), "odd": Odd()})
    with pytest.raises(CheckpointError, match="component odd"):
        checkpoints.save(1, score=None)
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    part = {"a": nn.Linear(2, 1)}
    with pytest.raises(TypeError, match="'a' is a int"):
        Checkpoints(tmp_path, {"a": 3})
    with pytest.raises(ValueError, match="keep_last=0"):
        Checkpoints(tmp_path, part, keep_last=0)
    checkpoints = Checkpoints(tmp_path, part)
    with pytest.raises(ValueError, match="frames=-1"):
        checkpoints.save(-1, score=None)
    for details, error in (({"x": math.nan}, ValueError), ({"x": object()}, TypeError)):
        with pytest.raises(error):
            checkpoints.save(1, score=None, details=details)
    assert list(tmp_path.iterdir()) == []


def test_another_format_is_named_with_the_version_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amber_trl.checkpoints.checkpoint_file.FORMAT", 99)
    path = Checkpoints(tmp_path, {"a": nn.Linear(2, 1)}).save(1, score=None)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"format 99.*{amber_trl.__version__}"):
        read_component(path, "a")
