"""DISC: clips the ratio of each action dimension separately."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from amber_trl._actors import check_gaussian, log_ratio_of_dimensions
from amber_trl._checks import check_number, with_fixed
from amber_trl.objectives.ppo import AmberPPOLoss


class DISCLoss(AmberPPOLoss):
    r"""Clips the ratio of each action dimension separately, and penalises change on new frames.

    .. math::

        -\frac1M \sum_m \frac{W_m}{\bar W} \hat A_m
        + \alpha \frac{1}{2 |\mathcal N|} \sum_{m \in \mathcal N} (\log R_m)^2, \qquad
        W_m = \prod_d
        \begin{cases}
            \min(R_{m,d}, 1 + \epsilon) & \hat A_m \ge 0 \\
            \max(R_{m,d}, 1 - \epsilon) & \hat A_m < 0
        \end{cases}

    with :math:`R_{m,d}` the ratio of action dimension :math:`d` under the actor's Gaussian to that under
    the stored one, :math:`\bar W` the mean of :math:`W` over the minibatch (without gradient),
    :math:`R_m = \prod_d R_{m,d}`, and :math:`\mathcal N` the minibatch's frames from the newest batch. It
    is the policy objective of DISC (Han & Sung 2019, *Dimension-Wise Importance Sampling Weight
    Clipping*, `arXiv 1905.02363 <https://arxiv.org/abs/1905.02363>`_). PPO's clip of the whole ratio
    removes a frame's gradient once the product leaves the range, which happens soon with many
    dimensions. Here a frame loses only the dimensions that have left it.

    The penalty's weight :math:`\alpha` is the buffer ``penalty_coeff``, and thus part of the
    ``state_dict``. Once per iteration, :meth:`adapt_penalty` doubles or halves it.

    In addition to the keys of :class:`AmberPPOLoss` it reads ``loc`` and ``scale``, the stored mean and
    deviation of each dimension, and ``batch_age``, int64 ``[M]``, 0 for frames of the newest batch (all
    renamed by ``set_keys``). ``MultiBatchReplayBuffer(age_key="batch_age")`` stores the age; name
    ``loc`` and ``scale`` in its ``keys``. It also returns ``loss_penalty``, a scalar whatever the
    reduction, and ``penalty``, which is ``loss_penalty`` over :math:`\alpha`. A minibatch without any
    frame of the newest batch has a penalty of 0, so draw minibatches that contain some.

    Value loss, entropy bonus and masking are those of :class:`AmberPPOLoss`. ``ESS``, ``max_ratio`` and
    ``mean_ratio`` describe the weights :math:`W_m / \bar W`; ``clip_fraction`` is the share of dimension
    ratios that are clipped; ``capped_frames`` counts frames with :math:`W_m` above
    ``max_importance_ratio``, which are capped as in :class:`AmberPPOLoss`.

    Deviations: the authors draw a fixed share of each minibatch from the newest batch, clip the value
    loss, and compute advantages by GAE-V; none of this is part of this loss. In their mean
    :math:`\bar W`, a frame with advantage 0 has weight 0; here it has its usual weight. They do not cap.

    The actor must be Gaussian. Other arguments and errors are those of :class:`AmberPPOLoss`, without
    ``delay_actor``.

    Keyword Args:
        penalty_target: the penalty that :meth:`adapt_penalty` aims at, above 0.
        penalty_coeff: the initial :math:`\alpha`, within ``2**-10`` and 64; or 0 for no penalty, which
            then stays off.

    Raises:
        ValueError: if a number is out of range, or the actor is not Gaussian.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.objectives import DISCLoss
        >>> actor, critic = gaussian_actor(3, 2), value_critic(3)
        >>> replay = MultiBatchReplayBuffer(4, 64, 64, age_key="batch_age")
        >>> for iteration in range(2):
        ...     frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        ...     frames["advantage"] = frames["value_target"] = torch.randn(64, 1)
        ...     index = replay.extend(frames)
        >>> loss = DISCLoss(actor, critic)
        >>> emitted = loss(replay.sample())
        >>> emitted["penalty"]
        tensor(0.)
        >>> loss.adapt_penalty(emitted["penalty"])
        0.5
    """

    @dataclass
    class _AcceptedKeys(ClipPPOLoss._AcceptedKeys):
        batch_age: NestedKey = "batch_age"
        loc: NestedKey = "loc"
        scale: NestedKey = "scale"

    default_keys = _AcceptedKeys
    _clip_bounds = (-math.inf, math.inf)  # no clip other than that of the dimensions

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule | None = None,
        *,
        penalty_target: float = 1e-3,
        penalty_coeff: float = 1.0,
        **kwargs: Any,
    ) -> None:
        check_gaussian(actor_network, type(self).__name__)
        fixed = with_fixed("DISCLoss", kwargs, delay_actor=False)
        super().__init__(actor_network, critic_network, **fixed)
        self.penalty_target = check_number("penalty_target", penalty_target, above=0)
        if penalty_coeff != 0:
            check_number("penalty_coeff", penalty_coeff, low=2**-10, high=64)
        device = self._clip_range[0].device
        self.register_coeff_buffer("penalty_coeff", float(penalty_coeff), device=device)

    @torch.no_grad()
    def adapt_penalty(self, penalty: Tensor | float) -> float:
        """Doubles the penalty's weight if the policy moved too far, halves it if too little.

        Call it once per iteration, after the updates. The weight doubles above 1.5 times the
        target and halves below the target over 1.5, within ``2**-10`` and 64.

        Args:
            penalty: the metric ``penalty`` of this iteration's updates, of any shape.

        Returns:
            The weight of the next iteration's penalty.

        Raises:
            ValueError: if its mean is NaN, as for an empty tensor.
        """
        measured = check_number("penalty", float(torch.as_tensor(penalty).mean()))
        if self.penalty_coeff > 0:
            if measured > 1.5 * self.penalty_target:
                self.penalty_coeff.mul_(2).clamp_(max=64)
            elif measured < self.penalty_target / 1.5:
                self.penalty_coeff.div_(2).clamp_(min=2**-10)
        return float(self.penalty_coeff)

    def _maybe_normalize_advantage(
        self, advantage: Tensor, tensordict: TensorDictBase, **kwargs: Any
    ) -> Tensor:
        advantage = super()._maybe_normalize_advantage(advantage, tensordict, **kwargs)
        tensordict.set(self.tensor_keys.advantage, advantage)  # in the call's own copy
        return advantage

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        # On a copy: the actor overwrites the stored mean and deviation with its own.
        log_ratio, dist, kl, _ = super()._log_weight(tensordict.clone(False), adv_shape)
        keys = self.tensor_keys
        self._add_penalty(log_ratio, tensordict.get(keys.batch_age, None))
        log_ratios = log_ratio_of_dimensions(
            dist, tensordict, keys.action, [keys.loc, keys.scale], type(self).__name__
        )
        low, high = self._clip_range
        clipped = torch.where(
            tensordict.get(keys.advantage) < 0,
            log_ratios.clamp(min=(-low).log1p()),
            log_ratios.clamp(max=high.log1p()),
        )
        log_weight = clipped.sum(-1, keepdim=True)  # log W
        correction = torch.zeros_like(log_weight)
        if self.max_importance_ratio is not None:
            correction = (self.max_importance_ratio.log() - log_weight.detach()).clamp(max=0)
        capped = log_weight.detach() + correction
        most = capped.amax()
        log_mean = most + (capped - most).exp().mean().log()  # log mean W, without overflow
        self._own_metrics |= {
            "clip_fraction": (clipped != log_ratios).to(log_weight.dtype).mean(),
            "capped_frames": (correction < 0).sum().to(log_weight.dtype),
        }
        return log_weight, dist, kl, correction - log_mean

    def _add_penalty(self, log_ratio: Tensor, age: Tensor | None) -> None:
        if age is None:
            name = self.tensor_keys.batch_age
            raise KeyError(
                f"{name!r} is missing: build the buffer with MultiBatchReplayBuffer(age_key="
                f"{name!r}), or name the key with set_keys(batch_age=...)"
            )
        newest = (age == 0).view_as(log_ratio)
        penalty = (log_ratio.square() * newest).sum() / newest.sum().clamp(min=1) / 2
        self._own_metrics |= {
            "loss_penalty": self.penalty_coeff * penalty,
            "penalty": penalty.detach(),
        }
