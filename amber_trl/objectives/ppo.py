"""The clipped loss with the paper's defaults, safe for frames of old policies."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from amber_trl._checks import check_number


class AmberPPOLoss(ClipPPOLoss):
    r"""``ClipPPOLoss`` with the paper's defaults, for frames of several behaviour policies.

    .. math::

        -\frac1M \sum_m \min(R_m \hat A_m, \mathrm{clip}(R_m, 1 - \epsilon, 1 + \epsilon) \hat A_m)
        + c_v \frac1M \sum_m (V(s_m) - \hat V_m)^2

    with :math:`R_m` the ratio of the actor's probability to the *stored* behaviour probability of the
    frame (equations 7, 8 and 11 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_, negated for
    minimisation). It is TorchRL's :class:`torchrl.objectives.ClipPPOLoss` with its maths untouched. It
    differs in its defaults (squared-error critic, no entropy bonus, ratio capped at ``1e3``), has two
    more metrics, and requires a stored advantage.

    The cap keeps loss and gradients finite for a frame with a log-ratio of 1000. The loss is bit-equal to
    the uncapped one as long as no frame reaches the cap; the metric ``capped_frames`` counts those that
    do. The metric ``mean_abs_deviation`` is the mean of ``|R - 1|``, capped like the loss: the paper's
    average importance weight of a minibatch (section 4.2) is 1 more.

    Reads the actor's and the critic's ``in_keys``, the action, its log-probability, ``advantage``
    (``[..., 1]``) and ``value_target`` (``[..., 1]``), all renamed by ``set_keys``. Returns
    ``loss_objective``, ``loss_critic``, ``loss_entropy`` (with an entropy bonus) and metrics.

    If ``loss_mask_key`` names a key, the frames that its mask excludes are removed before anything is
    computed, so they enter no mean, no normalisation of advantages and no metric. Such a call cannot be
    compiled, since the number of frames depends on the data. With ``"auto"`` (the default), the masks that
    TorchRL writes, such as those of padded slices, act as in ``ClipPPOLoss``: on the sums alone.

    Args:
        actor_network: the actor.
        critic_network: the critic; ``None`` with ``critic_coeff=None`` (or 0).

    Keyword Args:
        clip_epsilon: clip range ``eps`` in [0, 1] (or a pair, below and above); assign to it to anneal
            it.
        entropy_coeff: weight of the entropy bonus, or one per action head; 0 for no bonus. Assigning to
            it later does not turn the bonus on.
        critic_coeff: ``c_v``, at least 0; 0 or None for no critic loss.
        loss_critic_type: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        max_importance_ratio: cap of the ratio, above 0; ``None`` for no cap, and no protection.
        normalize_advantage: as in ``ClipPPOLoss``, like ``clip_value``, ``delay_actor``,
            ``separate_losses``, ``samples_mc_entropy``, ``log_explained_variance``, ``reduction``
            and ``functional``.

    Raises:
        TypeError: if ``critic_coeff`` is above 0 without a critic.
        ValueError: if ``clip_epsilon`` is not in [0, 1].
        KeyError: when called without a key that the loss reads, such as a stored advantage.
        ValueError: when called, if advantage, value target or log-probability has a wrong shape.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.objectives import AmberPPOLoss
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        >>> frames["advantage"] = frames["value_target"] = torch.randn(64, 1)
        >>> loss = AmberPPOLoss(actor, critic, clip_epsilon=0.4)(frames)
        >>> (loss["loss_objective"] + loss["loss_critic"]).backward()
        >>> loss["capped_frames"]
        tensor(0.)
    """

    _critic_frames: TensorDictBase | None = None

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
        normalize_advantage: bool = False,
        clip_value: bool | float | None = None,
        delay_actor: bool = False,
        separate_losses: bool = False,
        samples_mc_entropy: int = 1,
        log_explained_variance: bool = True,
        reduction: str | None = None,
        functional: bool = True,
    ) -> None:
        # The names are listed because ``ClipPPOLoss`` accepts and ignores any other name.
        if critic_network is None and critic_coeff:
            raise TypeError(
                f"critic_network=None with critic_coeff={critic_coeff}: give a critic, or "
                "critic_coeff=None for no critic loss"
            )
        if isinstance(clip_epsilon, Real):
            clip_epsilon = check_number("clip_epsilon", clip_epsilon, high=1.0)
        super().__init__(
            actor_network,
            critic_network,
            clip_epsilon=clip_epsilon,
            entropy_bonus=bool(entropy_coeff),
            entropy_coeff=_as_float(entropy_coeff),
            critic_coeff=_as_float(critic_coeff),
            loss_critic_type=loss_critic_type,
            max_importance_ratio=_as_float(max_importance_ratio),
            normalize_advantage=normalize_advantage,
            clip_value=clip_value,
            delay_actor=delay_actor,
            separate_losses=separate_losses,
            samples_mc_entropy=samples_mc_entropy,
            log_explained_variance=log_explained_variance,
            reduction=reduction,
            functional=functional,
        )

    def forward(
        self, tensordict: TensorDictBase, critic_frames: TensorDictBase | None = None
    ) -> TensorDictBase:
        """Loss and metrics of a minibatch.

        Args:
            tensordict: ``[M]`` stored frames.
            critic_frames: frames for the value loss, ``[M_V]``; by default those of ``tensordict``.

        Returns:
            A TensorDict of scalars; with ``reduction="none"``, losses are ``[M]``.

        Raises:
            KeyError: if advantage, value target or action is not stored. Unlike ``ClipPPOLoss``, this loss does
                not recompute an advantage from old frames with the current critic, since the method does
                not.
            ValueError: if a column has a wrong shape, or ``critic_frames`` come with a loss mask.
        """
        _check_column("advantage", self.tensor_keys.advantage, tensordict)
        action = self.tensor_keys.action
        if not isinstance(action, list) and tensordict.get(action, None) is None:
            raise KeyError(
                f"{action!r} is missing: store the actions, or name the key with set_keys(action=...)"
            )
        if self._has_critic:
            of_values = tensordict if critic_frames is None else critic_frames
            _check_column("value_target", self.tensor_keys.value_target, of_values)
        if critic_frames is not None and any(
            frames.get(key, None) is not None
            for key in self._loss_mask_keys()  # TorchRL would reduce both losses by one mask
            for frames in (tensordict, critic_frames)
        ):
            raise ValueError(
                "critic_frames with a loss mask: drop masked frames and mask beforehand"
            )
        self._own_metrics: dict[str, Tensor] = {}
        self._critic_frames = critic_frames
        try:
            losses: TensorDictBase = super().forward(self._in_use(tensordict))
            losses.update(self._own_metrics)
        finally:  # tensors of this call's graph or trace must not outlive it
            self._own_metrics, self._critic_frames = {}, None
        return losses

    def loss_critic(self, tensordict: TensorDictBase) -> tuple[Any, ...]:
        """The value loss, as in ``ClipPPOLoss``; over the critic's own frames if it has any."""
        frames = tensordict if self._critic_frames is None else self._critic_frames.clone(False)
        return super().loss_critic(frames)

    @property
    def _clip_range(self) -> tuple[Tensor, Tensor]:
        """How far the ratio may go below and above the centre of its range."""
        if self._asymmetric_clip:
            return self.clip_epsilon_low, self.clip_epsilon_high
        return self.clip_epsilon, self.clip_epsilon

    def _in_use(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.loss_mask_key
        mask = None if key in (None, "auto") else tensordict.get(key, None)
        if mask is None or not mask.any():  # with no frame left, TorchRL gives a loss of 0
            return tensordict
        return tensordict[mask.reshape(tensordict.shape)]

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        weights = super()._log_weight(tensordict, adv_shape)
        log_ratio, log_correction = weights[0].detach(), weights[3]
        behaviour = log_ratio if log_correction is None else log_ratio + log_correction.detach()
        name = self.tensor_keys.sample_log_prob
        stored = None if isinstance(name, list) else tensordict.get(name)
        if isinstance(stored, Tensor) and stored.shape != log_ratio.shape[:-1]:
            raise ValueError(
                f"{name!r} of shape {tuple(stored.shape)} makes log-ratios of shape "
                f"{tuple(log_ratio.shape[:-1])}: store it in the actor's shape, "
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


def _check_column(role: str, name: NestedKey, frames: TensorDictBase) -> None:
    value = frames.get(name, None)
    if value is None:
        raise KeyError(
            f"{name!r} is missing: compute advantages and value targets once, when a batch is "
            f"collected (torchrl.objectives.value.GAE), and store them; or name the key with "
            f"set_keys({role}=...)"
        )
    if value.ndim <= frames.ndim or value.shape[-1] != 1 or not value.is_floating_point():
        raise ValueError(
            f"{name!r} of shape {tuple(value.shape)} and dtype {value.dtype} for frames "
            f"{tuple(frames.shape)}: give floating numbers of shape [..., 1]"
        )


def _as_float(value: Any) -> Any:
    """A number as a ``float``: TorchRL would keep an integer as such, and could not anneal it."""
    return float(value) if isinstance(value, Real) else value
