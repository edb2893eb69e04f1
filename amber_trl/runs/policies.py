"""Trained policies: saved with everything that rebuilds them, found in a run, and loaded for evaluation."""

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict.nn import TensorDictModuleBase

from amber_trl.checkpoints import best_checkpoint, list_checkpoints, read_component
from amber_trl.checkpoints.checkpoint_file import write_whole
from amber_trl.envs import make_env
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor
from amber_trl.runs.named_actor import named_actor

Which = Literal["last", "best", "final"]

_OPTIONS = ("clip", "min_variance", "dtype")  # of a normaliser
_NOT_SAVED_BEFORE: dict[str, Any] = {"env_kwargs": {}, "wrappers": []}
_NOT_SAVED_BEFORE |= {"normalizer": None, "actor_function": None}
"""Defaults for entries that files of earlier versions lack."""


@dataclass(frozen=True, eq=False)
class Policy:
    """An actor, with everything that rebuilds it and its environment.

    A run's ``policy.pt`` and every checkpoint contain one, and
    :func:`~amber_trl.evaluation.play` plays one.

    Attributes:
        env_id: Gymnasium id of the training environment.
        arguments: arguments of :func:`~amber_trl.modules.gaussian_actor` or
            :func:`~amber_trl.modules.categorical_actor`, without the normaliser; plain values.
        actor: the actor, with its normaliser inside.
        env_kwargs: keyword arguments of the environment; plain values.
        wrappers: wrappers of the environment, by name, as in
            :func:`~amber_trl.envs.make_env`.
        actor_function: the ``module:function`` that made a custom actor, as in
            :func:`~amber_trl.runs.named_actor`; ``arguments`` are then not used.

    Examples:
        >>> import tempfile
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.runs import Policy, load_policy
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> policy = Policy("Pendulum-v1", arguments, gaussian_actor(**arguments))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     policy.save(f"{directory}/policy.pt")
        ...     load_policy(f"{directory}/policy.pt").env_id
        'Pendulum-v1'
    """

    env_id: str
    arguments: Mapping[str, Any]
    actor: TensorDictModuleBase
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[str] = ()
    actor_function: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """The environment's and actor's arguments, and the weights."""
        modules = [m for m in self.actor.modules() if isinstance(m, ObservationNormalizer)]
        options = [{name: getattr(module, name) for name in _OPTIONS} for module in modules]
        return {
            "env_id": self.env_id,
            "env_kwargs": dict(self.env_kwargs),
            "wrappers": list(self.wrappers),
            "arguments": dict(self.arguments),
            "actor_function": self.actor_function,
            "normalizer": options[0] if options else None,
            "actor": dict(self.actor.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the weights.

        Raises:
            ValueError: if they belong to another task or network.
        """
        own = self.state_dict()
        for name in ("env_id", "env_kwargs", "wrappers", "arguments", "actor_function"):
            if state[name] != own[name]:
                raise ValueError(
                    f"policy of {name}={state[name]!r} given where {own[name]!r} is used"
                )
        self.actor.load_state_dict(state["actor"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes ``policy.pt``, whole or not at all; :func:`load_policy` reads it on any machine.

        Raises:
            OSError: the disk is full, or the file cannot be written for another reason.
        """
        state = self.state_dict()
        state["actor"] = {name: value.cpu() for name, value in state["actor"].items()}
        # Not straight into the file: on a full disk torch.save raises a RuntimeError that hides the cause.
        content = io.BytesIO()
        torch.save(state, content)
        write_whole(Path(path), content.getbuffer())


def load_policy(
    path: str | os.PathLike[str],
    *,
    env_id: str | None = None,
    wrappers: Sequence[str] | None = None,
    actor: str | None = None,
) -> Policy:
    """Loads a policy. It runs no code that the caller has not named, and advances no generator.

    Loading a custom actor, or playing a policy, makes the environment that the file names. An id of the
    form ``module:id`` imports that module; so does a wrapper, or a function that makes the actor. A
    policy that would import a module loads only if the caller names the same id, wrappers or function.
    Wrappers from ``gymnasium.wrappers`` need not be named.

    Args:
        path: a run's ``policy.pt``, or one of its checkpoints, which is then verified.
        env_id: the id that the file must contain; None accepts any id that imports no module.
        wrappers: the wrappers that the file must contain; None accepts any of ``gymnasium.wrappers``.
        actor: the ``module:function`` that the file must name for the actor; None accepts actors of this
            library. Calling it makes the environment.

    Returns:
        The policy, on the CPU.

    Raises:
        FileNotFoundError: there is nothing at ``path``.
        CheckpointError: the checkpoint is damaged, or does not contain a policy.
        ImportError: what the caller named cannot be imported.
        ValueError: the file is damaged or is not a policy file; the policy is for another environment or
            actor than the caller names; or it imports a module that the caller has not named.

    Examples:
        >>> from amber_trl.runs import load_policy
        >>> load_policy("runs/halfcheetah/policy.pt").env_id  # doctest: +SKIP
        'HalfCheetah-v5'
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path={str(path)!r}: there is no policy file and no checkpoint")
    saved = read_component(path, "policy") if path.suffix == ".ckpt" else _read(path)
    if not isinstance(saved, Mapping) or not {"env_id", "arguments", "actor"} <= saved.keys():
        raise ValueError(f"path={str(path)!r} does not hold a policy of amber_trl")
    saved = {**_NOT_SAVED_BEFORE, **saved}
    _check_named(path, "env_id", saved["env_id"], env_id)
    _check_named(path, "wrappers", saved["wrappers"], None if wrappers is None else list(wrappers))
    _check_named(path, "actor", saved["actor_function"], actor)
    fields = ("env_id", "arguments", "actor", "env_kwargs", "wrappers", "actor_function")
    with torch.random.fork_rng(devices=[]):  # building draws weights
        return Policy(**{name: saved[name] for name in fields} | {"actor": _actor(path, saved)})


def _check_named(path: Path, name: str, saved: Any, asked: Any) -> None:
    """Refuses a policy that is not the requested one, or imports modules that were not named."""
    names = [saved] if isinstance(saved, str) else saved or []
    modules = [each.rpartition(":")[0] for each in names]
    foreign = [m for m in modules if m and m.split(".")[:2] != ["gymnasium", "wrappers"]]
    if asked is None and foreign:
        raise ValueError(
            f"path={str(path)!r} is a policy for {name}={saved!r}, which imports the module "
            f"{', '.join(map(repr, foreign))}: if you trust it, pass {name}={saved!r} "
            f"(--{name.replace('_', '-')} {' '.join(names)})"
        )
    if asked is not None and asked != saved:
        raise ValueError(
            f"path={str(path)!r} is a policy for {name}={saved!r}, but {name}={asked!r} was passed: "
            "pass the same or none"
        )


def find_policy(run_dir: str | os.PathLike[str], which: Which = "last") -> Path:
    """Finds a policy of a run.

    Args:
        run_dir: the run directory.
        which: the ``last`` checkpoint, the ``best`` one (the highest score: the mean return of the
            last 100 training episodes or, if the run evaluates, of an evaluation; see
            :class:`TrainingRun`), or the ``final`` policy, ``policy.pt``.

    Returns:
        A path for :func:`load_policy`.

    Raises:
        FileNotFoundError: the run has none; the message says which it has.
        CheckpointError: ``best`` is requested and a checkpoint is damaged.

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


def _other(run_dir: Path) -> str:
    if list_checkpoints(run_dir / "checkpoints"):
        return "but checkpoints: ask for the last (--checkpoint last)"
    if (run_dir / "policy.pt").is_file():
        return "but a policy.pt: ask for the final one (--checkpoint final)"
    return "nor any other policy: name the directory of one run, as training left it"


def _actor(path: Path, saved: Mapping[str, Any]) -> TensorDictModuleBase:
    function, weights, options = saved["actor_function"], saved["actor"], saved["normalizer"] or {}
    if function is not None:
        env_kwargs = {"wrappers": saved["wrappers"], **saved["env_kwargs"]}
        with closing(make_env(saved["env_id"], 1, **env_kwargs)) as env:
            size = env.observation_spec["observation"].shape[-1]
            actor = named_actor(function, env, ObservationNormalizer(size, **options))
    try:
        if function is None:
            actor = _actor_of_arguments(saved["arguments"], weights, options)
        actor.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        maker = f"arguments={saved['arguments']!r}" if function is None else f"actor={function!r}"
        raise ValueError(
            f"path={str(path)!r} does not hold the network that {maker} makes ({error}): "
            "has its code changed since? (Policy(..., actor_function=) saves an actor of another kind)"
        ) from error
    return actor


def _actor_of_arguments(
    arguments: Mapping[str, Any], weights: Mapping[str, Any], options: Mapping[str, Any]
) -> TensorDictModuleBase:
    normalizer = None
    if any(".normalizer." in name for name in weights):
        normalizer = ObservationNormalizer(arguments["observation_size"], **options)
    make = categorical_actor if "num_actions" in arguments else gaussian_actor
    return make(**arguments, normalizer=normalizer)


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
