"""Which environments, actors and numbers the fast collector takes."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Env
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase, GymEnv, GymWrapper

from amber_trl.envs import SyncGymWrapper

WAY_OUT = "collect with torchrl.collectors.Collector instead"


def gym_env_of(env: EnvBase) -> Env[Any, Any] | SyncVectorEnv[Any, Any]:
    """The Gymnasium environment in a wrapper. Refuses what does more than wrap one."""
    plain = type(env) in (GymWrapper, GymEnv) or isinstance(env, SyncGymWrapper)
    found = env._env if plain else env
    disabled = type(found) is SyncVectorEnv and found.autoreset_mode == AutoresetMode.DISABLED
    if not disabled and not isinstance(found, Env):
        raise TypeError(
            f"create_env_fn gives a {type(found).__name__}, but only a plain torchrl.envs.GymWrapper or GymEnv over "
            "a gymnasium.Env, or over a gymnasium.vector.SyncVectorEnv with "
            f"autoreset_mode=AutoresetMode.DISABLED, is supported, without transforms: {WAY_OUT}"
        )
    if env.device is not None and env.device.type != "cpu":
        raise ValueError(
            f"the environment's device is {env.device}: build it with device='cpu' or None, "
            "and let storing_device move the batches"
        )
    if env.wrapper_frame_skip != 1:
        raise ValueError(f"frame_skip={env.wrapper_frame_skip} is not supported: {WAY_OUT}")
    if env.info_dict_reader:
        raise ValueError(f"the environment records infos, which is not supported: {WAY_OUT}")
    space = found.observation_space
    if not isinstance(space, Box):
        raise TypeError(
            f"the observation space is {space}, but only Box is supported: "
            f"wrap the environment in gymnasium.wrappers.FlattenObservation, or {WAY_OUT}"
        )
    reward_shape = (*env.batch_size, 1)
    if len(env.action_keys) != 1 or env.reward_spec.shape != reward_shape:
        raise TypeError(
            f"the environment has the action keys {env.action_keys} and rewards of shape "
            f"{list(env.reward_spec.shape)}, but one action key and {list(reward_shape)} are "
            f"needed: {WAY_OUT}"
        )
    return found


def check_policy(policy: object, env: EnvBase) -> None:
    """Refuses what is not a feed-forward TensorDict actor of this environment."""
    if not isinstance(policy, TensorDictModuleBase):
        raise TypeError(
            f"policy is a {type(policy).__name__}, not a tensordict.nn.TensorDictModuleBase: wrap "
            "it in a tensordict.nn.TensorDictModule with in_keys and out_keys"
        )
    given = {*env.observation_spec.keys(True, True), *env.reward_keys, *env.done_keys}
    (observed,) = env.observation_spec.keys(True, True)
    if unknown := [key for key in policy.in_keys if key != observed]:
        raise ValueError(
            f"policy reads {unknown}, but only feed-forward actors of {observed!r} are supported: "
            f"for a recurrent actor or one that needs a transform, {WAY_OUT}"
        )
    written = set(policy.out_keys)
    if env.action_key not in written:
        raise ValueError(
            f"policy writes {sorted(map(str, written))}, but not the action {env.action_key!r}: "
            "name it so in out_keys"
        )
    paths = {key: (key,) if isinstance(key, str) else key for key in written}
    reserved = given | {"next", "collector"}
    if clash := [key for key, path in paths.items() if key in reserved or path[0] in reserved]:
        raise ValueError(
            f"policy writes {clash}, which are the environment's or the next frame's: rename them "
            f"in out_keys; for a recurrent actor, {WAY_OUT}"
        )
    if private := [key for key, path in paths.items() if any(p.startswith("_") for p in path)]:
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


def check_frames(frames_per_batch: int, total_frames: int, num_envs: int) -> None:
    """Refuses counts that are not integers, out of range, or no multiple of the environments."""
    for name, value in (("frames_per_batch", frames_per_batch), ("total_frames", total_frames)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}: pass an integer")
    if frames_per_batch < 1 or frames_per_batch % num_envs:
        nearest = -(-max(frames_per_batch, 1) // num_envs) * num_envs
        raise ValueError(
            f"frames_per_batch={frames_per_batch} is given for {num_envs} environments: it must "
            f"be a multiple of their number, such as {nearest}"
        )
    if total_frames < -1:
        raise ValueError(f"total_frames={total_frames} must be at least 0, or -1 for no end")


def check_compilation(compile_policy: bool, capture: bool, policy_device: torch.device) -> None:
    """Refuses to compile what is not recorded, or not on the CPU."""
    if compile_policy and not capture:
        raise ValueError(
            "compile_policy=True is given with capture=False, without which there is nothing to "
            "compile: leave out one of the two"
        )
    if compile_policy and policy_device.type != "cpu":
        raise ValueError(
            f"compile_policy=True is given with an actor on {policy_device}, but it compiles for "
            "the CPU only: leave it out"
        )


def check_carrier(carrier: Mapping[str, Tensor], running: Mapping[str, Tensor]) -> None:
    """Refuses the running episodes of other environments."""
    found, needed = ({k: list(v.shape) for k, v in td.items()} for td in (carrier, running))
    if found != needed:
        raise ValueError(
            f"restore_carrier=True, but the state's carrier is {found} and this collector's "
            f"{needed}: load the state of a GymCollector over the same environments"
        )
