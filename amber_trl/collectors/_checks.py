"""The environments, actors and numbers that the fast collector accepts."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Env
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase, GymEnv, GymWrapper

from amber_trl._actors import keys_read
from amber_trl._checks import check_integer
from amber_trl.envs import SyncGymWrapper

_WAY_OUT = "collect with torchrl.collectors.Collector instead"


def gym_env_of(env: EnvBase) -> Env[Any, Any] | SyncVectorEnv[Any, Any]:
    """The Gymnasium environment in a wrapper. Refuses wrappers that do more than wrap one."""
    plain = type(env) in (GymWrapper, GymEnv) or isinstance(env, SyncGymWrapper)
    found = env._env if plain else env
    disabled = type(found) is SyncVectorEnv and found.autoreset_mode == AutoresetMode.DISABLED
    if not disabled and not isinstance(found, Env):
        raise TypeError(
            f"create_env_fn gives a {type(found).__name__}, but only a plain "
            "torchrl.envs.GymWrapper or GymEnv over a gymnasium.Env, or over a "
            "gymnasium.vector.SyncVectorEnv with autoreset_mode=AutoresetMode.DISABLED, is "
            f"supported, without transforms: {_WAY_OUT}"
        )
    space, reward_shape = found.observation_space, env.reward_spec.shape
    given_and_needed = {
        f"device={env.device}": env.device is None or env.device.type == "cpu",
        f"frame_skip={env.wrapper_frame_skip}": env.wrapper_frame_skip == 1,
        "info readers": not env.info_dict_reader,
        f"the observation space {space}": isinstance(space, Box),
        f"the action keys {env.action_keys}": len(env.action_keys) == 1,
        f"rewards of shape {list(reward_shape)}": reward_shape == (*env.batch_size, 1),
    }
    for given, fits in given_and_needed.items():
        if not fits:
            raise ValueError(
                f"create_env_fn gives an environment with {given}, but it needs the CPU (batches "
                "are moved by storing_device), frame_skip=1, no info reader, observations in a Box "
                "(see gymnasium.wrappers.FlattenObservation), one action key and one reward: build "
                f"it so, or {_WAY_OUT}"
            )
    return found


def check_policy(policy: object, env: EnvBase) -> None:
    """Refuses anything but a feed-forward TensorDict actor for this environment."""
    if not isinstance(policy, TensorDictModuleBase):
        raise TypeError(
            f"policy is a {type(policy).__name__}, not a tensordict.nn.TensorDictModuleBase: wrap "
            "it in a tensordict.nn.TensorDictModule with in_keys and out_keys"
        )
    (observed,) = env.observation_spec.keys(True, True)
    if unknown := [key for key in keys_read(policy) if key != observed]:
        raise ValueError(
            f"policy reads {unknown}, but only feed-forward actors of {observed!r} are supported: "
            f"for a recurrent actor or one that needs a transform, {_WAY_OUT}"
        )
    written = set(policy.out_keys)
    if env.action_key not in written:
        raise ValueError(
            f"policy writes {sorted(map(str, written))}, but not the action {env.action_key!r}: "
            "name it so in out_keys"
        )
    given = {*env.observation_spec.keys(True, True), *env.reward_keys, *env.done_keys}
    reserved = given | {"next", "collector"}
    paths = [(key,) if isinstance(key, str) else key for key in written]
    if clash := [p for p in paths if p[0] in reserved or any(part.startswith("_") for part in p)]:
        raise ValueError(
            f"policy writes {clash}, but the environment's keys, the next frame's keys and private "
            "keys (state carried from frame to frame) are not supported: rename "
            f"them in out_keys; for a recurrent actor or correlated noise, {_WAY_OUT}"
        )


def check_action(action: Tensor, env: EnvBase) -> None:
    """Refuses actions whose shape is not the environment's."""
    expected = env.full_action_spec[env.action_key].shape
    if action.shape != expected:
        raise ValueError(
            f"policy writes actions of shape {list(action.shape)}, but the environment takes "
            f"{list(expected)}: build the policy for this environment's action_spec"
        )


def check_frames(frames_per_batch: int, num_envs: int) -> None:
    """Refuses a number of frames that is not a multiple of the number of environments."""
    frames = check_integer("frames_per_batch", frames_per_batch)
    if frames % num_envs:
        raise ValueError(
            f"frames_per_batch={frames} is given for {num_envs} environments: it must be a "
            f"multiple of their number, such as {frames + -frames % num_envs}"
        )


def check_compilation(capture: bool, device: torch.device) -> None:
    """Refuses to compile an actor that is not recorded, or not on the CPU."""
    if not capture or device.type != "cpu":
        raise ValueError(
            f"compile_policy=True is given with capture={capture} and an actor on {device}, but "
            "only recorded actors on the CPU are compiled: leave it out"
        )


def check_carrier(carrier: Mapping[str, Tensor], running: Mapping[str, Tensor]) -> None:
    """Refuses running episodes of other environments."""
    found, needed = ({k: list(v.shape) for k, v in td.items()} for td in (carrier, running))
    if found != needed:
        raise ValueError(
            f"restore_carrier=True, but the state's carrier is {found} and this collector's "
            f"{needed}: load the state of a GymCollector over the same environments"
        )
