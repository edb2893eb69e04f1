"""Vectorised Gymnasium environments for TorchRL."""

import difflib
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformAction
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import GymWrapper

from amber_trl._checks import check_integer, import_named
from amber_trl.envs._mujoco import warnings_once
from amber_trl.envs._replay import EpisodeReplay, is_box2d
from amber_trl.envs.tasks import TASKS


class SyncGymWrapper(GymWrapper):
    """A ``GymWrapper`` over copies that step together in this process, as :func:`make_env` returns it.

    It differs from TorchRL's only in its resets: they also work on devices other than the CPU, and with
    a TensorDict that has no ``_reset``.

    Example:
        >>> from amber_trl.envs import SyncGymWrapper, make_env
        >>> isinstance(make_env("Pendulum-v1", num_envs=2), SyncGymWrapper)
        True
    """

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            return super()._reset(None, **kwargs)
        return super()._reset(TensorDict({"_reset": mask.cpu()}, self.batch_size), **kwargs)


def make_env(
    env_id: str,
    num_envs: int = 8,
    *,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    clip_actions: bool | None = None,
    wrappers: Sequence[str | Callable[[Any], Any]] = (),
    **env_kwargs: Any,
) -> SyncGymWrapper:
    """Makes several copies of a Gymnasium environment that step together in this process.

    The copies run in one ``gymnasium.vector.SyncVectorEnv`` that never resets by itself: TorchRL's
    collectors and rollouts reset each copy when its episode ends. On the study's tasks this is about
    twice as fast as ``GymEnv(num_envs=...)``, which starts one process per copy and pays off only for
    slower simulators.

    Observations (key ``observation``) are the environment's own, in its dtype; rewards are
    float32. Discrete actions are integers from ``0`` to ``n - 1``, even if the environment starts
    counting at another number.

    Continuous actions are stored as the policy drew them. Gymnasium's own environments receive them
    unchanged: each limits what its motors do and charges for the requested effort, as the environments
    of the AMBER paper (arXiv 1710.04423) did. Any other environment receives actions clipped to its
    action space, since it may not limit them itself.

    Each episode of a Box2D task starts in a new world, and its actions are recorded, so that it can
    be replayed bit for bit (see :class:`SimulatorState`).

    Args:
        env_id: Gymnasium id, such as a key of :data:`TASKS`, or ``module:id`` to first import the
            module that registers it.
        num_envs: number of copies, at least 1.
        seed: integer of at least 0. Each copy gets its own seed derived from it, and neighbouring
            values of ``seed`` share none. None draws a seed from torch's global generator. Nothing
            else is seeded.
        device: device of the tensors; the simulator runs on the CPU.
        clip_actions: whether the environment receives actions clipped to its action space (the
            stored ones are not clipped); None decides as described above.
        wrappers: callables such as ``gymnasium.wrappers.FlattenObservation``, or their names in the
            form ``module:Class``, applied to every copy in this order. A wrapper that learns, such as
            ``NormalizeObservation``, learns separately in each copy, and starts afresh in every
            environment that is made.
        **env_kwargs: passed to ``gymnasium.make``, such as ``max_episode_steps``.

    Returns:
        A :class:`SyncGymWrapper` of batch size ``[num_envs]``, even for one copy.

    Raises:
        ValueError: the id is unknown (the message lists similar ones); ``num_envs`` or ``seed`` is out of
            range; ``clip_actions=True`` with discrete actions.
        TypeError: an argument has the wrong type; the observation space is not a
            one-dimensional floating ``Box``, or the action space neither such a ``Box`` nor
            ``Discrete``; a wrapper cannot wrap the environment.
        ValueError, TypeError: the environment rejects ``env_kwargs``.
        ImportError: the simulator is not installed (the message says what to install), or the
            ``module`` of the id or a wrapper cannot be imported.

    Example:
        >>> from amber_trl.envs import make_env
        >>> env = make_env("Pendulum-v1", num_envs=2, seed=0)
        >>> env.rollout(5)["observation"].shape
        torch.Size([2, 5, 3])
        >>> env.close()
    """
    if not isinstance(env_id, str):
        raise TypeError(f"env_id={env_id!r} is a {type(env_id).__name__}: pass a Gymnasium id")
    check_integer("num_envs", num_envs)
    first_seed = _first_seed(None if seed is None else check_integer("seed", seed, low=0))
    found = [import_named("wrappers", w) if isinstance(w, str) else w for w in wrappers]
    make_one = partial(_make_one, env_id, clip_actions, found, env_kwargs)
    with _without_inevitable_warnings(), warnings_once():
        copies = SyncVectorEnv([make_one] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    copies.reset(seed=first_seed)
    return SyncGymWrapper(copies, categorical_action_encoding=True, device=device)


def _make_one(
    env_id: str,
    clip_actions: bool | None,
    wrappers: Sequence[Callable[[Any], Any]],
    env_kwargs: dict[str, Any],
) -> gym.Env[Any, Any]:
    env = _make_registered(env_id, env_kwargs)
    if is_box2d(env):
        env = EpisodeReplay(env)
    for wrapper in wrappers:
        env = _wrapped(env, wrapper)
    if not _is_vector(env.observation_space):
        raise TypeError(
            f"env_id={env_id!r} has the observation space {env.observation_space!s:.120}, but a "
            "one-dimensional Box of floats is needed: name a wrapper in wrappers= (--wrappers), such "
            "as gymnasium.wrappers:FlattenObservation, or one of your own (one-hot, or to floats)"
        )
    return _adapt_actions(env_id, env, clip_actions)


def _make_registered(env_id: str, env_kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"env_id={env_id!r}: {error}; is it on PYTHONPATH?"
            ) from error
    if name not in gym.registry:
        raise ValueError(f"env_id={env_id!r} is not known. {_suggestion(name)}")
    try:
        return gym.make(env_id, **env_kwargs)
    except gym.error.DependencyNotInstalled as error:
        raise ImportError(f"env_id={env_id!r} needs a simulator. {error}") from error
    except Exception as error:
        if not env_kwargs or isinstance(error, ImportError):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"env_kwargs={env_kwargs!r}: env_id={env_id!r} rejects them: {error!r}"
        ) from error


