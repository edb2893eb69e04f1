"""GePPO: clipping around the policy that the iteration started from."""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from amber_trl._actors import sum_of_heads
from amber_trl._checks import check_number, with_fixed
from amber_trl.objectives.ppo import AmberPPOLoss


class GePPOLoss(AmberPPOLoss):
    r"""Clips the ratio around what it was before this iteration's updates.

    .. math::

        -\frac1M \sum_m \min\left(R_m \hat A_m,
        \mathrm{clip}(R_m, C_m - \epsilon, C_m + \epsilon) \hat A_m\right), \qquad
        R_m = \frac{\pi(a_m|s_m)}{\pi_b(a_m|s_m)}, \quad
        C_m = \frac{\pi_k(a_m|s_m)}{\pi_b(a_m|s_m)}

    with :math:`\pi_b` the stored behaviour policy and :math:`\pi_k` the actor before this
    iteration's updates. It is the clipped objective of Generalized PPO with sample reuse (Queeney,
    Paschalidis & Cassandras 2021, `arXiv 2111.00072 <https://arxiv.org/abs/2111.00072>`_). PPO
    clips around 1, where an old frame may be out of range before the first update. Where
    :math:`\pi_k = \pi_b`, as in a new batch, :math:`C_m = 1` and this is :class:`AmberPPOLoss`, bit
    for bit.

    In addition to the keys of :class:`AmberPPOLoss` it reads ``proximal_log_prob``, the log-probability
    of the stored action under :math:`\pi_k`, ``[M]`` or ``[M, 1]`` (renamed by ``set_keys``). A filter
    with a ``proximal_log_prob_key`` measures it, and the buffer stores it.

    Value loss, entropy bonus, masking, metrics and the cap of the ratio are those of
    :class:`AmberPPOLoss`. A frame whose :math:`C_m` is above the cap is clipped around :math:`C_m`, and
    then scaled down by the same factor as its ratio.

    The metric ``total_variation`` is half the mean of :math:`|R_m - C_m|`, both capped: how far this
    iteration's updates have moved the policy so far. :meth:`adapt_learning_rate` keeps it below
    :math:`\epsilon / 2`.

    Deviations: the authors also weight batches by their age
    (:class:`~amber_trl.data.StratifiedMinibatchSampler`), and standardise advantages by
    :math:`C_m \hat A_m`. Neither is part of the loss. They measure the total variation over all frames
    after the last update, instead of as a mean over minibatches.

    Arguments and errors are those of :class:`AmberPPOLoss`, without ``delay_actor``. The default
    ``clip_epsilon`` is 0.1, the authors' for four batches: it bounds the change of one iteration.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.objectives import AmberPPOLoss, GePPOLoss
        >>> from amber_trl.transforms import ISStalenessFilter
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> staleness = ISStalenessFilter(actor, proximal_log_prob_key="proximal_log_prob")
        >>> replay = MultiBatchReplayBuffer(4, 64, 64, staleness=staleness)
        >>> frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        >>> frames["advantage"] = frames["value_target"] = torch.ones(64, 1)
        >>> frames["action_log_prob"] -= 0.2  # less likely then: the ratio starts at 1.22
        >>> index, ledger = replay.extend(frames), replay.refresh()
        >>> minibatch = replay.sample()
        >>> GePPOLoss(actor, critic, clip_epsilon=0.1)(minibatch)["clip_fraction"]
        tensor(0.)
        >>> AmberPPOLoss(actor, critic, clip_epsilon=0.1)(minibatch)["clip_fraction"]
        tensor(1.)
    """

    @dataclass
    class _AcceptedKeys(ClipPPOLoss._AcceptedKeys):
        proximal_log_prob: NestedKey = "proximal_log_prob"

    default_keys = _AcceptedKeys
    _clip_bounds: tuple[Tensor, Tensor] | None = None  # log(C - eps) and log(C + eps) of each frame

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule | None = None,
        **kwargs: Any,
    ) -> None:
        fixed = with_fixed("GePPOLoss", {"clip_epsilon": 0.1} | kwargs, delay_actor=False)
        super().__init__(actor_network, critic_network, **fixed)

    def forward(
        self, tensordict: TensorDictBase, critic_frames: TensorDictBase | None = None
    ) -> TensorDictBase:
        """As :class:`AmberPPOLoss`; ``KeyError`` also without a proximal log-probability."""
        try:
            return super().forward(tensordict, critic_frames)
        finally:
            self._clip_bounds = None  # tensors of this call's graph or trace must not outlive it

    def adapt_learning_rate(self, group: dict[str, Any], total_variation: Tensor | float) -> float:
        """Lowers the step size if the policy moved too far, raises it if too little.

        Call it once per iteration, after the updates. The step size is divided by 1.03 above
        ``eps / 2``, and multiplied by 1.03 below ``eps / 4``.

        Args:
            group: the optimiser's parameter group of the actor.
            total_variation: the metric of the iteration's last epoch, of any shape.

        Returns:
            The step size of the next iteration.

        Raises:
            ValueError: if its mean is NaN, as for an empty tensor.
        """
        moved = check_number("total_variation", float(torch.as_tensor(total_variation).mean()))
        most = float(self._clip_range[1]) / 2
        if moved > most:
            group["lr"] /= 1.03
        elif moved < most / 2:
            group["lr"] *= 1.03
        return float(group["lr"])

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: Any) -> Any:
        weights = super()._log_weight(tensordict, adv_shape)
        name = self.tensor_keys.proximal_log_prob
        proximal = tensordict.get(name, None)
        if proximal is None:
            raise KeyError(
                f"{name!r} is missing: build the buffer's filter with ISStalenessFilter("
                f"proximal_log_prob_key={name!r}), which stores it at every refresh(); or name "
                "the key with set_keys(proximal_log_prob=...)"
            )
        stored = self.tensor_keys.sample_log_prob
        stored = stored if isinstance(stored, list) else [stored]
        behaviour = sum_of_heads([tensordict.get(key) for key in stored], tensordict.numel())
        log_ratio = weights[0].detach()
        log_center = (proximal.reshape(-1) - behaviour).view_as(log_ratio)  # log C
        low, high = self._clip_range
        bounds = _log_add(log_center, -low), _log_add(log_center, high)
        log_ratios = torch.stack([log_ratio, log_center])
        if self.max_importance_ratio is not None:
            log_cap = self.max_importance_ratio.log()
            log_ratios = log_ratios.clamp(max=log_cap)
            most = log_ratio.clamp(min=log_cap)  # if the ratio is far below a centre above the cap
            bounds = torch.minimum(bounds[0], most), torch.minimum(bounds[1], most)
        self._own_metrics["total_variation"] = log_ratios.exp().diff(dim=0).abs().mean() / 2
        self._clip_bounds = bounds
        return weights


def _log_add(log_center: Tensor, change: Tensor) -> Tensor:
    """``log(max(0, C + change))``."""
    # C <= 1: log1p(C - 1 + change). C > 1: log C + log1p(change / C). No exponential overflows.
    below = (log_center.clamp(max=0).expm1() + change).clamp(min=-1).log1p()
    above = log_center + (change * (-log_center.clamp(min=0)).exp()).log1p()
    # Where C is 1, round as PPO does.
    return torch.where(log_center == 0, change.log1p(), torch.where(log_center > 0, above, below))
