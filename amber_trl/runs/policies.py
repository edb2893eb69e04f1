"""Trained policies, loaded to be played."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torchrl.modules import ProbabilisticActor

from amber_trl.checkpoints import best_checkpoint, list_checkpoints, read_component
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor

Which = Literal["last", "best", "final"]


@dataclass(frozen=True)
class Policy:
    """An actor on the CPU, and the environment that it was trained on.

    Attributes:
        actor: as :func:`~amber_trl.modules.gaussian_actor` or
            :func:`~amber_trl.modules.categorical_actor` made it, with its normaliser inside.
        env_id: Gymnasium id of the environment.

    Examples:
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import play
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy(gaussian_actor(observation_size=3, action_size=1), "Pendulum-v1")
        >>> play(policy, episodes=2).lengths
        (200, 200)
    """

    actor: ProbabilisticActor
    env_id: str


def load_policy(path: str | os.PathLike[str], *, env_id: str | None = None) -> Policy:
    """Loads a policy; no code from the file runs and no generator moves.

    Playing a policy makes the environment that its file names, and an id of the form
    ``module:id`` imports that module. Such a policy loads only where the caller names the same id.

    Args:
        path: a run's ``policy.pt``, or one of its checkpoints, whose sums are
            then checked.
        env_id: what the file must say; None takes any id that imports no module.

    Returns:
        The policy, on the CPU.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        CheckpointError: the checkpoint is damaged, or holds no policy.
        ValueError: the file holds no policy, or one for another environment than ``env_id``, or
            its environment imports a module and ``env_id`` is None.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import load_policy
        >>> from amber_trl.modules import ObservationNormalizer, gaussian_actor
        >>> from amber_trl.runs import RunDirectory
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> actor = gaussian_actor(**arguments, normalizer=ObservationNormalizer(3))
        >>> saved = {"env_id": "Pendulum-v1", "arguments": arguments, "actor": actor.state_dict()}
        >>> with tempfile.TemporaryDirectory() as run_dir, RunDirectory(run_dir) as run:
        ...     run.save_policy(saved)
        ...     load_policy(run.path / "policy.pt").env_id
        'Pendulum-v1'
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path={str(path)!r}: there is no policy file and no checkpoint")
    saved = read_component(path, "policy") if path.suffix == ".ckpt" else _read(path)
    if not isinstance(saved, Mapping):
        raise ValueError(
            f"path={str(path)!r} holds no policy of amber_trl, but a {type(saved).__name__}"
        )
    try:
        if not isinstance(saved["env_id"], str):
            raise TypeError(f"env_id={saved['env_id']!r} is no string")
        with torch.random.fork_rng(devices=[]):  # new weights are drawn, and then replaced
            actor = _build(saved["arguments"], saved["actor"])
        policy = Policy(actor, saved["env_id"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(f"path={str(path)!r} holds no policy of amber_trl: {error!r}") from error
    _check_env_id(path, policy.env_id, env_id)
    return policy


def find_policy(run_dir: str | os.PathLike[str], which: Which = "last") -> Path:
    """Where a run has a policy.

    Args:
        run_dir: run directory.
        which: ``last`` checkpoint, ``best`` one (the highest mean return of the last 100
            episodes), or the ``final`` policy, ``policy.pt``.

    Returns:
        What :func:`load_policy` takes.

    Raises:
        FileNotFoundError: the run has none; the message says what it has.
        CheckpointError: ``best`` is asked for and a checkpoint is damaged.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import find_policy
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     try:
        ...         find_policy(run_dir, "best")
        ...     except FileNotFoundError as error:
        ...         print(error)
        run_dir=... has no best checkpoint, nor any other policy: name the directory of one run, as ...
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"run_dir={str(run_dir)!r} is no directory: name that of a run")
    final, checkpoints = run_dir / "policy.pt", run_dir / "checkpoints"
    if which == "final":
        found = final if final.is_file() else None
    elif which == "best":
        found = best_checkpoint(checkpoints)
    else:
        found = next(reversed(list_checkpoints(checkpoints)), None)
    if found is None:
        name = "policy.pt" if which == "final" else f"{which} checkpoint"
        raise FileNotFoundError(f"run_dir={str(run_dir)!r} has no {name}, {_other(run_dir)}")
    return found


def _check_env_id(path: Path, saved: str, expected: str | None) -> None:
    if expected is None and ":" in saved:
        raise ValueError(
            f"path={str(path)!r} is a policy for env_id={saved!r}, which imports the module "
            f"{saved.rpartition(':')[0]!r}: if you trust that module, pass env_id={saved!r} "
            f"(--env-id {saved})"
        )
    if expected is not None and expected != saved:
        raise ValueError(
            f"path={str(path)!r} is a policy for env_id={saved!r}, but env_id={expected!r} was "
            "passed: pass the same id or none"
        )


def _other(run_dir: Path) -> str:
    if list_checkpoints(run_dir / "checkpoints"):
        return "but checkpoints: ask for the last (--checkpoint last)"
    if (run_dir / "policy.pt").is_file():
        return "but a policy.pt: ask for the final one (--checkpoint final)"
    return "nor any other policy: name the directory of one run, as training left it"


def _build(arguments: Mapping[str, Any], weights: Mapping[str, Any]) -> ProbabilisticActor:
    make = categorical_actor if "num_actions" in arguments else gaussian_actor
    normalizer = None
    if any(".normalizer." in name for name in weights):
        normalizer = ObservationNormalizer(arguments["observation_size"])
    actor: ProbabilisticActor = make(**arguments, normalizer=normalizer)
    actor.load_state_dict(weights)
    return actor


def _read(file: Path) -> Mapping[str, Any]:
    try:
        saved: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"path={str(file)!r} cannot be loaded: {reason}") from error
    return saved
