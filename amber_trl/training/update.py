"""One gradient step of a TorchRL loss on a minibatch, eager or compiled."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature

import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torchrl.objectives import LossModule

from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.training._compiled import CompiledStep
from amber_trl.training._guard import NonFiniteGuard, Rows, admit_update, each
from amber_trl.training._metrics import total_loss


class UpdateStep:
    """Makes optimiser steps on the sum of a loss module's ``loss_*`` entries.

    For parameters ``w`` and loss terms ``l_k``, it computes ``g = d/dw sum_k l_k(w)`` on a minibatch,
    rescales ``g`` to the norm ``max_grad_norm`` if it is longer, and lets the optimiser apply it. In
    eager mode (the default), the result is bit-identical to the loop in TorchRL's documentation:
    ``loss(minibatch)``, ``backward()``, ``optimizer.step()``, ``optimizer.zero_grad()``. In compiled
    mode, gathering the minibatch, loss, gradients and Adam are one graph: several times faster for small
    networks, equal to eager mode up to rounding, and deterministic.

    A loss or gradient that is not finite leaves parameters and optimiser state unchanged. So does every
    later update, until :meth:`clear_nonfinite` is called. State that the loss writes in its own forward
    pass still changes: the statistics of a ``BatchNorm`` in train mode, or the ``beta`` of
    ``KLPENPPOLoss``. An eager update waits for the device; compiled updates leave a flag on it, which is
    read once per epoch.

    Compiling takes about ten seconds, at the first call. It is repeated for other keys, dtypes or frozen
    parameters, and for minibatches of one row, of very few or of more than 4096. At every call (an epoch
    is one), the compiled step reads learning rate, betas, epsilon and weight decay, the optimiser's
    state, the loss's buffers (``loss.clip_epsilon``), ``requires_grad`` and train or eval mode. It reads
    the loss's other configuration only once. It leaves ``.grad`` alone and calls no optimiser hooks. On
    CUDA it replays one CUDA graph per minibatch size, each of which waits for the update before it.

    Args:
        loss: a TorchRL loss module that emits scalar ``loss_*`` entries. For compiling, it must be built
            with ``functional=False``.
        optimizer: an optimiser over exactly the parameters of ``loss`` that require a gradient. For
            compiling, it must be an ``Adam`` or ``AdamW``.
        max_grad_norm: the largest Euclidean norm of the whole gradient, positive and finite; ``None``
            (default) does not limit it, as in the AMBER paper.
        compile: whether to compile; :func:`should_compile` decides for a whole run.
        critic_on_all: whether an epoch gives the loss a second minibatch of every stored batch, for the
            value loss (``critic_frames`` of :class:`~amber_trl.objectives.AmberPPOLoss`).

    Raises:
        TypeError: if ``loss`` is not a ``LossModule``, ``compile`` is not a bool, or it is true
            and the optimiser is not ``Adam`` or ``AdamW``.
        ValueError: if the optimiser's parameters are not those of the loss, if ``max_grad_norm`` is not
            positive and finite, or if ``compile`` is true and the loss is functional or the optimiser
            uses an unsupported option.
        RuntimeError: if ``compile`` is true and no compiler works for the loss's device.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.data import MultiBatchReplayBuffer
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.objectives import AmberPPOLoss
        >>> from amber_trl.training import UpdateStep
        >>> actor, critic = gaussian_actor(3, 1), value_critic(3)
        >>> loss = AmberPPOLoss(actor, critic)
        >>> update = UpdateStep(loss, torch.optim.Adam(loss.parameters(), lr=3e-4))
        >>> frames = actor(TensorDict({"observation": torch.randn(64, 3)}, [64])).detach()
        >>> frames["advantage"] = frames["value_target"] = torch.randn(64, 1)
        >>> update(frames)["loss_critic"].shape
        torch.Size([])
        >>> replay = MultiBatchReplayBuffer(num_batches=2, frames_per_batch=64, minibatch_size=16)
        >>> index = replay.extend(frames)
        >>> update.epoch(replay)["loss_critic"].shape
        torch.Size([4])
    """

    def __init__(
        self,
        loss: LossModule,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float | None = None,
        compile: bool = False,
        critic_on_all: bool = False,
    ) -> None:
        if not isinstance(compile, bool):
            raise TypeError(
                f"compile={compile!r} is not a bool: pass what should_compile(choice, "
                "total_frames=...) returns"
            )
        _validate(loss, optimizer, max_grad_norm)
        if critic_on_all and len(signature(loss.forward).parameters) < 2:
            raise TypeError(
                f"critic_on_all=True with loss of type {type(loss).__name__}, which takes one minibatch: "
                "give one that also takes the critic's, as AmberPPOLoss does"
            )
        self.critic_on_all = critic_on_all
        self._guard = NonFiniteGuard(next(loss.parameters()).device)
        make: type[CompiledStep] | type[_EagerStep] = CompiledStep if compile else _EagerStep
        self._step = make(loss, optimizer, self._guard, max_grad_norm)

    @property
    def compiled(self) -> bool:
        """Whether updates run as a compiled graph."""
        return isinstance(self._step, CompiledStep)

    def __call__(self, minibatch: TensorDictBase) -> TensorDict:
        """Makes one update.

        Args:
            minibatch: the frames to learn from, ``[rows]``, with the keys that the loss reads. If it has an
                ``index``, a :class:`NonFiniteError` reports those rows.

        Returns:
            All entries that the loss emits, detached, as tensors of batch size ``[]``. With ``max_grad_norm``
            also ``grad_norm``, the norm before clipping, shape ``[]``.

        Raises:
            KeyError: if the loss emits no entry whose name starts with ``loss_``.
            ValueError: if such an entry is not a scalar; in compiled mode, also if a parameter of the loss or
                the optimiser has been replaced since the step was made.
        """
        return self._step.step((minibatch,), minibatch.get("index", None))

    def epoch(self, replay: MultiBatchReplayBuffer) -> TensorDict:
        """Makes every update of one fresh epoch over a buffer.

        The updates equal those of ``for minibatch in replay: update(minibatch)``, bit for bit, but a compiled
        step gathers each minibatch inside its graph, and does the work in Python only once per epoch. Updates
        are numbered from the start of the epoch.

        Args:
            replay: the buffer to learn from, extended and, if it has a filter, refreshed.

        Returns:
            The result of calling the step for each update, with batch size ``[updates]``.

        Raises:
            TypeError: if ``replay`` has no ``epoch()``.
            ValueError: if the frames are stored on another device than the loss's; with ``critic_on_all``, if
                the number of minibatches depends on the batches in use, or value targets are not recomputed
                for every batch.
            NonFiniteError: if a loss or gradient was not finite, in this epoch or before it. The error lists
                the minibatch's rows and, if it was in this epoch, the ages of their batches.
        """
        if not hasattr(replay, "epoch"):
            raise TypeError(
                f"replay is a {type(replay).__name__}, which has no epoch(): give a "
                "MultiBatchReplayBuffer, or call the step with each minibatch"
            )
        self.raise_if_nonfinite()
        of_actor = replay.epoch()
        indices: Sequence[Rows] = list(of_actor)
        if self.critic_on_all:
            of_critic = replay.epoch(every_batch=True)
            if len(of_critic) != len(of_actor):
                raise ValueError(
                    f"critic_on_all=True with {len(of_actor)} minibatches of the batches in use and "
                    f"{len(of_critic)} of all batches: the sampler's number of minibatches must not depend "
                    "on the batches in use (scale_minibatch=True)"
                )
            indices = list(zip(of_actor, of_critic, strict=True))
        stored = replay.storage[:]  # a view, not a copy
        there, here = next(stored.values(True, True)).device, self.nonfinite.device
        if there.type != here.type:
            raise ValueError(
                f"replay stores frames on {there}, and the loss is on {here}: build the buffer with "
                f"storage=LazyTensorStorage(rows, device={str(here)!r}), or call the step with each "
                "minibatch, moved"
            )
        metrics = self._step.epoch(stored, indices)
        if (error := self._guard.error()) is not None:
            raise error.with_ages(replay.age, len(stored))
        return metrics

    def epochs(
        self, replay: MultiBatchReplayBuffer, count: int, target_kl: float | None = None
    ) -> Iterator[TensorDict]:
        """Makes up to ``count`` epochs with :meth:`epoch`, and yields the result of each.

        Args:
            replay: as in :meth:`epoch`.
            count: largest number of epochs.
            target_kl: stop after an epoch whose mean ``kl_approx``, an entry of the loss, exceeds this. The mean estimates how far
                the policy has moved from the policies that collected the frames in use. None makes all
                epochs, as in the AMBER paper.

        Raises:
            KeyError: if ``target_kl`` is given, and the loss emits no ``kl_approx``.
        """
        for _ in range(count):
            metrics = self.epoch(replay)
            yield metrics
            if target_kl is not None and metrics["kl_approx"].mean() > target_kl:
                return

    @property
    def nonfinite(self) -> torch.Tensor:
        """Whether updates are being skipped, boolean, ``[]``, on the loss's device."""
        return self._guard.raised

    def raise_if_nonfinite(self) -> None:
        """Raises an error if a loss or gradient was not finite; waits for the device.

        :meth:`epoch` does this itself. A loop that calls the step with minibatches should call it once per
        epoch; otherwise the step itself raises after 4096 updates at the latest. Updates are skipped until
        :meth:`clear_nonfinite` is called.

        Raises:
            NonFiniteError: with the number of the update since the last check, and the rows of its
                minibatch.
        """
        if (error := self._guard.error()) is not None:
            raise error

    def clear_nonfinite(self) -> None:
        """Lets updates be applied again after a non-finite one."""
        self._guard.clear()


