"""Damaged checkpoints and full disks: named and skipped, with nothing else lost."""

import errno
import logging
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from amber_trl.checkpoints import (
    CheckpointError,
    Checkpoints,
    best_checkpoint,
    list_checkpoints,
    read_component,
    verify_run,
)
from tests.checkpoints.checkpointed import Learner, stepped


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkpoints, the newer to be damaged."""
    torch.manual_seed(0)
    stepped(tmp_path, 2)
    older, newer = list_checkpoints(tmp_path)
    return older, newer


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def _flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "another count of frames": lambda content: content.replace(b'"frames": 20', b'"frames": 21'),
    "a changed byte": lambda content: content[:3000] + bytes([content[3000] ^ 1]) + content[3001:],
    "one byte short": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "a block of zeros": lambda content: content[:2048] + bytes(512) + content[2560:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_named_and_the_previous_one_restored(
    damage: Callable[[bytes], bytes], saved: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = saved
    expected = read_component(older, "network")["weight"]
    newer.write_bytes(damage(newer.read_bytes()))
    before = _contents(older.parent)
    with pytest.raises(CheckpointError, match=str(newer)) as refused:
        read_component(newer, "network")
    assert verify_run(older.parent) == [(older, None), (newer, str(refused.value))]

    learner = Learner()
    restored = learner.checkpoints(older.parent).restore()
    assert restored is not None
    assert restored.path == older
    assert learner.counter.frames == 10
    assert torch.equal(learner.network.weight, expected)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(refused.value) in record.getMessage()
    assert _contents(older.parent) == before


def test_no_bit_goes_unnoticed(saved: tuple[Path, Path]) -> None:
    _, newer = saved
    line, digest, states = (8 * len(part) for part in newer.read_bytes().split(b"\n", 2))
    bits = [*range(0, line + 8, 11), *range(line + 8, line + digest + 16)]
    for bit in (*bits, *range(line + digest + 16, line + digest + 16 + states, 997)):
        _flip(newer, bit)
        assert verify_run(newer)[0][1] is not None, bit
        _flip(newer, bit)
    assert verify_run(newer) == [(newer, None)]


def test_if_all_are_damaged_the_error_lists_each_problem(saved: tuple[Path, Path]) -> None:
    for path in saved:
        _flip(path, 8 * 3000)
    learner = Learner()
    before = learner.network.weight.clone()
    with pytest.raises(CheckpointError, match=r"0020\.ckpt is damaged.*0010\.ckpt is damaged"):
        learner.checkpoints(saved[0].parent).restore()
    assert torch.equal(learner.network.weight, before)
    with pytest.raises(CheckpointError, match=r"0010\.ckpt is damaged"):
        best_checkpoint(saved[0].parent)


def test_a_damaged_one_is_neither_counted_nor_removed(saved: tuple[Path, Path]) -> None:
    older, newer = saved
    _flip(newer, 8 * 3000)
    damaged = newer.read_bytes()
    learner = Learner()
    checkpoints = learner.checkpoints(older.parent)
    checkpoints.restore()
    for frames in (15, 20, 30):
        checkpoints.save(frames, score=None)
        kept = newer if frames < 20 else newer.with_suffix(".damaged")
        assert kept.read_bytes() == damaged
    assert [int(path.stem) for path in list_checkpoints(older.parent)] == [20, 30]
    assert [problem for _, problem in verify_run(older.parent)] == [None, None]


def test_a_write_that_fails_half_way_leaves_the_earlier_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, {"network": nn.Linear(1000, 1000)})
    checkpoints.save(1, score=None)
    before = _contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save(2, score=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _contents(tmp_path) == before
    assert checkpoints.restore() is not None
    checkpoints.save(2, score=None)
    assert [path.stem[-1] for path in list_checkpoints(tmp_path)] == ["1", "2"]


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a tmpfs")
    try:
        network = nn.Linear(1250, 1000)  # 5 MB
        checkpoints = Checkpoints(disk / "run", {"network": network})
        checkpoints.save(1, score=None)
        (disk / "hog").write_bytes(bytes(24_500_000))
        before = _contents(disk / "run")
        with pytest.raises(OSError, match="No space left") as refused:
            checkpoints.save(2, score=None)
        assert refused.value.errno == errno.ENOSPC
        assert _contents(disk / "run") == before
        assert checkpoints.restore() is not None
        (disk / "hog").unlink()
        for frames in range(2, 8):  # removing old checkpoints makes room
            checkpoints.save(frames, score=None)
        assert len(list_checkpoints(disk / "run")) == 2
    finally:
        subprocess.run(["umount", str(disk)], check=True)
