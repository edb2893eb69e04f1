"""Advantages and value targets of stored batches, recomputed as the networks change."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from amber_trl._actors import device_of, evaluation, sum_of_heads
from amber_trl._checks import check_integer, check_number
from amber_trl.functional import gae_v, vtrace

AdvantageEstimator = Literal["gae", "vtrace", "gae-v"]


class RecomputedAdvantages:
    r"""Computes advantages and value targets of stored batches with the current critic.

    AMBER computes them once, when a batch is collected. Passed to a
    :class:`~amber_trl.data.MultiBatchReplayBuffer` as ``advantages=``, this class recomputes them at
    every ``refresh``, for the batches that are then in use or for all. Called directly, it writes them into a
    TensorDict, as TorchRL's ``GAE`` does. There are three estimators:

    - ``"gae"``: GAE and its TD(lambda) targets. They estimate how good the *behaviour* policy's
      actions and states were.
    - ``"gae-v"``: DISC's (:func:`~amber_trl.functional.gae_v`). It looks ahead only as far as the
      current actor would have acted similarly.
    - ``"vtrace"``: IMPALA's (:func:`~amber_trl.functional.vtrace`). Its targets are those of
      ``"gae-v"``, its advantages are not unless ``lmbda=1``, the main form of IMPALA's paper.

    The last two read each action's log-probability under the actor before the iteration's updates,
    which the filter stores if it is built with ``proximal_log_prob_key``.

    Episodes, environments and batches are kept separate. A time limit is treated as it is stored:
    ``("next", "terminated")`` marks states after which no reward can follow. ``V`` of the next state
    is that of the following frame, except where a frame ends an episode or its environment's part of
    a batch: there it is computed from the stored next observation. So a call costs little more than one forward pass of
    the critic over the frames; storing the next observations doubles the memory for observations.

    Args:
        critic: writes ``state_value``, ``[..., 1]``. Referenced; not part of any state or copy.
        estimator: one of the three above.

    Keyword Args:
        gamma: discount, in [0, 1].
        lmbda: lambda, in [0, 1].
        standardize: standardise advantages by each batch's mean and standard deviation, as
            ``GAE(average_gae=True)`` does when a batch is collected.
        every_batch: whether ``refresh`` recomputes them for every stored batch, not only for those in
            use. ``UpdateStep(critic_on_all=True)`` needs it.
        frames_per_env: consecutive frames of one environment in a batch. Defaults to all.
        reward_scale: divisor of the stored rewards. If the critic is to learn scaled rewards, store
            unscaled ones, and assign the current scale before each ``refresh``.
        log_prob_keys: where the behaviour policy's log-probability is stored.
        proximal_log_prob_key: where that of the actor before the iteration's updates is stored.
        chunk_size: frames per forward pass, which bounds memory.

    Raises:
        TypeError: if ``critic`` does not write ``state_value``, or a number is of another type.
        ValueError: if the estimator is unknown or a number is out of range.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer, RecomputedAdvantages
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.transforms import ISStalenessFilter
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> staleness = ISStalenessFilter(actor, proximal_log_prob_key="proximal_log_prob")
        >>> advantages = RecomputedAdvantages(
        ...     critic, "gae-v", gamma=0.99, lmbda=0.95, frames_per_env=16
        ... )
        >>> replay = MultiBatchReplayBuffer(4, 64, 64, staleness=staleness, advantages=advantages)
        >>> frames = actor(TensorDict({"observation": torch.randn(4, 16, 3)}, [4, 16])).detach()
        >>> no = torch.zeros(4, 16, 1, dtype=torch.bool)
        >>> frames["next"] = {"observation": torch.randn(4, 16, 3), "done": no, "terminated": no}
        >>> frames["next", "reward"] = torch.ones(4, 16, 1)
        >>> index, ledger = replay.extend(frames), replay.refresh()
        >>> replay.sample()["advantage"].shape
        torch.Size([64, 1])
    """

    def __init__(
        self,
        critic: TensorDictModuleBase,
        estimator: AdvantageEstimator = "gae",
        *,
        gamma: float,
        lmbda: float,
        standardize: bool = False,
        every_batch: bool = False,
        frames_per_env: int | None = None,
        reward_scale: float = 1.0,
        log_prob_keys: Sequence[NestedKey] = ("action_log_prob",),
        proximal_log_prob_key: NestedKey = "proximal_log_prob",
        chunk_size: int = 4096,
    ) -> None:
        if estimator not in get_args(AdvantageEstimator):
            raise ValueError(f"estimator={estimator!r}: give one of {get_args(AdvantageEstimator)}")
        self.estimator = estimator
        self.gamma = check_number("gamma", gamma, low=0, high=1)
        self.lmbda = check_number("lmbda", lmbda, low=0, high=1)
        self.standardize = standardize
        self.every_batch = every_batch
        self.reward_scale = check_number("reward_scale", reward_scale, above=0)
        self.frames_per_env = frames_per_env
        if frames_per_env is not None:
            check_integer("frames_per_env", frames_per_env)
        self.chunk_size = check_integer("chunk_size", chunk_size)
        self.proximal_log_prob_key = proximal_log_prob_key
        keys = [log_prob_keys] if isinstance(log_prob_keys, str) else log_prob_keys
        self._log_prob_keys = [unravel_key(key) for key in keys]
        self.out_keys = ["advantage", "value_target"]
        self.set_critic(critic)

    @property
    def critic(self) -> TensorDictModuleBase:
        """The live critic; ``RuntimeError`` if this was copied or unpickled without one."""
        if self._critic is None:
            raise RuntimeError("a copied RecomputedAdvantages has no critic: call set_critic")
        return self._critic

    def set_critic(self, critic: TensorDictModuleBase) -> None:
        """Use ``critic`` from now on; raises the constructor's errors."""
        if not isinstance(critic, TensorDictModuleBase) or "state_value" not in critic.out_keys:
            raise TypeError(
                f"critic of type {type(critic).__name__}: give a TensorDictModule that writes "
                "'state_value', such as value_critic makes"
            )
        self._critic: TensorDictModuleBase | None = critic
        self._observation_keys = [unravel_key(key) for key in critic.in_keys]
        self.in_keys: list[NestedKey] = [
            *self._observation_keys,
            *(unravel_key(("next", key)) for key in self._observation_keys),
            *(("next", key) for key in ("reward", "done", "terminated")),
            *(self._log_prob_keys if self.reads_ratios else ()),
        ]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_critic": None}

    @property
    def reads_ratios(self) -> bool:
        """Whether the estimator reads the actor's current log-probabilities."""
        return self.estimator != "gae"

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write advantages and value targets.

        Args:
            tensordict: ``[frames]`` of one batch, or ``[batches, frames]``, each ordered environment
                after environment. So ``[E, T]`` is standardised per environment.

        Returns:
            The same TensorDict, with two columns ``[..., 1]``.

        Raises:
            KeyError: if a key that the estimator reads is missing.
            ValueError: if the frames are not whole environments, or a batch is empty.
        """
        batches = tensordict.unsqueeze(0) if tensordict.ndim == 1 else tensordict
        computed = self.compute(batches, range(len(batches)))
        for key in self.out_keys:
            tensordict.set(key, computed[key].reshape(*tensordict.shape, 1))
        return tensordict

    @torch.no_grad()
    def compute(self, batches: TensorDictBase, chosen: Sequence[int]) -> TensorDict:
        """Compute the two columns for the chosen batches of ``[batches, frames]``.

        Returns:
            A TensorDict ``[chosen, frames]``.

        Raises:
            KeyError, ValueError: as for a call.
        """
        if batches.ndim != 2 or 0 in batches.shape:
            raise ValueError(f"shape {list(batches.shape)}: give [frames] or [batches, frames]")
        self.check_shape(batches.shape[1:])
        self.check_keys(batches, *((self.proximal_log_prob_key,) if self.reads_ratios else ()))
        per_env = (len(chosen), -1, self.frames_per_env or batches.shape[1])

        def column(key: NestedKey) -> Tensor:
            return torch.stack([batches[slot].get(key) for slot in chosen]).reshape(per_env)

        reward, done, terminated = (column(("next", k)) for k in ("reward", "done", "terminated"))
        last = torch.zeros_like(done)
        last[..., -1] = True
        beyond = ((done | last) & ~terminated).flatten(1)  # V(s') is not the next frame's V(s)
        of_batches = [
            self._values(batches[s], rows) for s, rows in zip(chosen, beyond, strict=True)
        ]
        value, next_value = (torch.stack(v).view(per_env) for v in zip(*of_batches, strict=True))
        log_ratio = torch.zeros_like(value)
        if self.reads_ratios:
            behaviour = sum_of_heads(map(column, self._log_prob_keys), value.numel())
            log_ratio = (column(self.proximal_log_prob_key) - behaviour.view(per_env)).to(value)
        estimate = vtrace if self.estimator == "vtrace" else gae_v  # GAE: gae_v, all ratios 1
        reward = reward.to(value) / self.reward_scale
        columns = value, next_value, reward, done, terminated, log_ratio
        advantage, target = estimate(self.gamma, self.lmbda, *columns)
        if self.standardize:
            advantage = advantage - advantage.mean((1, 2), keepdim=True)
            advantage = advantage / advantage.std((1, 2), keepdim=True).clamp_min(1e-4)
        shape = (len(chosen), batches.shape[1], 1)
        written = (column.reshape(shape) for column in (advantage, target))
        return TensorDict(dict(zip(self.out_keys, written, strict=True)), shape[:2])

    def _values(self, frames: TensorDictBase, beyond: Tensor) -> tuple[Tensor, Tensor]:
        """``V`` of each frame's state and of its next state, ``[frames]``."""
        value = self._value(frames.select(*self._observation_keys))
        next_value = value.roll(-1)
        if beyond.any():
            following = frames.get("next").select(*self._observation_keys)
            next_value[beyond] = self._value(following[beyond])
        return value, next_value

    def _value(self, states: TensorDictBase) -> Tensor:
        device = device_of(self.critic)
        values = []
        with evaluation(self.critic):
            for chunk in states.split(self.chunk_size):
                there = chunk.clone(False) if device is None else chunk.to(device)
                value = self.critic(there).get("state_value").reshape(-1)
                values.append(value.to(chunk.get(self._observation_keys[0]).device))
        return torch.cat(values)

    def check_shape(self, shape: torch.Size) -> None:
        """Raise ``ValueError`` unless ``frames_per_env`` fits batches of this shape, ``[E, T]``."""
        time, frames = shape[-1], self.frames_per_env or shape.numel()
        if shape.numel() % frames or (len(shape) > 1 and time != frames):
            raise ValueError(
                f"batch of shape {list(shape)} with frames_per_env={self.frames_per_env}: advantages "
                "would run from one environment into the next; give RecomputedAdvantages the frames of "
                f"one environment{f', frames_per_env={time}' if len(shape) > 1 else ''}"
            )

    def check_keys(self, tensordict: TensorDictBase, *also: NestedKey) -> None:
        """Raise ``KeyError`` if frames lack a key that the estimator reads, or one of those given."""
        keys = [*self.in_keys, *also]
        missing = [key for key in keys if tensordict.get(key, None) is None]
        if missing:
            raise KeyError(
                f"{missing} missing: advantages are computed from {keys}; keep them "
                "in storage (keys=), and give RecomputedAdvantages the names (..._key=, ..._keys=)"
            )
