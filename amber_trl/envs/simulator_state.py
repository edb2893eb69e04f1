"""The state of simulators, to go on from in another process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium.utils import EzPickle, RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import PassiveEnvChecker
from torchrl.envs import EnvBase, GymWrapper, TransformedEnv

from amber_trl.envs._reader import LEFT, Reader, class_name, has_only_attributes
from amber_trl.envs._replay import EpisodeReplay
from amber_trl.envs._writer import Writer

logger = logging.getLogger(__name__)


class SimulatorState:
    """Reads and sets the simulators below a TorchRL environment, so that they go on to the bit.

    Loaded into an environment made in the same way, in this or another process, the next frames,
    resets included, are those that the saved environment would have given from the same actions.

    Per copy and per Gymnasium wrapper it holds the attributes, generators among them, and all of
    MuJoCo's data (some tasks read before a step what the step before left there). A wrapper or
    environment that defines ``state_dict`` and ``load_state_dict`` is asked instead, for a dict of
    numbers, strings, arrays, tensors, generators, and lists and dicts of such, and for its
    ``inexact``, if it has one. The world of a Box2D task cannot be read: an environment of
    :func:`make_env` starts each episode in a new world and records the actions, and loading plays
    the running episode again.

    What cannot be read is left as it is, and named by :attr:`inexact`: an attribute of a library
    of its own, an object in a list, arrays or tensors that share memory, what a function carries
    along (other than constants, arrays, and what is read elsewhere and put back in place), a Box2D
    task that is not Gymnasium's own, simulators in other processes, whatever raises an error. Not
    seen are: state in a module or a class, and in the global generators of Python, NumPy and
    torch, which are the caller's to save.

    The state is made of tensors, numbers, strings, lists and dicts, for
    ``torch.load(weights_only=True)``. It shares no memory with the simulators. A copy of a MuJoCo
    task takes about 0.2 MB, one of a Box2D task its episode's actions. Reading touches no
    generator. ``torchrl.collectors.Collector`` saves none of this.

    Args:
        env: a ``GymWrapper`` or ``GymEnv`` over one Gymnasium environment or a ``SyncVectorEnv``,
            such as :func:`make_env` gives. Any other is accepted, and named by :attr:`inexact`.

    Example:
        >>> import torch
        >>> from amber_trl.envs import SimulatorState, make_env
        >>> env, other = make_env("Pendulum-v1", 2, seed=0), make_env("Pendulum-v1", 2, seed=5)
        >>> _ = env.rollout(20)
        >>> SimulatorState(other).load_state_dict(SimulatorState(env).state_dict())
        >>> torch.equal(env.reset()["observation"], other.reset()["observation"])
        True
    """

    def __init__(self, env: EnvBase) -> None:
        try:
            self._vectors, self._copies, self._reasons = _find(env)
        except Exception as error:  # such as of an environment that was closed
            reason = f"{type(env).__name__} cannot be read: {type(error).__name__}: {error}"
            self._vectors, self._copies, self._reasons = [], [], [reason]
        self._lost: list[str] = []
        self._models = self._read()[1].models

    @property
    def inexact(self) -> tuple[str, ...]:
        """Why the state is not all there is, or was not all set by the last load; empty if it is."""
        return tuple(self._problems(self._read()[1]))

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors, numbers, strings, lists and dicts."""
        state, reader = self._read()
        return {**state, "inexact": self._problems(reader)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the simulators where the saved ones were.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: it is of another number of copies, or of other environments or wrappers;
                or this version of MuJoCo cannot read its data, and the simulators are in no
                usable state until they are reset.
        """
        _check_same(state, self._read()[0])
        writer = Writer()
        for layer, saved in zip(self._vectors, state["vectors"], strict=True):
            _write(writer, layer, saved)
        for layers, parts in zip(self._copies, state["copies"], strict=True):
            for layer, saved in zip(layers, parts, strict=True):
                _write(writer, layer, saved)
        own = [reason for layers in self._copies for layer in layers for reason in _inexact(layer)]
        for reason in dict.fromkeys([*writer.problems, *own]):
            logger.warning("a simulator was not put back exactly: %s", reason)
        self._lost = [*state["inexact"], *writer.problems, *own]

    def _read(self) -> tuple[dict[str, Any], Reader]:
        reader = Reader(known=[*self._vectors, *_all_layers(self._copies)])
        vectors = [_part(reader, vector) for vector in self._vectors]
        copies = [[_part(reader, layer) for layer in layers] for layers in self._copies]
        try:
            reader.check_sharing()
        except Exception as error:
            reader.problems.append(f"whether memory is shared is not known: {error}")
        return {"vectors": vectors, "copies": copies}, reader

    def _problems(self, reader: Reader) -> list[str]:
        changed = [
            f"the MuJoCo model of copy {number} has changed, and only its data are saved"
            for number, (old, new) in enumerate(zip(self._models, reader.models, strict=False))
            if old != new
        ]
        return list(dict.fromkeys([*self._lost, *self._reasons, *reader.problems, *changed]))


def _find(env: EnvBase) -> tuple[list[Any], list[list[Any]], list[str]]:
    """The vector environments, outermost first; each copy's wrappers, too; and what is not there."""
    reasons = []
    while isinstance(env, TransformedEnv):
        reasons.append(f"the state of {type(env.transform).__name__} is not read")
        env = env.base_env
    if not isinstance(env, GymWrapper):
        return [], [], [*reasons, f"{type(env).__name__} is not over Gymnasium in this process"]
    found, vectors = env._env, []
    while isinstance(found, VectorEnv):
        vectors.append(found)
        if isinstance(found, AsyncVectorEnv):
            return [], [], [*reasons, "the copies of AsyncVectorEnv run in other processes"]
        if not isinstance(found, VectorWrapper):
            return vectors, [_layers(copy) for copy in getattr(found, "envs", [])], reasons
        found = found.env
    return vectors, [_layers(found)], reasons


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """The wrappers and the environment in them; those inside a replay are its own business."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper) and not isinstance(layers[-1], EpisodeReplay):
        layers.append(layers[-1].env)
    return layers


def _all_layers(copies: list[list[Any]]) -> Iterator[Any]:
    for layers in copies:
        yield from layers
        inner = layers[-1]
        while isinstance(inner, gym.Wrapper):
            inner = inner.env
            yield inner


def _part(reader: Reader, layer: Any) -> dict[str, Any]:
    name = type(layer).__name__
    if type(layer) is PassiveEnvChecker:  # it looks at the first frames only, and warns
        return {"class": class_name(layer)}
    try:
        if isinstance(layer, EpisodeReplay):
            reader.problems.extend(_inexact(layer))
            return {"class": class_name(layer), "own": layer.state_dict()}
        if _reads_itself(layer):
            reader.problems.extend(_inexact(layer))
            return {"class": class_name(layer), "asked": _ask(reader, layer, name)}
        if not has_only_attributes(layer):
            reader.problems.append(f"{class_name(layer)} has slots, or data outside of Python")
        return reader.attributes(layer, name, _made_alike(layer))
    except Exception as error:  # of whatever kind: an environment may do anything
        reader.problems.append(f"{name} cannot be read: {type(error).__name__}: {error}")
        return {"class": class_name(layer)}


def _ask(reader: Reader, layer: Any, name: str) -> Any:
    """What a layer saves of itself, as plain data; without the entries that cannot be such."""
    own, values = layer.state_dict(), Reader(anew=True)
    path = f"{name}.state_dict()"
    if isinstance(own, Mapping) and all(type(key) is str for key in own):
        entries = {key: values.read(own[key], f"{path}[{key!r}]", inside=True) for key in own}
        plain: Any = {key: value for key, value in entries.items() if value is not LEFT}
    else:
        reader.problems.append(f"{path} is no dict with strings as keys")
        plain = {}
    reader.problems.extend(values.problems)
    return plain


def _made_alike(layer: Any) -> list[str]:
    """Attributes by which Gymnasium keeps how the layer was made: a new one has its own."""
    names = []
    if isinstance(layer, SyncVectorEnv):
        names += ["envs", "env_fns"]
    if isinstance(layer, RecordConstructorArgs):
        names.append("_saved_kwargs")
    if isinstance(layer, EzPickle):
        names += ["_ezpickle_args", "_ezpickle_kwargs"]
    if vars(layer).get("metadata") == getattr(type(layer), "metadata", None):
        names.append("metadata")
    return names


def _write(writer: Writer, layer: Any, saved: Mapping[str, Any]) -> None:
    name = type(layer).__name__
    if "own" in saved:
        layer.load_state_dict(saved["own"])
    elif "asked" in saved:
        entries = {key: writer.write(value, None, name) for key, value in saved["asked"].items()}
        try:
            layer.load_state_dict(entries)
        except Exception as error:
            writer.problems.append(f"{name}.load_state_dict failed: {error!r}")
    elif "attributes" in saved:
        writer.attributes(saved, layer, name)


def _reads_itself(layer: Any) -> bool:
    kind = type(layer)
    saves = getattr(kind, "state_dict", torch.nn.Module.state_dict)
    # A module's own would be of its parameters only.
    return hasattr(kind, "load_state_dict") and saves is not torch.nn.Module.state_dict


def _inexact(layer: Any) -> tuple[str, ...]:
    if not _reads_itself(layer):
        return ()
    try:
        reasons = getattr(layer, "inexact", ())
        return (reasons,) if isinstance(reasons, str) else tuple(map(str, reasons))
    except Exception as error:
        return (f"{type(layer).__name__}.inexact cannot be read: {error!r}",)


def _check_same(saved: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    described = []
    for state in (saved, found):
        groups = [state["vectors"], *state["copies"]]
        described.append([[part["class"].rpartition(".")[2] for part in group] for group in groups])
    ours, theirs = described[1], described[0]
    if len(ours) != len(theirs):
        raise ValueError(
            f"the state is of {len(theirs) - 1} copies, and the environment has {len(ours) - 1}: "
            "make it with the saved num_envs"
        )
    for mine, saved_one in zip(ours, theirs, strict=True):
        if mine != saved_one:
            raise ValueError(
                f"the state is of {'<'.join(saved_one)}, and the environment is "
                f"{'<'.join(mine)}: make it with the saved id and wrappers"
            )
