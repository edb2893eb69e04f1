"""Trained policies: saved with what rebuilds them, found in a run, and loaded to be played."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.modules import ProbabilisticActor

from amber_trl.checkpoints import best_checkpoint, list_checkpoints, read_component
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor

Which = Literal["last", "best", "final"]


class PolicyRecord:
    """An actor's weights, with what rebuilds the actor and its environment.

    It is what a run's ``policy.pt`` holds, and a part of every checkpoint.

    Args:
        env_id: Gymnasium id of the environment that the actor is trained on.
        arguments: arguments of :func:`~amber_trl.modules.gaussian_actor` or
            :func:`~amber_trl.modules.categorical_actor`, without the normaliser; plain values.
        actor: the actor.

    Raises:
        ValueError: if a normaliser in the actor has other options than the defaults, with which
            :func:`load_policy` rebuilds it.

    Examples:
        >>> import tempfile
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.runs import PolicyRecord, load_policy
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> record = PolicyRecord("Pendulum-v1", arguments, gaussian_actor(**arguments))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     record.save(f"{directory}/policy.pt")
        ...     load_policy(f"{directory}/policy.pt").env_id
        'Pendulum-v1'
    """

    def __init__(
        self, env_id: str, arguments: Mapping[str, Any], actor: TensorDictModuleBase
    ) -> None:
        _check_normalizers(actor)
        self.env_id, self.arguments, self.actor = env_id, dict(arguments), actor

    def state_dict(self) -> dict[str, Any]:
        """The environment's id, the arguments, and the actor's weights."""
        return {
            "env_id": self.env_id,
            "arguments": dict(self.arguments),
            "actor": dict(self.actor.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the weights.

        Raises:
            ValueError: if they are of another task or of another network.
        """
        for name in ("env_id", "arguments"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"policy of {name}={state[name]!r} given where {getattr(self, name)!r} is used"
                )
        self.actor.load_state_dict(state["actor"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes ``policy.pt``, whole or not at all, for :func:`load_policy` on any machine.

        Raises:
            OSError: the disk is full, or the file cannot be written for another reason.
        """
        state = self.state_dict()
        state["actor"] = {name: value.cpu() for name, value in state["actor"].items()}
        # Not straight into the file: on a full disk torch.save raises a RuntimeError that hides it.
        content = io.BytesIO()
        torch.save(state, content)
        temporary = Path(f"{os.fspath(path)}.part")
        temporary.write_bytes(content.getbuffer())
        temporary.replace(path)


@dataclass(frozen=True)
class Policy:
    """An actor on the CPU, and the environment that it was trained on.

    Attributes:
        actor: as :func:`~amber_trl.modules.gaussian_actor` or
            :func:`~amber_trl.modules.categorical_actor` made it, with its normaliser inside.
        env_id: Gymnasium id of the environment.

    Examples:
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.modules import gaussian_actor
        >>> Policy(gaussian_actor(observation_size=3, action_size=1), "Pendulum-v1").env_id
        'Pendulum-v1'
    """

    actor: ProbabilisticActor
    env_id: str


def load_policy(path: str | os.PathLike[str], *, env_id: str | None = None) -> Policy:
    """Loads a policy. No code from the file runs and no generator moves.

    Playing a policy makes the environment that its file names, and an id of the form
    ``module:id`` imports that module. Such a policy loads only if the caller names the same id.

    Args:
        path: a run's ``policy.pt``, or one of its checkpoints, which is then verified.
        env_id: what the file must say; None takes any id that imports no module.

    Returns:
        The policy, on the CPU.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        CheckpointError: the checkpoint is damaged, or does not hold a policy.
        ValueError: the file is damaged or holds something else, its policy is for another
            environment than ``env_id``, or that imports a module and ``env_id`` is None.

    Examples:
        >>> import tempfile
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.runs import PolicyRecord, load_policy
        >>> arguments = {"observation_size": 4, "action_size": 1}
        >>> actor = gaussian_actor(**arguments)
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     PolicyRecord("InvertedPendulum-v5", arguments, actor).save(file.name)
        ...     policy = load_policy(file.name)
        >>> policy.env_id
        'InvertedPendulum-v5'
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path={str(path)!r}: there is no policy file and no checkpoint")
    saved = read_component(path, "policy") if path.suffix == ".ckpt" else _read(path)
    try:
        if not isinstance(saved, Mapping):
            raise TypeError(f"it holds a {type(saved).__name__}")
        with torch.random.fork_rng(devices=[]):  # new weights are drawn, and then replaced
            actor = _build(saved["arguments"], saved["actor"])
        policy = Policy(actor, str(saved["env_id"]))
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"path={str(path)!r} does not hold a policy of amber_trl: {error!r}"
        ) from error
    _check_env_id(path, policy.env_id, env_id)
    return policy


def find_policy(run_dir: str | os.PathLike[str], which: Which = "last") -> Path:
    """Where a run has a policy.

    Args:
        run_dir: run directory.
        which: the ``last`` checkpoint, the ``best`` one (the highest mean return of the last 100
            training episodes; see :class:`TrainingRun`), or the ``final`` policy, ``policy.pt``.

    Returns:
        What :func:`load_policy` takes.

    Raises:
        FileNotFoundError: the run has none; the message says what it has.
        CheckpointError: ``best`` is asked for and a checkpoint is damaged.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from amber_trl.runs import find_policy
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     _ = Path(run_dir, "policy.pt").write_bytes(b"")
        ...     find_policy(run_dir, "final").name
        'policy.pt'
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"run_dir={str(run_dir)!r} is not a directory: name that of a run")
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
    if file.is_dir():
        raise ValueError(f"path={str(file)!r} is a directory: pass what find_policy(run_dir) finds")
    try:
        saved: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"path={str(file)!r} is damaged, or is not a policy file: play a checkpoint of the run "
            "instead (--checkpoint last), or resume the run, which writes the file again"
        ) from error
    return saved


def _check_normalizers(actor: TensorDictModuleBase) -> None:
    for module in actor.modules():
        if not isinstance(module, ObservationNormalizer):
            continue
        default = ObservationNormalizer(module.size)
        for name in ("clip", "min_variance", "dtype"):
            if (value := getattr(module, name)) != getattr(default, name):
                raise ValueError(
                    f"the actor's ObservationNormalizer has {name}={value}, and load_policy would "
                    f"rebuild it with {getattr(default, name)}: use the default, or save the "
                    "actor's own state_dict"
                )
