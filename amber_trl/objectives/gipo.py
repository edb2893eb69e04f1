"""GIPO: a Gaussian of the log-ratio instead of the clip."""

import math
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule

from amber_trl._checks import check_number, with_fixed
from amber_trl.objectives.ppo import AmberPPOLoss


class GIPOLoss(AmberPPOLoss):
    r"""Importance weighting with a soft trust weight, a Gaussian of the log-ratio.

    .. math::

        -\frac1M \sum_m \omega_m R_m \hat A_m, \qquad
        \omega_m = \exp\left(-\frac{(\log R_m)^2}{2 \sigma^2}\right)

    with :math:`R_m` the ratio of the actor to the stored behaviour log-probability, and no gradient
    through :math:`\omega`. It is the objective of GIPO (Lu et al., *Gaussian Importance Sampling
    Policy Optimization*, `arXiv 2603.03955 <https://arxiv.org/abs/2603.03955>`_). PPO's clip stops a
    frame's gradient abruptly and on one side of 1. The trust weight damps it gradually, on both sides,
    and never to exactly 0. :math:`\omega R` is at most :math:`e^{\sigma^2/2}`, and a wide Gaussian
    approaches plain importance weighting.

    Value loss, entropy bonus, masking, keys and the cap of the ratio are those of
    :class:`AmberPPOLoss`. ``ESS``, ``max_ratio`` and ``mean_ratio`` describe the weights
    :math:`\omega R`; the metric ``trust_weight`` is the mean of :math:`\omega`. Nothing is clipped:
    ``clip_fraction`` is 0, and annealing ``clip_epsilon`` has no effect.

    Deviations: the authors bound the ratio below by 1e-9 before taking its logarithm, which is not needed
    with log-ratios. They also try other widths for negative advantages, and other kernels.

    Other arguments and errors are those of :class:`AmberPPOLoss`, without ``clip_epsilon`` and
    ``delay_actor``; ``clip_value=True`` means 1.

    Keyword Args:
        sigma: width of the Gaussian, in nats, above 0. The authors' code uses 1 by default. A
            buffer, annealed by assigning to it.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.objectives import GIPOLoss
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        >>> frames["advantage"] = frames["value_target"] = torch.randn(64, 1)
        >>> loss = GIPOLoss(actor, critic, sigma=0.5)
        >>> loss(frames)["trust_weight"]
        tensor(1.)
        >>> frames["action_log_prob"] -= 1  # the actor makes every action e times as likely
        >>> loss(frames)["trust_weight"]
        tensor(0.1353)
    """

    _schedulable_buffers = frozenset({"sigma"})
    _clip_bounds = (-math.inf, math.inf)

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule | None = None,
        *,
        sigma: float = 1.0,
        **kwargs: Any,
    ) -> None:
        fixed = with_fixed("GIPOLoss", kwargs, clip_epsilon=1.0, delay_actor=False)
        super().__init__(actor_network, critic_network, **fixed)
        device = self.clip_epsilon.device
        self.register_coeff_buffer("sigma", check_number("sigma", sigma, above=0), device=device)

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        log_ratio, dist, kl, correction = super()._log_weight(tensordict, adv_shape)
        log_trust = -(log_ratio.detach() / self.sigma).square() / 2  # log omega
        self._own_metrics["trust_weight"] = log_trust.exp().mean()
        # The gradient-free part of the log-weight: omega, and the cap of R.
        return log_ratio, dist, kl, log_trust if correction is None else correction + log_trust
