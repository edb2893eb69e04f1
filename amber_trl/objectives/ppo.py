"""The clipped loss with the paper's preset, safe for frames of old policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import signature
from numbers import Real
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from torch import Tensor
from torchrl.objectives import ClipPPOLoss, PPOLoss

from amber_trl._actors import keys_read

__all__ = ["AmberPPOLoss"]

_STOCK_ARGUMENTS = {*signature(PPOLoss).parameters, *signature(ClipPPOLoss).parameters} - {"kwargs"}


class AmberPPOLoss(ClipPPOLoss):
    r"""``ClipPPOLoss`` with the paper's preset, for frames of several behaviour policies.

    .. math::

        -\frac1M \sum_m \min(R_m \hat A_m, \mathrm{clip}(R_m, 1 - \epsilon, 1 + \epsilon) \hat A_m)
        + c_v \frac1M \sum_m (V(s_m) - \hat V_m)^2

    with :math:`R_m` the ratio of the actor to the *stored* behaviour log-probability of the frame
    (equations 7, 8 and 11 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_, with the
    sign turned to minimise). It is TorchRL's :class:`torchrl.objectives.ClipPPOLoss`, whose maths
    it leaves alone; it differs in its defaults (squared-error critic, no entropy bonus, ratio
    capped at ``1e3``), in two more metrics, and in that a stored advantage is required.

    The cap keeps loss and gradients finite for a frame with a log-ratio of 1000, and is bit-equal
    to the uncapped loss as long as no frame reaches it. The metric ``capped_frames`` counts those
    that do. The metric ``mean_abs_deviation`` is the mean of ``|R - 1|``, capped like the loss: the
    paper's average importance weight of a minibatch (section 4.2) is 1 more.

    Reads the actor's and the critic's ``in_keys``, the action, its log-probability, ``advantage``
    (``[..., 1]``) and ``value_target`` (``[..., 1]``), all renamed by ``set_keys``; returns
    ``loss_objective``, ``loss_critic``, ``loss_entropy`` (with an entropy bonus) and metrics.
    ``in_keys`` and ``out_keys`` list them, and dispatch takes and returns them as tensors.

    Args:
        actor_network: the actor.
        critic_network: the critic; ``None`` with ``critic_coeff=None`` (or 0).

    Keyword Args:
        clip_epsilon: clip range ``eps`` in [0, 1] (or a pair, below and above); annealed by
            assigning to it.
        entropy_coeff: weight of the entropy bonus, or one per action head; 0 for no bonus, which
            assigning to it later does not turn on.
        critic_coeff: ``c_v``, at least 0; 0 or None for no critic loss.
        loss_critic_type: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        max_importance_ratio: cap of the ratio, above 0; ``None`` for no cap, and no protection.
        **kwargs: any other of ``ClipPPOLoss`` (``functional``, ``normalize_advantage``,
            ``reduction``, ...).

    Raises:
        TypeError: if an argument is unknown, or is ``entropy_bonus``, which ``entropy_coeff``
            decides.
        ValueError: if a coefficient is out of range; when called, if advantage, value target or
            log-probability is of a wrong shape.
        KeyError: when called without a key that it reads, such as a stored advantage.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        >>> frames["advantage"] = frames["value_target"] = torch.randn(64, 1)
        >>> loss = AmberPPOLoss(actor, critic, clip_epsilon=0.4)(frames)
        >>> (loss["loss_objective"] + loss["loss_critic"]).backward()
        >>> loss["capped_frames"]
        tensor(0.)
    """

    _in_keys: list[NestedKey] | None
    _out_keys: list[NestedKey] | None

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.4,
        entropy_coeff: float | Mapping[NestedKey, float] = 0.0,
        critic_coeff: float | None = 1.0,
        loss_critic_type: str = "l2",
        max_importance_ratio: float | None = 1e3,
        **kwargs: Any,
    ) -> None:
        if "entropy_bonus" in kwargs:
            raise TypeError("AmberPPOLoss takes no entropy_bonus=: give entropy_coeff, 0 for none")
        if critic_network is None and critic_coeff and "critic" not in kwargs:
            raise TypeError(
                f"critic_network=None with critic_coeff={critic_coeff}: give a critic, or "
                "critic_coeff=None for no critic loss"
            )
        # ``ClipPPOLoss`` would swallow any name.
        if unknown := kwargs.keys() - _STOCK_ARGUMENTS:
            raise TypeError(f"AmberPPOLoss takes no {sorted(unknown)}, nor does ClipPPOLoss")
        _check_coefficients(clip_epsilon, entropy_coeff, critic_coeff, max_importance_ratio)
        super().__init__(
            actor_network,
            critic_network,
            clip_epsilon=_as_float(clip_epsilon),
            entropy_bonus=bool(entropy_coeff),
            entropy_coeff=_as_float(entropy_coeff),
            critic_coeff=_as_float(critic_coeff),
            loss_critic_type=loss_critic_type,
            max_importance_ratio=_as_float(max_importance_ratio),
            **kwargs,
        )

    def _set_in_keys(self) -> None:
        """What the loss reads: unlike ``ClipPPOLoss``, no next frame, but what GAE made of it."""
        named = self.tensor_keys
        keys = keys_read(self.actor_network)
        for name in (named.action, named.sample_log_prob):
            keys += name if isinstance(name, list) else [name]
        keys.append(named.advantage)
        if self.critic_network is not None and self.critic_coeff is not None:
            # The actor is run first: what the two share is not read, where it is the actor's.
            written = {unravel_key(key) for key in self.actor_network.out_keys}
            keys += [key for key in keys_read(self.critic_network) if key not in written]
            keys.append(named.value_target)
            if self.clip_value is not None:
                keys.append(named.value)
        self._in_keys = list(dict.fromkeys(keys))

    @property
    def out_keys(self) -> list[NestedKey]:
        """What the loss returns."""
        if self._out_keys is None:
            keys = [*super().out_keys]
            if not self._has_critic:
                keys.remove("loss_critic")
            elif self.log_explained_variance:
                keys.append("explained_variance")
            self._out_keys = [*keys, "capped_frames", "mean_abs_deviation"]
        return self._out_keys

    @out_keys.setter
    def out_keys(self, values: list[NestedKey]) -> None:
        self._out_keys = values

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Loss and metrics of a minibatch.

        Args:
            tensordict: ``[M]`` stored frames.

        Returns:
            A TensorDict of scalars.

        Raises:
            KeyError: if there is no stored advantage. Recomputing it here from old frames with the
                current critic, as ``ClipPPOLoss`` would, is not what the method does. Also if
                another key is missing.
            ValueError: if advantage, value target or log-probability is of a wrong shape.
        """
        if tensordict.get(self.tensor_keys.advantage, None) is None:
            raise KeyError(
                f"{self.tensor_keys.advantage!r} is missing: compute advantages once, when a batch "
                "is collected (torchrl.objectives.value.GAE), and store them; or name the key with "
                "set_keys(advantage=...)"
            )
        missing = [key for key in self.in_keys if tensordict.get(key, None) is None]
        if missing:
            raise KeyError(f"{missing} missing of the keys {self.in_keys} that the loss reads")
        _check_column(self.tensor_keys.advantage, tensordict)
        if self._has_critic:
            _check_column(self.tensor_keys.value_target, tensordict)
        self._own_metrics: dict[str, Tensor] = {}
        losses = super().forward(tensordict)
        for name, value in self._own_metrics.items():
            losses.set(name, value)
        # A tensor of this call's graph or trace must not outlive it.
        self._own_metrics = {}
        return losses

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        weights = super()._log_weight(tensordict, adv_shape)
        log_ratio, log_correction = weights[0].detach(), weights[3]
        behaviour = log_ratio if log_correction is None else log_ratio + log_correction.detach()
        name = self.tensor_keys.sample_log_prob
        stored = None if isinstance(name, list) else tensordict.get(name)
        if isinstance(stored, Tensor) and stored.shape != log_ratio.shape[:-1]:
            raise ValueError(
                f"{name!r} of shape {tuple(stored.shape)} makes log-ratios of shape "
                f"{tuple(log_ratio.shape[:-1])}: store it in the shape that the actor gives it, "
                "[frames] for one action per frame"
            )
        capped = torch.zeros_like(log_ratio)
        if self.max_importance_ratio is not None:
            # ``ClipPPOLoss`` lowers the correction to the right-hand side where it caps.
            capped = log_correction >= self.max_importance_ratio.log() - log_ratio
        self._own_metrics = {
            "capped_frames": capped.sum().to(log_ratio.dtype),
            "mean_abs_deviation": behaviour.expm1().abs().mean(),
        }
        return weights


