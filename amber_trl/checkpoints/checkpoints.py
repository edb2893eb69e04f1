"""A directory of checkpoints that survives kills, damage and full disks."""

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amber_trl._checks import check_integer
from amber_trl._provenance import differences, machine, package_versions
from amber_trl.checkpoints.checkpoint_file import (
    PART,
    CheckpointError,
    Header,
    read_checkpoint,
    read_states,
    serialize,
    sync,
    write_checkpoint,
)

_logger = logging.getLogger(__name__)
_NAME = re.compile(r"\d{12,}\.ckpt")


@dataclass(frozen=True)
class Restored:
    """What :meth:`Checkpoints.restore` loaded."""

    path: Path
    frames: int
    details: Mapping[str, Any]
    differences: tuple[str, ...]  # how versions and machine differ from when it was saved


class Checkpoints:
    """Saves the states of components, each time to a new file, and restores the newest.

    A checkpoint is written to a temporary file, flushed to the disk and then renamed. A kill at any
    moment leaves it whole or absent, and earlier checkpoints unchanged. Old checkpoints are then
    removed, except the last ``keep_last`` and the one with the highest score. A damaged checkpoint is
    skipped, not counted, and never removed; saving again at that frame count renames it to ``*.damaged``.

    Only one process at a time may use a directory: opening it removes unfinished files of a killed
    save.

    Args:
        directory: directory for the checkpoints; the first save creates it.
        components: what to save, by name: objects with ``state_dict`` and ``load_state_dict`` whose
            states are tensors, plain values, and lists and dicts of them. They are loaded in this
            order, so random generators (:class:`torchrl.checkpoint.GlobalRNGState`) belong last.
        keep_last: number of newest checkpoints to keep, at least 1.

    Raises:
        ValueError: if ``keep_last`` is below 1.
        TypeError: if a component lacks one of the two methods, or ``keep_last`` is not an integer.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from torchrl.checkpoint import GlobalRNGState
        >>> from amber_trl.checkpoints import Checkpoints
        >>> actor, generators = torch.nn.Linear(2, 1), GlobalRNGState()
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": actor, "generators": generators})
        ...     path = checkpoints.save(2048, score=-3.5)
        ...     before = actor.weight.clone(), torch.rand(3)
        ...     _ = torch.nn.init.zeros_(actor.weight)
        ...     restored = checkpoints.restore()
        >>> torch.equal(actor.weight, before[0]), torch.equal(torch.rand(3), before[1])
        (True, True)
        >>> restored.path.name, restored.frames, restored.differences
        ('000000002048.ckpt', 2048, ())
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        components: Mapping[str, Any],
        *,
        keep_last: int = 2,
    ) -> None:
        for name, part in components.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(
                    f"component {name!r} is a {type(part).__name__}: give an object with "
                    "state_dict and load_state_dict"
                )
        self.directory = Path(directory)
        self.components = dict(components)
        self.keep_last = check_integer("keep_last", keep_last)
        self._headers: dict[Path, Header | None] = {}  # of the files read so far; None: damaged
        for path in self.directory.glob(f"*.ckpt{PART}"):
            _logger.info("removing %s, left unfinished by a killed process", path)
            path.unlink()

    def save(
        self, frames: int, *, score: float | None, details: Mapping[str, Any] | None = None
    ) -> Path:
        """Saves all components, then removes old checkpoints.

        Args:
            frames: frames collected so far, at least 0, which name the file. Saving again at the same
                number replaces the earlier checkpoint.
            score: higher is better. A checkpoint with a score of None, or one that is not finite, can
                never be the best.
            details: JSON-serialisable values for the header of the file.

        Returns:
            The checkpoint's path, such as ``DIRECTORY/000000020480.ckpt``.

        Raises:
            OSError: the disk is full (``errno.ENOSPC``) or a write failed.
            CheckpointError: a state contains something that could not be loaded again.
            TypeError, ValueError: ``frames`` or ``details`` is not as described, or the directory
                has a checkpoint with more frames, which would remain the newest.

        An error of any kind leaves earlier checkpoints unchanged.
        """
        frames = check_integer("frames", frames, low=0)
        whole = self._verified()
        if later := [path for path, header in whole.items() if header.frames > frames]:
            raise ValueError(
                f"frames={frames} is before {later[-1]}, which would remain the newest "
                "checkpoint: save to another directory, or move the later checkpoints out of this one"
            )
        content = serialize({name: part.state_dict() for name, part in self.components.items()})
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            sync(self.directory.parent)
        path = self.directory / f"{frames:012d}.ckpt"
        if path.exists() and path not in whole:
            path.replace(path.with_suffix(".damaged"))
        whole[path] = self._headers[path] = write_checkpoint(
            path,
            content,
            frames=frames,
            score=float(score) if score is not None and math.isfinite(score) else None,
            versions=package_versions(),
            machine=machine(),
            details=dict(details or {}),
        )
        for other in whole.keys() - {*list(whole)[-self.keep_last :], _best(whole)}:
            other.unlink()
        return path

    def restore(self) -> Restored | None:
        """Loads the newest undamaged checkpoint into the components.

        It is read and verified before the first component is loaded. Damaged checkpoints are skipped
        with a warning that names them.

        Returns:
            None without a checkpoint; otherwise an object with ``path``, ``frames``, ``details``
            and ``differences``: how versions and machine differ from when it was saved, one text each.
            If there are any, the resumed program may produce other bits.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged; the newest was saved with
                other components; or a component rejects its state (the components before it have then
                been loaded).
        """
        refused = []
        for path in reversed(list_checkpoints(self.directory)):
            try:
                header, states = read_states(path)
            except CheckpointError as error:
                self._pass_over(path, error)
                refused.append(str(error))
                continue
            self._load(path, states)
            self._headers[path] = header
            versions = differences(header.versions, package_versions())
            machines = differences(header.machine, machine())
            return Restored(path, header.frames, header.details, versions + machines)
        if refused:
            raise CheckpointError(f"no checkpoint can be used: {'; '.join(refused)}")
        return None

    def _load(self, path: Path, states: Mapping[str, Any]) -> None:
        if states.keys() != self.components.keys():
            raise CheckpointError(
                f"components={list(self.components)}, but checkpoint {path} was saved with "
                f"{list(states)}: give the same components, or use read_component for one of them"
            )
        for name, component in self.components.items():
            try:
                component.load_state_dict(states[name])
            except Exception as error:
                raise CheckpointError(
                    f"component {name!r} rejects its state from checkpoint {path}: {error}"
                ) from error

    def _verified(self) -> dict[Path, Header]:
        """Headers of the undamaged checkpoints, oldest first; each file is read once."""
        paths = list_checkpoints(self.directory)
        for path in paths:
            if path not in self._headers:
                try:
                    self._headers[path], _ = read_checkpoint(path)
                except CheckpointError as error:
                    self._pass_over(path, error)
        return {path: header for path in paths if (header := self._headers[path]) is not None}

    def _pass_over(self, path: Path, error: CheckpointError) -> None:
        self._headers[path] = None
        _logger.warning("skipped and kept: %s", error)


def list_checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a directory, oldest first, unverified; the directory need not exist.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, list_checkpoints
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     for frames in (2048, 4096, 6144):
        ...         _ = checkpoints.save(frames, score=None)
        ...     [path.name for path in list_checkpoints(directory)]
        ['000000004096.ckpt', '000000006144.ckpt']
    """
    found = [path for path in Path(directory).glob("*.ckpt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem))


def best_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint with the highest score, the newest among equals; None if none has a score.

    Raises:
        CheckpointError: a checkpoint is damaged, so its score is unknown.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, best_checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     for frames, score in ((2048, 5.0), (4096, None), (6144, -1.0), (8192, 2.0)):
        ...         _ = checkpoints.save(frames, score=score)
        ...     best_checkpoint(directory).name
        '000000002048.ckpt'
    """
    return _best({path: read_checkpoint(path)[0] for path in list_checkpoints(directory)})


def verify_run(run: str | os.PathLike[str]) -> list[tuple[Path, str | None]]:
    """Verifies the checksums of all checkpoints of a run, or of one checkpoint.

    Args:
        run: a run directory, its directory of checkpoints, or one checkpoint.

    Returns:
        Each checkpoint, oldest first, with the problem found; None if it is whole.

    Raises:
        FileNotFoundError: the run has no checkpoint.

    Examples:
        >>> import os
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints, verify_run
        >>> with tempfile.TemporaryDirectory() as run:
        ...     component = {"actor": torch.nn.Linear(2, 1)}
        ...     path = Checkpoints(f"{run}/checkpoints", component).save(2048, score=None)
        ...     os.truncate(path, 2000)
        ...     [(path, problem)] = verify_run(run)
        >>> problem
        'checkpoint ...000000002048.ckpt is damaged: ...'
    """
    run = Path(run)
    inside = run / "checkpoints"
    paths = [run] if run.is_file() else list_checkpoints(inside if inside.is_dir() else run)
    if not paths:
        raise FileNotFoundError(
            f"run={str(run)!r} {'holds no checkpoint' if run.exists() else 'does not exist'}: name "
            "a run directory with checkpoints, or a checkpoint"
        )
    found: list[tuple[Path, str | None]] = []
    for path in paths:
        try:
            read_checkpoint(path)
            found.append((path, None))
        except CheckpointError as error:
            found.append((path, str(error)))
    return found


def _best(headers: Mapping[Path, Header]) -> Path | None:
    scores = {path: header.score for path, header in headers.items() if header.score is not None}
    return max(reversed(scores), key=scores.__getitem__, default=None)  # the newest of equals
