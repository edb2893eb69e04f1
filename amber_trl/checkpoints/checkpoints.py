"""A directory of checkpoints of which, whatever happens, one can be loaded."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from amber_trl._provenance import machine, package_versions
from amber_trl.checkpoints._disk import sync, sync_tree
from amber_trl.checkpoints._files import (
    CheckpointError,
    Manifest,
    describe_files,
    read_component,
    verify_checkpoint,
    write_manifest,
)
from amber_trl.checkpoints._listing import best_of, list_checkpoints, order
from amber_trl.checkpoints._states import check_space, write_states

_logger = logging.getLogger(__name__)
_UNFINISHED = re.compile(r"\.(stage|trash)-[\d-]+-[0-9a-f]{32}")


@dataclass(frozen=True)
class Restored:
    """What :meth:`Checkpoints.restore` loaded.

    Attributes:
        path: the checkpoint's directory.
        manifest: what it says of itself.
        differences: how versions and machine differ from those that saved it, in words. Where there
            is any, the same program need not go on with the same bits.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from amber_trl.checkpoints import Checkpoints
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoints = Checkpoints(directory, {"actor": torch.nn.Linear(2, 1)})
        ...     path = checkpoints.save(2048, score=None)
        ...     restored = checkpoints.restore()
        >>> restored.path == path, restored.manifest.frames, restored.differences
        (True, 2048, ())
    """

    path: Path
    manifest: Manifest
    differences: tuple[str, ...]

    @property
    def details(self) -> Mapping[str, Any]:
        """The ``details`` that it was saved with."""
        return self.manifest.details


class Checkpoints:
    """Saves and restores components, each time into a new directory that appears whole or not.

    A checkpoint is written beside its final place, described by a manifest with the size and the
    SHA-256 of every file, flushed to the disk, and then renamed, so that a kill at any moment
    leaves the earlier ones as they were. Older ones are removed after that: the last ``keep_last``
    and the one of the highest score stay. A checkpoint that does not verify is not counted among
    them, and never removed. Opening the directory removes what a killed save or removal left half
    done, and nothing else; so only one process at a time may have it open.

    Components are named objects with ``state_dict`` and ``load_state_dict``. The states are
    written by :class:`torchrl.checkpoint.Checkpoint`, one ``torch.save`` file each, which it also
    reads (``Checkpoint(actor=actor).load(path / "state", components=["actor"])``). They may hold
    what ``torch.load(..., weights_only=True)`` reads: tensors, numbers, strings and the like.
    It is not a :class:`torchrl.checkpoint.CheckpointRotation`, which neither checks nor flushes
    what it writes. Saving needs memory for what ``state_dict`` copies, and reading for one
    checkpoint.

    Args:
        directory: where checkpoints lie; made by the first save.
        components: by name (letters, digits, ``.``, ``_`` and ``-``). They are loaded in this
            order: put random generators last, as others may draw from them while they load.
        keep_last: newest checkpoints that are kept, at least 1.

    Raises:
        TypeError: a component lacks one of the two methods.
        ValueError: there is no component, a name has other characters, or ``keep_last`` is below 1.

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
        ...     _ = checkpoints.restore()
        >>> path.name, torch.equal(actor.weight, before[0]), torch.equal(torch.rand(3), before[1])
        ('000000002048', True, True)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        components: Mapping[str, Any],
        *,
        keep_last: int = 2,
    ) -> None:
        _check_components(components)
        if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1:
            raise ValueError(f"keep_last={keep_last!r} must be an integer of at least 1")
        self.directory = Path(directory)
        self.components = dict(components)
        self.keep_last = keep_last
        self._whole: dict[Path, Manifest] = {}
        self._damaged: set[Path] = set()
        self._remove_unfinished()

    def save(
        self, frames: int, *, score: float | None, details: Mapping[str, Any] | None = None
    ) -> Path:
        """Saves all components, then removes checkpoints that are not kept.

        Args:
            frames: frames collected so far, at least 0; the directory is named after it. Saving
                at the same number again makes a second directory, which supersedes the first.
            score: higher is better. One that is None or not finite is written as none, and never
                the best.
            details: plain values by name to be written into the manifest.

        Returns:
            The checkpoint's directory, such as ``DIRECTORY/000000020480``.

        Raises:
            OSError: the disk has less space than the states need (``errno.ENOSPC``; nothing was
                written), or a write failed.
            CheckpointError: a state holds what could not be loaded again, or could not be written.
            ValueError: ``frames`` or ``details`` is none of the above, or the directory has a
                whole checkpoint of more frames, which would still be the newest.

        Whatever is raised, earlier checkpoints are as they were.
        """
        score = _check_numbers(frames, score)
        details = _check_details(details or {})
        self._check_newest(frames)
        states = {name: component.state_dict() for name, component in self.components.items()}
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            sync(self.directory.parent)
        check_space(self.directory, states)
        path = self._free_name(frames)
        stage = self._unfinished("stage", path)
        try:
            stage.mkdir()
            files = write_states(stage, states)
            manifest = Manifest(
                frames=frames,
                score=score,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                versions=package_versions(),
                machine=machine(),
                details=details,
                components=files,
                files=describe_files(stage),
            )
            write_manifest(stage, manifest)
            sync_tree(stage)
            stage.rename(path)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        sync(self.directory)
        self._whole[path] = manifest
        self._prune()
        return path

    def restore(self) -> Restored | None:
        """Loads the newest checkpoint that verifies into the components.

        All files are checked and read before the first component is loaded. A checkpoint that
        does not verify is passed over with a warning that names it and the file; it stays.

        Returns:
            What was loaded; None if there is no checkpoint.

        Raises:
            CheckpointError: there are checkpoints, but none verifies; or a component refused its
                state (those before it are then loaded).
            ValueError: the checkpoint was saved with other components.
        """
        refused = []
        for path in reversed(list_checkpoints(self.directory)):
            try:
                manifest = verify_checkpoint(path)
                self._check_names(path, manifest)
                states = {n: read_component(path, n, map_location=None) for n in self.components}
            except CheckpointError as error:
                self._refuse(path, error)
                refused.append(str(error))
                continue
            self._whole[path] = manifest
            self._load(path, states)
            return Restored(path, manifest, manifest.differences())
        if refused:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be used: {'; '.join(refused)}"
            )
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r}, components={list(self.components)})"

    def _load(self, path: Path, states: Mapping[str, Any]) -> None:
        for name, component in self.components.items():
            try:
                component.load_state_dict(states[name])
            except Exception as error:
                raise CheckpointError(
                    f"component {name!r} cannot take the state that checkpoint {path} has of it: "
                    f"{error}"
                ) from error

    def _check_names(self, path: Path, manifest: Manifest) -> None:
        if set(manifest.components) != set(self.components):
            raise ValueError(
                f"components={sorted(self.components)} given, but checkpoint {path} was saved with "
                f"{sorted(manifest.components)}: give the same, or use read_component for one"
            )

    def _check_newest(self, frames: int) -> None:
        for path, manifest in self._verified().items():
            if manifest.frames > frames:
                raise ValueError(
                    f"frames={frames} after checkpoint {path}, which has {manifest.frames} and "
                    "would still be the newest: use another directory, or move later checkpoints "
                    "out of this one"
                )

    def _free_name(self, frames: int) -> Path:
        taken = [found for path in list_checkpoints(self.directory) if (found := order(path))]
        repeats = [repeat for other, repeat in taken if other == frames]
        suffix = f"-{max(repeats) + 1}" if repeats else ""
        return self.directory / f"{frames:012d}{suffix}"

    def _unfinished(self, kind: str, path: Path) -> Path:
        return self.directory / f".{kind}-{path.name}-{uuid.uuid4().hex}"

    def _remove_unfinished(self) -> None:
        if not self.directory.is_dir():
            return
        for path in self.directory.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                _logger.info("removing %s, which was left half done", path)
                shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        """Keeps the last ones and the best; of those at the same frames, the last counts."""
        whole = self._verified()
        latest = {manifest.frames: path for path, manifest in whole.items()}
        keep = set(list(latest.values())[-self.keep_last :])
        scored = {path: manifest.score for path, manifest in whole.items()}
        if (best := best_of(scored)) is not None:
            keep.add(best)
        for path in whole.keys() - keep:
            trash = self._unfinished("trash", path)
            path.rename(trash)  # from here on nothing takes it for a checkpoint
            sync(self.directory)
            shutil.rmtree(trash, ignore_errors=True)
            del self._whole[path]

    def _verified(self) -> dict[Path, Manifest]:
        """The checkpoints that verify, oldest first; each is read once."""
        found = list_checkpoints(self.directory)
        for path in found:
            if path not in self._whole and path not in self._damaged:
                try:
                    self._whole[path] = verify_checkpoint(path)
                except CheckpointError as error:
                    self._refuse(path, error)
        return {path: self._whole[path] for path in found if path in self._whole}

    def _refuse(self, path: Path, error: CheckpointError) -> None:
        self._damaged.add(path)
        self._whole.pop(path, None)
        _logger.warning("CHECKPOINT %s IS NOT USED, and left as it is: %s", path, error)


def _check_components(components: Mapping[str, Any]) -> None:
    if not components:
        raise ValueError("components={} has nothing to save: name at least one")
    for name, component in components.items():
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ValueError(
                f"component name {name!r} must be made of letters, digits, '.', '_' and '-'"
            )
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(component, method, None)):
                raise TypeError(
                    f"component {name!r} is a {type(component).__name__} without {method}: give "
                    "an object that has state_dict and load_state_dict"
                )


def _check_numbers(frames: int, score: float | None) -> float | None:
    if isinstance(frames, bool) or not isinstance(frames, int) or frames < 0:
        raise ValueError(f"frames={frames!r} must be an integer of at least 0")
    return float(score) if score is not None and math.isfinite(score) else None


def _check_details(details: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(details), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"details={details!r} must hold finite numbers, strings, booleans, None, and lists "
            f"and dicts of them: {error}"
        ) from error
    return found
