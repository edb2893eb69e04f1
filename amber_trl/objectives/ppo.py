"""The clipped loss with the paper's preset, safe for frames of old policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

__all__ = ["AmberPPOLoss"]


class AmberPPOLoss(ClipPPOLoss):
    r"""``ClipPPOLoss`` with the paper's preset, for frames of several behaviour policies.

    .. math::

        -\frac1M \sum_m \min(R_m \hat A_m, \mathrm{clip}(R_m, 1 - \epsilon, 1 + \epsilon) \hat A_m)
        + c_v \frac1M \sum_m (V(s_m) - \hat V_m)^2

    with :math:`R_m` the ratio of the actor to the *stored* behaviour log-probability of the frame
    (equations 7, 8 and 11 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_, with the
    sign turned to minimise). It is TorchRL's :class:`torchrl.objectives.ClipPPOLoss`, whose maths
    it leaves alone; it differs in its defaults (squared-error critic, no entropy bonus, ratio
    capped at ``1e3``), in one more metric, and in that a stored advantage is required.

    The cap keeps loss and gradients finite for a frame with a log-ratio of 1000, and is bit-equal
    to the uncapped loss as long as no frame reaches it. The metric ``capped_frames`` counts those
    that do.

    Reads the actor's and the critic's ``in_keys``, the action, its log-probability, ``advantage``
    (``[..., 1]``) and ``value_target`` (``[..., 1]``), all renamed by ``set_keys``; returns
    ``loss_objective``, ``loss_critic``, ``loss_entropy`` (with an entropy bonus) and metrics.

    Args:
        actor_network: the actor.
        critic_network: the critic; ``None`` with ``critic_coeff=0``.

    Keyword Args:
        clip_epsilon: clip range ``eps``, above 0 and at most 1 (or a pair, below and above);
            annealed by assigning to it.
        entropy_coeff: weight of the entropy bonus, or one per action head; 0 for no bonus.
        critic_coeff: ``c_v``, at least 0.
        loss_critic_type: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        max_importance_ratio: cap of the ratio; ``None`` for no cap, and no protection.
        **kwargs: any other of ``ClipPPOLoss`` (``functional``, ``normalize_advantage``,
            ``reduction``, ...).

    Raises:
        ValueError: if a coefficient is out of range.
        KeyError: when called without a stored advantage.

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

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.4,
        entropy_coeff: float | Mapping[NestedKey, float] = 0.0,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "l2",
        max_importance_ratio: float | None = 1e3,
        **kwargs: Any,
    ) -> None:
        _check_coefficients(clip_epsilon, entropy_coeff, critic_coeff)
        super().__init__(
            actor_network,
            critic_network,
            clip_epsilon=clip_epsilon,
            entropy_bonus=bool(entropy_coeff),
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            max_importance_ratio=max_importance_ratio,
            **kwargs,
        )

    @property
    def out_keys(self) -> list[NestedKey]:
        """What the loss returns."""
        keys: list[NestedKey] = super().out_keys
        if "capped_frames" not in keys:
            keys.append("capped_frames")
        return keys

    @out_keys.setter
    def out_keys(self, values: list[NestedKey]) -> None:
        self._out_keys: list[NestedKey] | None = values

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Loss and metrics of a minibatch.

        Args:
            tensordict: ``[M]`` stored frames.

        Returns:
            A TensorDict of scalars.

        Raises:
            KeyError: if there is no stored advantage. Recomputing it here from old frames with the
                current critic, as ``ClipPPOLoss`` would, is not what the method does.
        """
        if tensordict.get(self.tensor_keys.advantage, None) is None:
            raise KeyError(
                f"{self.tensor_keys.advantage!r} is missing: compute advantages once, when a batch "
                "is collected (torchrl.objectives.value.GAE), and store them; or name the key with "
                "set_keys(advantage=...)"
            )
        self._capped_frames: Tensor | None = None
        losses = super().forward(tensordict)
        losses.set("capped_frames", self._capped_frames)
        # A tensor of this call's graph or trace must not outlive it.
        self._capped_frames = None
        return losses

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        weights = super()._log_weight(tensordict, adv_shape)
        log_ratio = weights[0].detach()
        over = log_ratio.new_zeros(())
        if self.max_importance_ratio is not None:
            over = (log_ratio > self.max_importance_ratio.log()).sum().to(log_ratio.dtype)
        self._capped_frames = over
        return weights


def _check_coefficients(
    clip_epsilon: float | tuple[float, float],
    entropy_coeff: float | Mapping[NestedKey, float],
    critic_coeff: float,
) -> None:
    ranges = clip_epsilon if isinstance(clip_epsilon, tuple | list) else (clip_epsilon,)
    if not all(0 <= value <= 1 for value in ranges):
        raise ValueError(
            f"clip_epsilon={clip_epsilon} is out of range: give a number in [0, 1], such as the "
            "paper's 0.4"
        )
    coefficients = entropy_coeff.values() if isinstance(entropy_coeff, Mapping) else [entropy_coeff]
    if not all(value >= 0 for value in coefficients):
        raise ValueError(f"entropy_coeff={entropy_coeff} is out of range: give at least 0")
    if not critic_coeff >= 0:
        raise ValueError(f"critic_coeff={critic_coeff} is out of range: give at least 0")