@dataclass
class _EagerStep:
    """TorchRL's stock loop, operation by operation, for any optimiser."""

    loss: LossModule
    optimizer: torch.optim.Optimizer
    guard: NonFiniteGuard
    max_grad_norm: float | None

    def step(self, minibatches: Sequence[TensorDictBase], index: Rows | None) -> TensorDict:
        """Learns from ``minibatches``, the loss's arguments, which were gathered from ``index``."""
        self.optimizer.zero_grad()
        emitted = self.loss(*minibatches)
        total = total_loss(emitted)
        torch.autograd.backward(total)
        metrics: TensorDict = emitted.detach()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.max_grad_norm is None:
            norm = torch.cat([g.flatten() for g in gradients]).norm()
        else:
            norm = metrics["grad_norm"] = get_total_norm(gradients)
            clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        # The only wait for the device: stock optimisers cannot skip a step on the device.
        skip = admit_update(torch.isfinite(total.detach() + norm), *self.guard.tensors)
        if not skip.item():
            self.optimizer.step()
        self.guard.remember(index)
        return metrics

    def epoch(self, stored: TensorDictBase, indices: Iterable[Rows]) -> TensorDict:
        """Learns from ``stored[index]`` for each ``index`` in turn."""
        return torch.stack(
            [self.step([stored[rows] for rows in each(index)], index) for index in indices]
        )


def _validate(
    loss: LossModule, optimizer: torch.optim.Optimizer, max_grad_norm: float | None
) -> None:
    if not isinstance(loss, LossModule):
        raise TypeError(
            f"loss is a {type(loss).__name__}, not a torchrl.objectives.LossModule: "
            "wrap the networks in one, such as ClipPPOLoss"
        )
    if max_grad_norm is not None and not 0.0 < max_grad_norm < math.inf:
        raise ValueError(
            f"max_grad_norm={max_grad_norm} must be positive and finite: pass None for no clipping"
        )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if strangers := len(trained - {id(p) for p in loss.parameters()}):
        raise ValueError(
            f"{strangers} of the optimizer's {len(trained)} parameters are not the loss's: "
            "build the optimizer from loss.parameters()"
        )
    forgotten = [n for n, p in loss.named_parameters() if p.requires_grad and id(p) not in trained]
    if forgotten:
        raise ValueError(
            f"the optimizer lacks the loss's parameters {forgotten}: build it from "
            "loss.parameters(), or call requires_grad_(False) on parameters that must not be trained"
        )
