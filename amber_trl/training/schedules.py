"""Linear annealing of the step size, the clip range and the batch drop factor."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchrl.objectives import LossModule

from amber_trl._checks import check_integer
from amber_trl.functional import linear_anneal
from amber_trl.transforms import ISStalenessFilter

_CLIP_BUFFERS = ("clip_epsilon", "clip_epsilon_low", "clip_epsilon_high")


class LinearSchedule:
    r"""Linearly anneals the quantities that AMBER anneals to 0, in place.

    Every annealed quantity is

    .. math:: x(f) = x_0 \, \max(0,\, 1 - f / F)

    with :math:`f` the frames collected before this iteration and :math:`F` the total (AMBER, arXiv
    1710.04423, section on the experiments: the step size :math:`\beta`, the clip range :math:`\epsilon`
    and the batch drop factor :math:`\epsilon_b`). Initial values are those of the given objects when the
    schedule is made. An infinite drop factor stays infinite.

    Reads and writes ``lr`` of every parameter group of ``optimizer``, the ``clip_epsilon`` buffer of
    ``loss`` (``clip_epsilon_low`` and ``clip_epsilon_high`` if it was built with two ranges) and
    ``staleness.drop_factor``. Its state is the initial values and the frames of the last step. It is not
    a ``torch.optim.lr_scheduler``: it counts frames instead of calls, and does not touch the optimizer's
    momenta.

    Args:
        total_frames: frames after which everything is 0, at least 1.
        optimizer: optimiser whose learning rates are annealed; ``None`` for none.
        loss: loss whose clip range is annealed; ``None`` for a loss without one, such as ``A2CLoss``.
        staleness: filter whose drop factor is annealed; ``None`` if no batch is dropped, or a controller
            chooses the drop factor.
        extends: whether it may load the state of a schedule over fewer frames. It then follows its own
            line from there, so values that had reached 0 rise again.

    Raises:
        ValueError: if ``total_frames`` is below 1; at the first step, if ``staleness`` has a
            controller.
        TypeError: if ``total_frames`` is not an integer, or ``loss`` has no clip range.

    Examples:
        >>> import torch
        >>> from amber_trl.training import LinearSchedule
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.Adam([weight], lr=0.5)
        >>> schedule = LinearSchedule(1000, optimizer=optimizer)
        >>> schedule.step(250)
        {'learning_rate': 0.375}
        >>> optimizer.param_groups[0]["lr"]
        0.375
    """

    def __init__(
        self,
        total_frames: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        loss: LossModule | None = None,
        staleness: ISStalenessFilter | None = None,
        extends: bool = False,
    ) -> None:
        self.total_frames = check_integer("total_frames", total_frames)
        self._optimizer, self._loss, self._staleness = optimizer, loss, staleness
        self._clip_names = () if loss is None else _clip_buffers(loss)
        self._extends = extends
        self._frames: int | None = None
        self._initial = self._read()

    def step(self, frames: int) -> dict[str, float]:
        """Sets every annealed quantity to its value at ``frames`` frames.

        Args:
            frames: frames collected before this iteration, at least 0. Beyond the total, all values are
                0.

        Returns:
            The values set, by name, such as ``learning_rate`` (``learning_rate_1`` and so on for further
            parameter groups), ``clip_epsilon`` and ``drop_factor``.

        Raises:
            TypeError: if ``frames`` is not an integer.
            ValueError: if it is negative.
        """
        frames = self._frames = check_integer("frames", frames, low=0)
        values = {
            name: linear_anneal(initial, frames, self.total_frames)
            for name, initial in self._initial.items()
        }
        self._write(values)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Initial values and position, as plain Python numbers."""
        return {
            "total_frames": self.total_frames,
            "frames": self._frames,
            "initial": dict(self._initial),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved schedule, and sets the values of its last step again.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: if it comes from a schedule of other quantities or another length.
        """
        longer = self._extends and state["total_frames"] < self.total_frames
        if state["total_frames"] != self.total_frames and not longer:
            raise ValueError(
                f"state of a schedule over total_frames={state['total_frames']} given to one over "
                f"total_frames={self.total_frames}: values are annealed towards the total; "
                "build this schedule with the saved total, or with a larger one and extends=True"
            )
        if set(state["initial"]) != set(self._initial):
            raise ValueError(
                f"state of a schedule of {sorted(state['initial'])} given to one of "
                f"{sorted(self._initial)}: build it with the same optimizer, loss and staleness"
            )
        self._initial = {name: float(state["initial"][name]) for name in self._initial}
        self._frames = None
        if state["frames"] is not None:
            self.step(state["frames"])

    def _groups(self) -> dict[str, dict[str, Any]]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return {
            "learning_rate" if index == 0 else f"learning_rate_{index}": group
            for index, group in enumerate(groups)
        }

    def _read(self) -> dict[str, float]:
        values = {name: float(group["lr"]) for name, group in self._groups().items()}
        for name in self._clip_names:
            values[name] = _as_written(getattr(self._loss, name))
        if self._staleness is not None:
            values["drop_factor"] = float(self._staleness.drop_factor)
        return values

    def _write(self, values: Mapping[str, float]) -> None:
        for name, group in self._groups().items():
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(values[name])
            else:
                group["lr"] = values[name]
        for name in self._clip_names:
            setattr(self._loss, name, values[name])
        if self._staleness is not None:
            self._staleness.drop_factor = values["drop_factor"]


def _clip_buffers(loss: LossModule) -> tuple[str, ...]:
    names = tuple(name for name in _CLIP_BUFFERS if isinstance(getattr(loss, name, None), Tensor))
    if not names:
        raise TypeError(
            f"loss={type(loss).__name__} given to LinearSchedule has no clip_epsilon to anneal: "
            "pass a ClipPPOLoss or AmberPPOLoss, or leave loss out"
        )
    return names


def _as_written(value: Tensor) -> float:
    # A float32 buffer reads 0.4 as 0.4000000059604645. The shortest decimal that gives the same buffer is
    # the number that the user wrote; annealing it rounds once instead of twice.
    return float(str(value.detach().cpu().numpy()))
