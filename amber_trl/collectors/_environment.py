"""Which environments and actors the fast collector can run, and how it reaches them."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import BoundedContinuous, Categorical, OneHot, UnboundedContinuous
from torchrl.envs import EnvBase, GymEnv, GymWrapper, TransformedEnv
from torchrl.envs.transforms import VecGymEnvTransform

from amber_trl.collectors._lanes import DirectLanes, Lanes, VectorLanes

WAY_OUT = "collect with torchrl.collectors.Collector instead"


def make_lanes(env: EnvBase) -> Lanes:
    """Finds the Gymnasium environments below a TorchRL environment.

    Args:
        env: a ``GymWrapper`` or ``GymEnv``; with SAME_STEP autoreset, the ``TransformedEnv`` that
            TorchRL makes of it.

    Raises:
        TypeError: the environment does more than wrap Gymnasium's, or its spaces are not arrays.
        ValueError: it repeats actions, records infos, or is not on the CPU.
    """
    wrapper = env
    if isinstance(env, TransformedEnv):
        wrapper = env.base_env
        if type(env.transform) is not VecGymEnvTransform or not isinstance(wrapper, GymWrapper):
            _refuse_env(f"a TransformedEnv with {type(env.transform).__name__}")
    # amber_trl's own only adapts resets to other devices.
    own = type(wrapper).__module__.startswith("amber_trl.envs.")
    if type(wrapper) not in (GymWrapper, GymEnv) and not own:
        _refuse_env(f"a {type(wrapper).__name__}")
    gym_env = wrapper._env
    if not isinstance(gym_env, Env | VectorEnv):
        _refuse_env(f"a GymWrapper over a {type(gym_env).__module__}.{type(gym_env).__name__}")
    _check_options(wrapper, transformed=wrapper is not env)
    key = _check_specs(env, gym_env)
    disabled = isinstance(gym_env, SyncVectorEnv) and (
        gym_env.autoreset_mode == AutoresetMode.DISABLED
    )
    if isinstance(gym_env, Env) or (type(gym_env) is SyncVectorEnv and disabled):
        return DirectLanes(env, gym_env)
    return VectorLanes(env, gym_env, key)


def action_reader(env: EnvBase) -> Callable[[Tensor], Any]:
    """The function that turns an actor's action into what the lanes' ``step`` takes.

    Its arrays share no memory with the tensor, so that no environment can change a record.
    """
    spec = env.full_action_spec[env.action_key]
    if type(spec) in (BoundedContinuous, UnboundedContinuous):

        def read(action: Tensor) -> Any:
            return action.cpu().numpy().copy()

    else:

        def read(action: Tensor) -> Any:
            return np.array(spec.to_numpy(action, safe=False))

    if env.batch_size:
        return read
    if isinstance(spec, OneHot | Categorical):
        return lambda action: (int(read(action)),)
    return lambda action: (read(action),)


def check_policy(policy: object, env: EnvBase) -> None:
    """Refuses what is not a feed-forward TensorDict actor of this environment.

    Raises:
        TypeError: it is no ``TensorDictModuleBase``.
        ValueError: it reads keys that the environment does not give, writes the environment's own
            keys, private ones or into ``next``, or writes no action.
    """
    if not isinstance(policy, TensorDictModuleBase):
        raise TypeError(
            f"policy is a {type(policy).__name__}, not a tensordict.nn.TensorDictModuleBase: wrap "
            "it in a tensordict.nn.TensorDictModule with in_keys and out_keys"
        )
    given = set(env.observation_spec.keys(True, True)) | set(env.done_keys)
    unknown = [key for key in policy.in_keys if key not in given]
    if unknown:
        raise ValueError(
            f"policy reads {unknown}, but the environment gives only {sorted(map(str, given))}: only "
            f"feed-forward actors of raw observations are supported; for a recurrent actor or one "
            f"that needs a transform, {WAY_OUT}"
        )
    written = set(policy.out_keys)
    if env.action_key not in written:
        raise ValueError(
            f"policy writes {sorted(map(str, written))}, but not the action {env.action_key!r}: "
            "name it so in out_keys"
        )
    clash = sorted(
        str(key)
        for key in written
        if key in given or key == "collector" or (isinstance(key, tuple) and key[0] == "next")
    )
    if clash:
        raise ValueError(
            f"policy writes {clash}, which are the environment's or the next frame's: rename them "
            f"in out_keys; for a recurrent actor, {WAY_OUT}"
        )
    parts = ((key, (key,) if isinstance(key, str) else key) for key in written)
    if private := sorted(str(key) for key, path in parts if any(p.startswith("_") for p in path)):
        raise ValueError(
            f"policy writes {private}: by private keys modules carry state from frame to frame, as "
            f"OrnsteinUhlenbeckProcessModule does, which is not supported; {WAY_OUT}, or rename "
            "them in out_keys if they are results"
        )


def check_action(action: Tensor, env: EnvBase) -> None:
    """Refuses actions of another shape than the environment's."""
    expected = env.full_action_spec[env.action_key].shape
    if action.shape != expected:
        raise ValueError(
            f"policy writes actions of shape {list(action.shape)}, but the environment takes "
            f"{list(expected)}: build it for this environment's action_spec"
        )


def _refuse_env(what: str) -> NoReturn:
    raise TypeError(
        f"create_env_fn gives {what}, but only a plain torchrl.envs.GymWrapper or GymEnv over "
        f"gymnasium environments is supported, without transforms: {WAY_OUT}"
    )


def _check_options(wrapper: GymWrapper, *, transformed: bool) -> None:
    if wrapper.device is not None and wrapper.device.type != "cpu":
        raise ValueError(
            f"the environment's device is {wrapper.device}: build it with device='cpu' or None, "
            "and let storing_device move the batches"
        )
    if wrapper.wrapper_frame_skip != 1:
        raise ValueError(f"frame_skip={wrapper.wrapper_frame_skip} is not supported: {WAY_OUT}")
    if wrapper.info_dict_reader and not transformed:
        raise ValueError(f"the environment records infos, which is not supported: {WAY_OUT}")
    if not wrapper._convert_actions_to_numpy:
        raise ValueError(f"convert_actions_to_numpy=False is not supported: {WAY_OUT}")


def _check_specs(env: EnvBase, gym_env: Any) -> str:
    """Returns the observation's key."""
    if not isinstance(gym_env.observation_space, Box):
        raise TypeError(
            f"the observation space is {gym_env.observation_space}, but only Box is supported: "
            f"wrap the environment in gymnasium.wrappers.FlattenObservation, or {WAY_OUT}"
        )
    reward_shape = (*env.batch_size, 1)
    if len(env.action_keys) != 1 or env.reward_spec.shape != reward_shape:
        raise TypeError(
            f"the environment has the action keys {env.action_keys} and rewards of shape "
            f"{list(env.reward_spec.shape)}, but one action key and {list(reward_shape)} are "
            f"needed: {WAY_OUT}"
        )
    keys = list(env.observation_spec.keys(True, True))
    nested = [key for key in keys if not isinstance(key, str)]
    if nested:
        raise TypeError(f"the environment gives the nested keys {nested}: {WAY_OUT}")
    return str(next(iter(keys)))