def _wrapped(env: gym.Env[Any, Any], wrapper: Callable[[Any], Any]) -> gym.Env[Any, Any]:
    name = getattr(wrapper, "__qualname__", repr(wrapper))
    try:
        wrapped = wrapper(env)
    except Exception as error:
        raise TypeError(
            f"wrappers: {name} cannot wrap the environment ({error}); if it needs more "
            "arguments, name a function of your own that passes them"
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise TypeError(f"wrappers: {name} returns {wrapped!r:.80}, not a gymnasium.Env")
    return wrapped


def _suggestion(name: str) -> str:
    for task in TASKS.values():
        if name == task.paper_id:
            return f"The paper's {name} is {task.env_id!r} here"
    by_lower = {known.lower(): known for known in gym.registry}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3)
    if close:
        return f"Similar ids are: {', '.join(repr(by_lower[match]) for match in close)}"
    return "gymnasium.pprint_registry() lists the known ids; 'module:id' imports a module first"


def _adapt_actions(
    env_id: str, env: gym.Env[Any, Any], clip_actions: bool | None
) -> gym.Env[Any, Any]:
    space = env.action_space
    if isinstance(space, Discrete):
        if clip_actions:
            raise ValueError(
                f"clip_actions=True, but env_id={env_id!r} has discrete actions: omit it"
            )
        count_from_zero = partial(np.add, space.start)
        return TransformAction(env, count_from_zero, Discrete(space.n)) if space.start else env
    if not _is_vector(space):
        raise TypeError(
            f"env_id={env_id!r} has the action space {space!s:.120}, but Discrete or a "
            "one-dimensional Box of floats is needed: name a wrapper of your own in wrappers= "
            "(--wrappers)"
        )
    if clip_actions is None:
        clip_actions = not type(env.unwrapped).__module__.startswith("gymnasium.envs.")
    clip = partial(np.clip, a_min=space.low, a_max=space.high)
    return TransformAction(env, clip, space) if clip_actions else env


def _is_vector(space: gym.Space[Any]) -> bool:
    floating = isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)
    return floating and len(space.shape) == 1 and space.shape[0] > 0


def _first_seed(seed: int | None) -> int:
    """Seed of copy 0; copy i adds i. Hashing keeps runs of neighbouring seeds from sharing seeds."""
    if seed is None:
        seed = int(torch.randint(2**31, (), device="cpu"))
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)


@contextmanager
def _without_inevitable_warnings() -> Iterator[None]:
    """Silences warnings that a user cannot act on.

    Gymnasium warns about a task's old id, which is used on purpose. SWIG warns when Box2D is first
    imported; turned into an error by ``-W error``, that warning would crash the interpreter.
    """
    with warnings.catch_warnings():
        for task in TASKS.values():
            old = rf".*The environment {task.env_id} is out of date"
            warnings.filterwarnings("ignore", old, DeprecationWarning)
        swig = r"builtin type \w+ has no __module__ attribute"
        warnings.filterwarnings("ignore", swig, DeprecationWarning)
        yield