def _check_column(name: NestedKey, frames: TensorDictBase) -> None:
    value = frames.get(name)
    if value.ndim <= frames.ndim or value.shape[-1] != 1 or not value.is_floating_point():
        raise ValueError(
            f"{name!r} of shape {tuple(value.shape)} and dtype {value.dtype} for frames "
            f"{tuple(frames.shape)}: give floating numbers of shape [..., 1]"
        )


def _check_coefficients(
    clip_epsilon: float | tuple[float, float],
    entropy_coeff: float | Mapping[NestedKey, float],
    critic_coeff: float | None,
    max_importance_ratio: float | None,
) -> None:
    ranges = clip_epsilon if isinstance(clip_epsilon, tuple | list) else (clip_epsilon,)
    if not all(_is_number(value, 1) for value in ranges):
        raise ValueError(
            f"clip_epsilon={clip_epsilon!r} is out of range: give a number in [0, 1], such as the "
            "paper's 0.4"
        )
    coefficients = entropy_coeff.values() if isinstance(entropy_coeff, Mapping) else [entropy_coeff]
    if not all(_is_number(value) for value in coefficients):
        raise ValueError(f"entropy_coeff={entropy_coeff!r} is out of range: give at least 0")
    if critic_coeff is not None and not _is_number(critic_coeff):
        raise ValueError(
            f"critic_coeff={critic_coeff!r} is out of range: give at least 0, or None for no critic "
            "loss"
        )
    cap = max_importance_ratio
    if cap is not None and not (_is_number(cap) and cap > 0):
        raise ValueError(
            f"max_importance_ratio={cap!r} is out of range: give a number above 0, or None for no "
            "cap"
        )


def _is_number(value: Any, high: float = math.inf) -> bool:
    number = isinstance(value, Real | Tensor) and not isinstance(value, bool)
    return number and bool(0 <= value <= high)


def _as_float(value: Any) -> Any:
    """A number as a ``float``: TorchRL would keep, and anneal, an integer as one."""
    return float(value) if isinstance(value, Real) else value
