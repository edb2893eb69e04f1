"""The files of one checkpoint: its manifest, its sums, and reading with both checked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from amber_trl._provenance import differences, machine, package_versions
from amber_trl.checkpoints._listing import best_of, list_checkpoints, order

_MANIFEST, _DIGEST = "manifest.json", "manifest.sha256"
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or loaded; the message names the file and says why.

    Examples:
        >>> from amber_trl.checkpoints import CheckpointError, verify_checkpoint
        >>> try:
        ...     verify_checkpoint("nowhere/000000002048")
        ... except CheckpointError as error:
        ...     print(error)
        checkpoint nowhere/000000002048: there is no such directory
    """


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says of a file.

    Attributes:
        size: its bytes.
        sha256: its SHA-256, in hexadecimal digits.

    Examples:
        >>> from amber_trl.checkpoints import FileRecord
        >>> FileRecord(3, "ab" * 32).size
        3
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        frames: frames collected when it was saved.
        score: higher is better; None where there was none yet.
        created: when it was saved, in UTC, as ISO 8601 text.
        versions: of Python and the packages, by name.
        machine: system, processor and the like, by name.
        details: what the program that saved it had to say, plain values by name.
        components: by name, the file that holds the component's state.
        files: size in bytes and SHA-256 of every file but the manifest, by path in the directory.
        format: version of this layout.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, verify_checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     manifest = verify_checkpoint(checkpoints.save(2048, score=-3.5))
        >>> manifest.frames, manifest.score, list(manifest.components)
        (2048, -3.5, ['actor'])
    """

    frames: int
    score: float | None
    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    details: Mapping[str, Any]
    components: Mapping[str, str]
    files: Mapping[str, FileRecord]
    format: int = _FORMAT

    def differences(self) -> tuple[str, ...]:
        """What differs here from where it was saved, in words; none on a like machine."""
        return differences(self.versions, package_versions()) + differences(self.machine, machine())


def describe_files(path: Path) -> dict[str, FileRecord]:
    """Size and sum of every file below ``path``, by relative path."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            name = file.relative_to(path).as_posix()
            found[name] = _describe(file)
    return found


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the manifest and, as ``sha256sum --check`` reads it, its own sum."""
    text = json.dumps(asdict(manifest), indent=2, allow_nan=False) + "\n"
    (path / _MANIFEST).write_text(text, encoding="utf-8")
    (path / _DIGEST).write_text(_digest_line(text.encode()), encoding="utf-8")


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest, checked against its own sum and against the directory's name."""
    if not path.is_dir():
        raise CheckpointError(f"checkpoint {path}: there is no such directory")
    line, text = _read(path / _DIGEST), _read(path / _MANIFEST)
    if not re.fullmatch(rb"[0-9a-f]{64}  manifest\.json\n", line):
        raise CheckpointError(f"checkpoint file {path / _DIGEST} is damaged: it is no SHA-256 sum")
    if line != _digest_line(text).encode():
        raise CheckpointError(
            f"checkpoint file {path / _MANIFEST} is damaged: its SHA-256 is not the one in "
            f"{_DIGEST} beside it"
        )
    manifest = _parse(path / _MANIFEST, text)
    named = order(path)
    if named is not None and named[0] != manifest.frames:
        raise CheckpointError(
            f"checkpoint file {path / _MANIFEST} is of a checkpoint at {manifest.frames} frames: "
            f"it does not belong into {path.name}"
        )
    return manifest


def verify_checkpoint(path: str | os.PathLike[str]) -> Manifest:
    """Checks every file of a checkpoint against the sizes and sums of its manifest.

    Nothing is loaded and nothing is changed. Files that the manifest does not list are no part of
    the checkpoint and are not looked at.

    Args:
        path: directory of the checkpoint, as :meth:`Checkpoints.save` returned it.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: a file is missing, or differs from what was saved; the message names it.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import CheckpointError, Checkpoints, verify_checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)}).save(8, score=None)
        ...     file = path / verify_checkpoint(path).components["actor"]
        ...     _ = file.write_bytes(file.read_bytes()[:-1])
        ...     try:
        ...         verify_checkpoint(path)
        ...     except CheckpointError as error:
        ...         print(error)
        checkpoint file ...state.pt is damaged: it has ... bytes, and the manifest says ...
    """
    path = Path(path)
    manifest = read_manifest(path)
    for name, record in manifest.files.items():
        try:
            found = _describe(path / name)
        except OSError as error:
            raise _unreadable(path / name, error) from error
        _compare(path / name, record, found)
    return manifest


