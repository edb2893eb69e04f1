"""Damaged checkpoints, full disks and hostile files: refused by name, with nothing lost."""

import errno
import hashlib
import io
import json
import logging
import os
import pickle
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from amber_trl.checkpoints import (
    CheckpointError,
    Checkpoints,
    best_checkpoint,
    list_checkpoints,
    read_component,
    verify_checkpoint,
    verify_run,
)
from tests.checkpoints.checkpointed import Learner, stepped


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """Two checkpoints, to be copied and damaged."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("saved")
    return directory, stepped(directory, 2)[1]


def _files(checkpoint: Path) -> list[str]:
    return sorted(
        path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()
    )


def _contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in _files(directory)}


def _flip(file: Path, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _truncate(file: Path, other: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def _empty(file: Path, other: Path) -> None:
    os.truncate(file, 0)


def _zero(file: Path, other: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _remove(file: Path, other: Path) -> None:
    file.unlink()


def _replace(file: Path, other: Path) -> None:
    shutil.copyfile(other, file)


def _into_directory(file: Path, other: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "damage", [_flip, _truncate, _empty, _zero, _remove, _replace, _into_directory]
)
def test_each_damaged_file_is_named_and_the_previous_one_restored(
    damage: Callable[[Path, Path], None],
    saved: tuple[Path, list[list[float]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, fingerprints = saved
    files = _files(list_checkpoints(source)[1])
    assert len(files) == 7  # four components, TorchRL's manifest, ours and its sum
    for number, name in enumerate(files):
        directory = tmp_path / str(number)
        shutil.copytree(source, directory)
        older, newer = list_checkpoints(directory)
        damage(newer / name, older / name)
        before = _contents(directory)
        with pytest.raises(CheckpointError) as refused:
            verify_checkpoint(newer)
        assert str(newer / name) in str(refused.value) or (
            name == "manifest.sha256" and f"in {name} beside it" in str(refused.value)
        )
        assert verify_run(directory) == [(older, None), (newer, str(refused.value))]

        learner = Learner()
        caplog.clear()
        restored = learner.checkpoints(directory).restore()
        assert restored is not None
        assert restored.path == older
        assert learner.fingerprint() == fingerprints[0]
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(refused.value) in record.getMessage()
        assert _contents(directory) == before


def test_every_bit_of_the_sums_and_some_of_the_rest_count(
    saved: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    shutil.copytree(saved[0], tmp_path / "copy")
    checkpoint = list_checkpoints(tmp_path / "copy")[1]
    verify_checkpoint(checkpoint)
    for name in _files(checkpoint):
        content = (checkpoint / name).read_bytes()
        bits = len(content) * 8
        for bit in range(0, bits, 1 if name == "manifest.sha256" else bits // 60):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            (checkpoint / name).write_bytes(flipped)
            with pytest.raises(CheckpointError):
                verify_checkpoint(checkpoint)
        (checkpoint / name).write_bytes(content)
    verify_checkpoint(checkpoint)


def test_a_whole_checkpoint_under_another_s_name_is_refused(
    saved: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    source = list_checkpoints(saved[0])[0]
    shutil.copytree(source, tmp_path / "000000000099")
    with pytest.raises(CheckpointError, match=r"manifest\.json is of a checkpoint at 10 frames"):
        verify_checkpoint(tmp_path / "000000000099")
    shutil.copytree(source, tmp_path / "elsewhere")
    assert verify_checkpoint(tmp_path / "elsewhere").frames == 10


def test_none_left_says_what_is_wrong_with_each(
    saved: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    shutil.copytree(saved[0], tmp_path / "copy")
    for checkpoint in list_checkpoints(tmp_path / "copy"):
        (checkpoint / "manifest.sha256").unlink()
    learner = Learner()
    before = learner.network.weight.clone()
    with pytest.raises(CheckpointError, match=r"0010/manifest.sha256 is missing") as refused:
        learner.checkpoints(tmp_path / "copy").restore()
    assert "0020/manifest.sha256 is missing" in str(refused.value)
    assert torch.equal(learner.network.weight, before)
    with pytest.raises(CheckpointError, match=r"manifest.sha256 is missing"):
        best_checkpoint(tmp_path / "copy")


def test_a_damaged_one_is_neither_counted_nor_removed_nor_overwritten(
    saved: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(saved[0], directory)
    newer = list_checkpoints(directory)[1]
    _flip(newer / "state" / "manifest.json", newer)
    damaged = _contents(newer)
    learner = Learner()
    checkpoints = learner.checkpoints(directory)
    checkpoints.restore()
    for _ in range(4):
        learner.step()
        checkpoints.save(learner.counter.frames, score=None)
    names = [path.name for path in list_checkpoints(directory)]
    assert names == ["000000000020", "000000000040", "000000000050"]
    assert _contents(newer) == damaged
    assert [problem is None for _, problem in verify_run(directory)] == [False, True, True]


def test_going_on_at_the_frames_of_a_damaged_one(
    saved: tuple[Path, list[list[float]]], tmp_path: Path
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(saved[0], directory)
    newer = list_checkpoints(directory)[1]
    _remove(newer / "manifest.json", newer)
    checkpoints = Learner().checkpoints(directory)
    checkpoints.restore()
    assert checkpoints.save(20, score=None).name == "000000000020-1"
    names = [path.name for path in list_checkpoints(directory)]
    assert names == ["000000000010", "000000000020", "000000000020-1"]


class _Attack:
    """A pickle that would leave a file behind."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_state_with_right_sums_runs_no_code(tmp_path: Path, zipped: bool) -> None:
    network = nn.Linear(2, 1)
    checkpoints = Checkpoints(tmp_path / "run", {"actor": network})
    path = checkpoints.save(5, score=None)
    file = verify_checkpoint(path).components["actor"]
    attack, target = _Attack(tmp_path / "owned"), tmp_path / "owned"
    buffer = io.BytesIO()
    if zipped:
        torch.save(attack, buffer)
    else:
        pickle.dump(attack, buffer)
    (path / file).write_bytes(buffer.getvalue())
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][file] = {
        "size": len(buffer.getvalue()),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    _seal(path, json.dumps(manifest))
    verify_checkpoint(path)
    with pytest.raises(CheckpointError, match=f"{file} cannot be loaded"):
        read_component(path, "actor")
    with pytest.raises(CheckpointError, match=r"no checkpoint .* can be used"):
        checkpoints.restore()
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is no manifest"),
        ("{}", "is no manifest"),
        ('{"format": 99}', "has format 99, and this amber_trl reads format 1"),
        ('{"format": 1, "files": {"../x": {"size": 1, "sha256": ""}}}', "is no manifest"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = Checkpoints(tmp_path, {"actor": nn.Linear(2, 1)}).save(5, score=None)
    _seal(path, text)
    with pytest.raises(CheckpointError, match=message):
        verify_checkpoint(path)


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, {"actor": nn.Linear(2, 1)}).save(5, score=None)
    manifest = json.loads((path / "manifest.json").read_text())
    for outside in ("/etc/hostname", "../../secret", "state/../../x"):
        files = {**manifest["files"], outside: {"size": 1, "sha256": ""}}
        _seal(path, json.dumps({**manifest, "files": files}))
        with pytest.raises(CheckpointError, match="outside the checkpoint"):
            verify_checkpoint(path)


def _seal(path: Path, manifest: str) -> None:
    (path / "manifest.json").write_text(manifest)
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    (path / "manifest.sha256").write_text(f"{digest}  manifest.json\n")


def test_too_little_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, {"big": nn.Linear(1000, 1000)})
    checkpoints.save(1, score=None)
    before = _contents(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12_000_000))
    with pytest.raises(OSError, match=r"needs 1\d{7} bytes, and the disk has 12000000") as refused:
        checkpoints.save(2, score=None)
    assert refused.value.errno == errno.ENOSPC
    assert _contents(tmp_path) == before


