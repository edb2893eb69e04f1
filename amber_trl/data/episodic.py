"""Minibatches of consecutive frames, for comparison with random ones."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from amber_trl.data._checks import check_divides
from amber_trl.data.active_batches import ActiveBatches
from amber_trl.data.samplers import MultiBatchSampler


class EpisodicMinibatchSampler(MultiBatchSampler):
    r"""Minibatches of consecutive frames, which the paper compares with random ones.

    Each minibatch is one run of :math:`M_{PPO} k` consecutive frames from one environment in one of
    the :math:`k` active batches, with a uniformly drawn start; an epoch has :math:`N / M_{PPO}`
    minibatches (Section 7.2 of `arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_). Runs may
    overlap and cross the end of an episode. ``torchrl.data.SliceSampler`` draws slices within
    trajectories instead.

    Args:
        frames_per_batch: ``N``, the rows of one batch, stored environment by environment, as flattened
            ``[E, T]`` batches are.
        frames_per_env: ``T``, the consecutive frames of one environment; it must divide ``N``.
            Defaults to ``N``, one environment.

    Raises:
        ValueError: if ``frames_per_env`` does not divide ``frames_per_batch``; when sampling, if a run
            is longer than ``frames_per_env``; when a buffer of this library receives ``[E, T]`` batches
            whose runs would cross environments.

    Examples:
        >>> from amber_trl.data import EpisodicMinibatchSampler
        >>> sampler = EpisodicMinibatchSampler(frames_per_batch=8, frames_per_env=4)
        >>> sampler.minibatch_size(batch_size=2, num_active=2)
        4
    """

    def __init__(self, frames_per_batch: int, frames_per_env: int | None = None) -> None:
        super().__init__(frames_per_batch)
        frames = frames_per_batch if frames_per_env is None else frames_per_env
        self.frames_per_env = check_divides("frames_per_env", frames, frames_per_batch)

    def settings(self) -> dict[str, Any]:
        """The arguments that determine an epoch."""
        return super().settings() | {"frames_per_env": self.frames_per_env}

    def check_shape(self, shape: torch.Size) -> None:
        """Raise ``ValueError`` if runs would cross from one environment of ``[E, T]`` to the next."""
        if len(shape) > 1 and shape[-1] % self.frames_per_env:
            raise ValueError(
                f"batch of shape {list(shape)} with frames_per_env={self.frames_per_env}: runs "
                f"would cross from one environment to the next; give the sampler frames_per_env="
                f"{shape[-1]}"
            )

    def draw_epoch(
        self, batches: ActiveBatches, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Runs of consecutive rows of the batches in use, ``[minibatches, rows]``."""
        slots = batches.slots.sort().values  # the same, whichever batch is newest
        length = self.minibatch_size(batch_size, len(slots))
        if length > self.frames_per_env:
            raise ValueError(
                f"a run of batch_size * active = {batch_size} * {len(slots)} = {length} frames is "
                f"longer than frames_per_env={self.frames_per_env}: use a smaller batch_size, "
                "fewer batches or fewer environments"
            )
        minibatches = self.frames_per_batch // batch_size
        envs = self.frames_per_batch // self.frames_per_env
        draw = partial(torch.randint, size=(minibatches,), generator=generator, device=slots.device)
        slot, env = slots[draw(len(slots))], draw(envs)
        offset = draw(self.frames_per_env - length + 1)
        first = slot * self.frames_per_batch + env * self.frames_per_env + offset
        return first[:, None] + torch.arange(length, device=slots.device)
