"""A collector whose overhead is paid per batch, not per frame."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl._utils import seed_generator
from torchrl.collectors import BaseCollector
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type
from torchrl.modules import set_exploration_modules_spec_from_env

from amber_trl._checks import check_integer
from amber_trl.collectors._actor import FrameActor
from amber_trl.collectors._batch import TrajectoryIds, make_batch
from amber_trl.collectors._checks import (
    check_action,
    check_carrier,
    check_compilation,
    check_frames,
    check_policy,
    gym_env_of,
)
from amber_trl.collectors._envs import Environments, action_reader


class GymCollector(BaseCollector):
    """Collects from Gymnasium environments in this process, several times faster than TorchRL's.

    It yields what ``torchrl.collectors.Collector`` yields for the same environment and actor: the
    same keys, shapes and dtypes and, with the same seeds, the same bits. It steps the Gymnasium
    environments directly, writes to arrays, and builds one TensorDict per batch.

    The actor is called on the first frame of each batch. On the other frames its recorded torch
    operations are replayed: everything that depends only on parameters is computed once per batch,
    and log-probabilities are evaluated for the whole batch. On each batch's first frame the replay
    must equal the actor's own output, bit for bit. An actor that fails this check, or that cannot be
    recorded (it branches on an observation, changes its own state, draws from generators other than
    torch's, or has forward hooks), is called on every frame, with a warning: slower, but always
    correct.

    Batches are ``[envs, frames_per_batch / envs]``, or ``[frames_per_batch]`` for an unbatched
    environment. Episodes continue from one batch to the next.

    It differs from TorchRL's collector as follows: the actor is used as it is and never copied to
    another device; ``frames_per_batch`` must be a multiple of the number of environments; after
    :meth:`set_seed` the first observation comes from the seeded reset; the last batch is whole;
    outputs of the actor beyond its ``out_keys`` are left out; an action is recorded as the actor
    returned it, even if the environment overwrites its array.

    Args:
        create_env_fn: a ``torchrl.envs.GymWrapper`` or ``GymEnv`` without transforms, or a
            callable that makes one: over one ``gymnasium.Env``, or over a ``SyncVectorEnv`` with
            autoreset DISABLED, such as :func:`amber_trl.envs.make_env` returns.
        policy: a feed-forward actor that reads the observation and writes the action. It is
            called in its current mode (train or eval), without gradients, on its own device.
        frames_per_batch: frames in a batch over all environments, a multiple of the number of environments.
        total_frames: stop after the batch that reaches this number; -1 (default) never stops.
        exploration_type: how actions are drawn; randomly by default.
        storing_device: device for the batches; None leaves them on the CPU.
        capture: False calls the actor on every frame. Needed only if the actor depends on something
            that changes within a batch and is not its input, a parameter, a buffer, a plain attribute
            or a global generator: for example a clock, or a counter in a closure.
        compile_policy: True compiles the recorded actor ahead of time, for an actor on the CPU.
            It needs a C++ compiler and about twenty seconds, and then saves about 50 microseconds per
            step. The compiled actor draws the same random numbers and acts the same up to rounding.
        pre_collect_hook: called before each batch.
        post_collect_hook: called with each batch before it is yielded.

    Raises:
        TypeError: the environment is of another class or has transforms, or ``policy`` is not a
            TensorDict module.
        ValueError: a number is out of range, or the environment or the actor needs something that is
            not supported, such as a recurrent actor.

    Example:
        >>> from amber_trl.collectors import GymCollector
        >>> from amber_trl.envs import make_env
        >>> from amber_trl.modules import gaussian_actor
        >>> env = make_env("Pendulum-v1", num_envs=2, seed=0)
        >>> actor = gaussian_actor(observation_size=3, action_size=1)
        >>> collector = GymCollector(env, actor, frames_per_batch=64, total_frames=128)
        >>> for batch in collector:
        ...     collector.update_policy_weights_()
        >>> batch["next", "reward"].shape
        torch.Size([2, 32, 1])
        >>> collector.shutdown()
    """

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[[], EnvBase],
        policy: TensorDictModuleBase,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
        storing_device: torch.device | str | None = None,
        capture: bool = True,
        compile_policy: bool = False,
        pre_collect_hook: Callable[[], None] | None = None,
        post_collect_hook: Callable[[TensorDictBase], None] | None = None,
    ) -> None:
        super().__init__(pre_collect_hook=pre_collect_hook, post_collect_hook=post_collect_hook)
        self.closed = True
        env = create_env_fn if isinstance(create_env_fn, EnvBase) else create_env_fn()
        gym_env = gym_env_of(env)
        self._envs = Environments(env, gym_env)
        check_frames(frames_per_batch, self._envs.num_envs)
        check_integer("total_frames", total_frames, low=-1)
        check_policy(policy, env)
        self.env = env
        self.policy = policy
        self.exploration_type = exploration_type
        self.storing_device = None if storing_device is None else torch.device(storing_device)
        self.requested_frames_per_batch = frames_per_batch
        self.frames_per_batch = frames_per_batch // self._envs.num_envs
        self.total_frames = total_frames if total_frames >= 0 else float("inf")
        self._frames = 0
        self._iter = -1
        self.init_random_frames = 0
        """Read by TorchRL's ``Trainer``: every frame uses the actor."""
        set_exploration_modules_spec_from_env(policy, env)
        self._read_action = action_reader(env, gym_env.action_space)
        self._actor = FrameActor(
            policy,
            self._envs.key,
            env.action_key,
            env.batch_size,
            capture=capture,
            compile=compile_policy,
        )
        if compile_policy:
            check_compilation(capture, self._actor.device)
        self._traj_ids = TrajectoryIds(self._envs.num_envs)
        self._broken = False
        self._envs.reset()
        self._try_policy()
        self.closed = False

    @property
    def capture_failure(self) -> str | None:
        """Why the actor is called on every frame; None if it is replayed, or before the first batch."""
        return self._actor.failure

    def iterator(self) -> Iterator[TensorDictBase]:
        """Yields batches until ``total_frames`` are reached, then closes the environment."""
        while self._frames < self.total_frames:
            if self.closed:
                raise RuntimeError("the collector was shut down: build a new one")
            self._iter += 1
            batch = self.rollout()
            self._frames += batch.numel()
            if self._frames >= self.total_frames:
                self.env.close()
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            yield batch

    def rollout(self) -> TensorDictBase:
        """Collects one batch, without counting it.

        After an exception, the next batch starts with a reset of every environment.

        Raises:
            NonFiniteDataError: an observation was not finite, and the actor raised an error.
        """
        if self._broken:
            self.reset()
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        self._broken = True  # until the batch is complete, the environments are ahead of the carry
        try:
            batch = self._collect()
        except RuntimeError as error:  # such as torch's for probabilities that are NaN
            self._envs.check_finite(error)
            raise
        self._broken = False
        return batch if self.storing_device is None else batch.to(self.storing_device)

    @torch.no_grad()
    def _collect(self) -> TensorDictBase:
        frames, step, read = self.frames_per_batch, self._envs.step, self._read_action
        self._envs.start(frames)
        rows = self._envs.inputs()
        with set_exploration_type(self.exploration_type):
            action, act = self._actor.begin(rows[0])
            step(0, read(action))
            # A called actor might keep such a tensor, through which no gradient could pass later.
            recorded = self._actor.failure is None
            with torch.inference_mode() if recorded else nullcontext():
                for frame in range(1, frames):
                    step(frame, read(act(rows[frame])))
            written = self._actor.finish()
        before, after = self._envs.finish()
        traj_ids = self._traj_ids.over(frames, self._envs.ends)
        return make_batch(
            before, after, written, traj_ids, self.env.batch_size, self.env.reward_spec.dtype
        )

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Resets the environments with the seeds ``seed``, ``seed + 1`` and so on.

        Returns:
            The seed for another collector, as TorchRL computes it, or ``seed`` itself if ``static_seed``
            is true.
        """
        self._envs.reset(seed)
        self._traj_ids.renew()
        return seed if static_seed else int(seed_generator(seed))

    def reset(self) -> None:
        """Resets all environments and starts new trajectories."""
        self._envs.reset()
        self._traj_ids.renew()

    def update_policy_weights_(
        self, policy_or_weights: nn.Module | TensorDictBase | None = None
    ) -> None:
        """Copies weights into the actor, in place. Without an argument it does nothing.

        The collector uses the actor object that it was given, so the next batch sees changes of its
        parameters.

        Args:
            policy_or_weights: a module of the actor's structure, or its weights as
                ``TensorDict.from_module`` gives them.

        Raises:
            TypeError: neither a module nor a TensorDict was given.
            RuntimeError: names or shapes differ from the actor's weights.
        """
        if policy_or_weights is None:
            return
        if isinstance(policy_or_weights, nn.Module):
            policy_or_weights = TensorDict.from_module(policy_or_weights)
        if not isinstance(policy_or_weights, TensorDictBase):
            raise TypeError(
                f"policy_or_weights is a {type(policy_or_weights).__name__}: pass a module, or the "
                "TensorDict that TensorDict.from_module(module) returns"
            )
        own = TensorDict.from_module(self.policy)
        needed, given = (
            {(key, value.shape) for key, value in weights.items(True, True)}
            for weights in (own, policy_or_weights)
        )
        if different := sorted(map(str, needed ^ given)):
            raise RuntimeError(
                f"policy_or_weights is not of the actor's structure; they differ in {different}"
            )
        own.data.update_(policy_or_weights.data)

    def state_dict(self) -> OrderedDict[str, Any]:
        """The actor's weights, the counters, and the frame that the next batch starts from."""
        return OrderedDict(
            policy_state_dict=self.policy.state_dict(),
            env_state_dict=OrderedDict(),
            frames=self._frames,
            iter=self._iter,
            traj_pool={"traj_id": torch.tensor(self._traj_ids.next, dtype=torch.int32)},
            carrier={
                "traj_ids": self._traj_ids.current.clone(),
                self._envs.key: self._envs.carry.clone(),
            },
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, restore_carrier: bool = False
    ) -> None:
        """Restores the state of :meth:`state_dict`, or of TorchRL's collector.

        The state does not include simulators. As in TorchRL, the environments therefore stay where they
        are and start new trajectories, unless ``restore_carrier`` is set.

        Args:
            state_dict: the state.
            restore_carrier: whether the caller has restored the simulators. The running trajectories and
                their last observations are then restored too.

        Raises:
            ValueError: the carrier is requested, but missing from the state or of another shape.
        """
        running = {"traj_ids": self._traj_ids.current, self._envs.key: self._envs.carry}
        if restore_carrier:
            check_carrier(state_dict.get("carrier", {}), running)
        self.policy.load_state_dict(state_dict["policy_state_dict"])
        self._frames = state_dict["frames"]
        self._iter = state_dict["iter"]
        if "traj_pool" in state_dict:
            self._traj_ids.next = int(state_dict["traj_pool"]["traj_id"])
        if restore_carrier:
            for key, value in running.items():
                value.copy_(state_dict["carrier"][key])
        else:
            self._traj_ids.renew()

    def shutdown(
        self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True
    ) -> None:
        """Ends the collection and closes the environment. ``timeout`` is for other collectors."""
        if self.closed:
            return
        self.closed = True
        with nullcontext() if raise_on_error else suppress(Exception):
            if close_env and not self.env.is_closed:
                self.env.close()

    @torch.no_grad()
    def _try_policy(self) -> None:
        """Calls the actor once, as TorchRL's collector does on construction."""
        self._envs.start(1)
        written = self._actor.call(self._envs.inputs()[0].to(self._actor.device))
        check_action(written[self.env.action_key], self.env)