def read_component(
    path: str | os.PathLike[str],
    name: str,
    *,
    map_location: torch.device | str | None = "cpu",
) -> Any:
    """Reads the state of one component, from bytes that were checked against the manifest.

    It is read by ``torch.load(..., weights_only=True)``, which runs no code from the file, from
    memory: no tensor shares storage with the file or with another call's. No generator moves.

    Args:
        path: directory of the checkpoint.
        name: of the component, as it was given to :class:`Checkpoints`.
        map_location: where tensors go; None is the device they were saved from.

    Returns:
        What the component's ``state_dict`` returned.

    Raises:
        CheckpointError: the manifest or the component's file is missing or differs from what was
            saved, there is no such component, or its file holds more than tensors and plain values.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, read_component
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)}).save(8, score=None)
        ...     state = read_component(path, "actor")
        >>> state["weight"].shape
        torch.Size([1, 2])
    """
    path = Path(path)
    manifest = read_manifest(path)
    if name not in manifest.components:
        raise CheckpointError(
            f"checkpoint {path} holds no component {name!r}: it has {sorted(manifest.components)}"
        )
    file = path / manifest.components[name]
    content = _read(file)
    found = FileRecord(len(content), hashlib.sha256(content).hexdigest())
    _compare(file, manifest.files[manifest.components[name]], found)
    try:
        return torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"checkpoint file {file} cannot be loaded: {reason}") from error


def best_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest score, the newest of equals; None if none has a score.

    Args:
        directory: as given to :class:`Checkpoints`.

    Raises:
        CheckpointError: a manifest is damaged, so that its score is not known.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, best_checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     for frames, score in ((2048, 5.0), (4096, None), (6144, -1.0), (8192, 2.0)):
        ...         _ = checkpoints.save(frames, score=score)
        ...     best_checkpoint(directory).name
        '000000002048'
    """
    return best_of({path: read_manifest(path).score for path in list_checkpoints(directory)})


def _compare(file: Path, expected: FileRecord, found: FileRecord) -> None:
    if found.size != expected.size:
        raise CheckpointError(
            f"checkpoint file {file} is damaged: it has {found.size} bytes, and the manifest says "
            f"{expected.size}"
        )
    if found.sha256 != expected.sha256:
        raise CheckpointError(
            f"checkpoint file {file} is damaged: its SHA-256 is not the one in the manifest"
        )


def _parse(file: Path, text: bytes) -> Manifest:
    try:
        values = json.loads(text)
        if (version := values["format"]) != _FORMAT:
            raise CheckpointError(
                f"checkpoint file {file} has format {version}, and this amber_trl reads format "
                f"{_FORMAT}: use the amber_trl that saved it"
            )
        files = {name: FileRecord(**record) for name, record in values.pop("files").items()}
        manifest = Manifest(**values, files=files)
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError("a file lies outside the checkpoint")
        if not set(manifest.components.values()) <= set(files):
            raise ValueError("a component has no file")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"checkpoint file {file} is no manifest: {error!r}") from error
    return manifest


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> CheckpointError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointError(f"checkpoint file {file} is missing")
    return CheckpointError(f"checkpoint file {file} cannot be read: {error}")


def _describe(file: Path) -> FileRecord:
    with file.open("rb") as opened:
        return FileRecord(file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())


def _digest_line(manifest: bytes) -> str:
    return f"{hashlib.sha256(manifest).hexdigest()}  {_MANIFEST}\n"
