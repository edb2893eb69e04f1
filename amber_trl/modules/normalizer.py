"""Running standardisation of observations, held by the networks that read them."""

import sys
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from amber_trl._checks import check_integer, check_number
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules._moments import merge_moments

_LARGEST = sys.float_info.max


class ObservationNormalizer(nn.Module):
    r"""Standardises observations by their running mean and standard deviation.

    .. math::
        \hat s = \mathrm{clip}\!\left(
            \frac{s - \mu}{\sqrt{\max(\sigma^2, v_{\min})}}, -c, c\right)

    The baseline of the AMBER paper (arXiv 1710.04423; OpenAI baselines' ppo1) does this inside its
    policy. :meth:`forward` never changes the statistics. :meth:`update` merges a batch into them (Chan,
    Golub and LeVeque, 1979: exact for any split of the data) and changes the buffers **in place**, so an
    actor, a critic, a collector in the same process and a staleness filter that share one normaliser
    always agree. ppo1 updates the statistics after computing the advantages; here the caller updates
    them right after collecting.

    The state is three buffers and no parameters, so no optimiser sees it: ``count`` (scalar), ``mean``
    and ``variance`` (``[size]``, population variance). They are float64 and stay so under ``.to(dtype)``,
    ``.half()`` and the like, which only change the dtype of the *result*; they follow the module to
    another device. Before any data, the mean is 0 and the variance 1.

    Cast or move the modules that hold the normaliser *before* passing them to a TorchRL loss. A loss
    built with ``functional=True`` that is itself cast or moved keeps a copy of the buffers, as of any
    module's, and misses later updates.

    In contrast, TorchRL's ``ObservationNorm`` and ``VecNormV2`` are environment transforms, and the data
    they store is already normalised by the statistics at that time.

    Args:
        size: length of an observation, at least 1.
        clip: bound on the result's absolute value, above 0, in standard deviations. ``math.inf`` disables
            clipping.
        min_variance: lower bound on the variance, above 0, in squared units of the observation.
        initial_count: number of frames that the initial mean 0 and variance 1 count for once there are
            data; at least 0. The default of 0 ignores them. ppo1 uses 0.01, which hides a channel with a
            large offset: after 2048 frames, it gives a channel of 1e6 +- 1 a standard deviation of 2200.
        dtype: floating dtype of the result; default: torch's default dtype.
        device: device of the statistics; default: torch's default device.

    Raises:
        ValueError: an argument is out of range.
        TypeError: ``size`` is not an integer, or ``dtype`` is not a floating dtype.

    Example:
        >>> import torch
        >>> from amber_trl.modules import ObservationNormalizer
        >>> normalizer = ObservationNormalizer(2)
        >>> normalizer.update(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
        >>> normalizer(torch.tensor([2.0, 20.0]))
        tensor([0., 0.])
        >>> normalizer(torch.tensor([2.0, 1e6]))[1]
        tensor(5.)
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        size: int,
        *,
        clip: float = 5.0,
        min_variance: float = 1e-2,
        initial_count: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype={dtype} is not floating: pass torch.float32 or torch.float64")
        self.size = check_integer("size", size)
        self.clip = check_number("clip", clip, above=0)
        self.min_variance = check_number("min_variance", min_variance, above=0, high=_LARGEST)
        count = check_number("initial_count", initial_count, high=_LARGEST)
        self._dtype = dtype or torch.get_default_dtype()
        mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.register_buffer("count", mean.new_full((), count))
        self.register_buffer("mean", mean)
        self.register_buffer("variance", torch.ones_like(mean))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of what :meth:`forward` returns; follows ``.to(dtype)``."""
        return self._dtype

    def forward(self, observation: Tensor) -> Tensor:
        """Standardises observations with the current statistics.

        Args:
            observation: floating tensor ``[*batch, size]`` on the module's device, of any
                floating dtype. Finiteness is not checked, since that would synchronise a GPU.

        Returns:
            Tensor ``[*batch, size]`` of :attr:`dtype`, in ``[-clip, clip]``.

        Raises:
            ValueError: the last dimension is not ``size``.
            TypeError: the dtype is not floating.
        """
        check_observation(observation, self.size)
        deviation = self.variance.clamp_min(self.min_variance).sqrt()
        standardised = (observation - self.mean) / deviation
        return standardised.clamp(-self.clip, self.clip).to(self._dtype)

    @torch.no_grad()
    def update(self, observation: Tensor) -> None:
        """Merges a batch of observations into the statistics, in place.

        Args:
            observation: floating tensor ``[*batch, size]`` on any device, at least one frame,
                all finite; every leading dimension counts as frames.

        Raises:
            ValueError: the last dimension is not ``size``, or the batch is empty.
            NonFiniteDataError: a value is NaN, infinite, or so large that its square overflows
                float64. The statistics are then unchanged.
            TypeError: the dtype is not floating.
        """
        check_observation(observation, self.size)
        frames = observation.reshape(-1, self.size).to(self.mean)
        if frames.shape[0] == 0:
            raise ValueError(
                f"observation of shape {tuple(observation.shape)} holds no frame: update needs at "
                "least one"
            )
        total, mean, variance = merge_moments(self.count, self.mean, self.variance, frames)
        # A NaN or an infinity anywhere in a column shows up in that column's variance.
        if not torch.isfinite(variance).all():
            columns = (~variance.isfinite()).nonzero().flatten().tolist()
            raise NonFiniteDataError(
                "observation has values that are NaN, infinite or too large to square in columns "
                f"{columns}: the statistics were left unchanged; find out what the environment "
                "returns there"
            )
        self.count.copy_(total)
        self.mean.copy_(mean)
        self.variance.copy_(variance)

    def extra_repr(self) -> str:
        """Arguments shown by ``repr``."""
        return (
            f"{self.size}, clip={self.clip}, min_variance={self.min_variance}, dtype={self._dtype}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        self._dtype = fn(torch.empty(0, dtype=self._dtype, device=self.mean.device)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self


def check_observation(observation: Tensor, size: int) -> None:
    """Raises for observations that are not floating tensors ``[*batch, size]``."""
    if not observation.is_floating_point():
        raise TypeError(
            f"observation has dtype {observation.dtype}, but a floating dtype is needed: convert "
            "it with .float()"
        )
    if observation.ndim == 0 or observation.shape[-1] != size:
        raise ValueError(
            f"observation has shape {tuple(observation.shape)}, but its last dimension must be "
            f"{size}: pass observations of that size, or build the module for theirs"
        )