def test_a_write_that_fails_half_way_leaves_the_earlier_ones(tmp_path: Path) -> None:
    network = nn.Linear(1000, 1000)
    checkpoints = Checkpoints(tmp_path, {"small": nn.Linear(2, 1), "z": network})
    checkpoints.save(1, score=None)
    before = _contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises((OSError, CheckpointError)):
            checkpoints.save(2, score=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _contents(tmp_path) == before
    assert checkpoints.restore() is not None
    checkpoints.save(2, score=None)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["1", "2"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MB, if this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this process may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Linear(1250, 1000)  # 5 MB
    checkpoints = Checkpoints(small_disk / "run", {"network": network})
    checkpoints.save(1, score=None)
    (small_disk / "hog").write_bytes(bytes(16_000_000))
    before = _contents(small_disk / "run")
    with pytest.raises(OSError, match="nothing was written") as refused:
        checkpoints.save(2, score=None)
    assert refused.value.errno == errno.ENOSPC
    assert _contents(small_disk / "run") == before

    (small_disk / "hog").write_bytes(bytes(24_500_000))  # now the write itself fails
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    with pytest.raises((OSError, CheckpointError)):
        checkpoints.save(2, score=None)
    assert _contents(small_disk / "run") == before
    network.weight.data.zero_()
    assert checkpoints.restore() is not None
    assert network.weight.abs().sum() > 0

    (small_disk / "hog").unlink()
    for frames in range(2, 8):  # what is not kept makes room
        checkpoints.save(frames, score=None)
    assert len(list_checkpoints(small_disk / "run")) == 2
