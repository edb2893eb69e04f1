"""The file of a checkpoint: how it is written, read and verified.

The first line is the header, as JSON. The second line is the SHA-256 of the first. The rest is one
``torch.save`` of a dict with every component's state; the header contains its SHA-256.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

FORMAT = 3
"""Incremented whenever the layout of the file or of a component's state changes."""
PART = ".part"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or loaded; the message names it and the reason.

    Examples:
        >>> from amber_trl.checkpoints import CheckpointError, read_component
        >>> try:
        ...     read_component("nowhere/000000002048.ckpt", "actor")
        ... except CheckpointError as error:
        ...     print(error)
        checkpoint nowhere/000000002048.ckpt cannot be read: No such file or directory
    """


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a checkpoint."""

    format: int
    frames: int
    score: float | None  # None: cannot be the best
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    details: Mapping[str, Any]
    sha256: str  # of everything after the second line


def serialize(states: Mapping[str, Any]) -> io.BytesIO:
    """Serialises the states of components; refuses states that would run code when loaded."""
    content = io.BytesIO()  # ``torch.save`` to a file does not report a full disk as such
    try:
        torch.save(states, content)
        content.seek(0)
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(content):
            raise TypeError(f"torch.load(weights_only=True) refuses {', '.join(sorted(unsafe))}")
    except Exception as error:
        if len(states) > 1:
            for name in states:  # serialised alone, the faulty one raises
                serialize({name: states[name]})
        raise CheckpointError(
            f"the state of component {', '.join(states)} cannot be saved: {error!r}. Let its "
            "state_dict return tensors, numbers, strings, and lists and dicts of them"
        ) from error
    return content


def write_checkpoint(path: Path, content: io.BytesIO, **header: Any) -> Header:
    """Writes a checkpoint to ``path``; replaces an existing one."""
    with content.getbuffer() as buffer:
        complete = Header(format=FORMAT, **header, sha256=hashlib.sha256(buffer).hexdigest())
        line = json.dumps(asdict(complete), allow_nan=False).encode() + b"\n"
        write_whole(path, line + _digest_line(line), buffer)
    return complete


def write_whole(path: Path, *contents: bytes | memoryview) -> None:
    """Writes a temporary file and renames it: a kill or a full disk leaves the old file or the new."""
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as file:
            for content in contents:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(directory: Path) -> None:
    """Flushes the directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(path: Path) -> tuple[Header, bytes]:
    """Reads the header and the serialised states, and verifies both checksums."""
    try:
        with path.open("rb") as file:
            line, digest, content = file.readline(), file.readline(), file.read()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    if digest != _digest_line(line):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its second line is not the SHA-256 of its first"
        )
    values = json.loads(line)
    if values["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {values['format']}, but this amber_trl reads format "
            f"{FORMAT}: use the version that saved it ({values['versions']['amber_trl']})"
        )
    header = Header(**values)
    if hashlib.sha256(content).hexdigest() != header.sha256:
        raise CheckpointError(
            f"checkpoint {path} is damaged: its states do not have the SHA-256 in its header"
        )
    return header, content


def read_states(path: Path, device: str | None = None) -> tuple[Header, dict[str, Any]]:
    """Reads the header and the states, onto ``device`` or the devices that they were saved from."""
    header, content = read_checkpoint(path)
    try:
        states = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {reason}") from error
    return header, states


def read_component(path: str | os.PathLike[str], name: str) -> Any:
    """Reads the state of one component from a checkpoint, by its name in :class:`Checkpoints`.

    The checkpoint is verified first. No code from it runs, and no generator is advanced.

    Returns:
        What the component's ``state_dict`` returned, with tensors on the CPU.

    Raises:
        CheckpointError: the checkpoint cannot be read, is damaged, or has no such component.

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
    _, states = read_states(Path(path), "cpu")
    if name not in states:
        raise CheckpointError(f"checkpoint {path} has no component {name!r}: it has {list(states)}")
    return states[name]


def _digest_line(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest().encode() + b"\n"
