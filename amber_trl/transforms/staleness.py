"""The staleness filter: which stored batches the current actor may still learn from."""

from typing import Any, cast

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import Transform

from amber_trl._actors import (
    check_evaluable,
    check_gaussian,
    check_one_per_frame,
    device_of,
    evaluation,
    joint_log_prob,
    keys_read,
    log_ratio_of_dimensions,
    sum_of_heads,
)
from amber_trl._checks import check_integer, check_number
from amber_trl.functional import effective_sample_size, per_dimension_deviation
from amber_trl.transforms._metrics import (
    OF_LOG_RATIO,
    DistributionMetric,
    StalenessMetric,
    check_metric,
)
from amber_trl.transforms.controller import DropFactorController
from amber_trl.transforms.ledger import make_ledger


class ISStalenessFilter(Transform):
    r"""Measures whole stored batches against the current actor, and drops the stale ones.

    For each batch of :math:`N` frames, the log-ratios
    :math:`x_n = \log \pi(a_n|s_n) - \log \pi_b(a_n|s_n)` compare the current actor with the recorded
    log-probability of the behaviour policy. A metric maps them to a staleness :math:`d \ge 0`. By
    default :math:`d = R' - 1` with the batch average importance weight
    :math:`R' = \frac1N \sum_n (1 + |1 - e^{x_n}|)` of equation 10 of the AMBER paper
    (`arXiv 1710.04423 <https://arxiv.org/abs/1710.04423>`_). A batch is in use if :math:`d` is finite
    and at most ``drop_factor`` (Algorithm 1, line 11). The newest batch is always in use, if ages are
    known. Before the iteration's first update, its :math:`R'` is 1 if nothing has changed since it was
    collected; if observation statistics have moved, :math:`R'` measures the effect of that move alone.

    Pass it to :class:`~amber_trl.data.MultiBatchReplayBuffer` as ``staleness=``: it needs whole batches,
    and a transform appended to a buffer sees only minibatches. Or use it on its own, with
    :meth:`measure`, :meth:`select` or :meth:`forward`.

    It references the live actor without registering it: the actor's weights are not part of the state of
    the filter or of a buffer that holds it, and a copied or unpickled filter has no actor until
    :meth:`set_actor`. A measurement costs one forward pass of the actor over the measured frames.

    Args:
        actor: a TorchRL actor with ``get_dist`` (a ``ProbabilisticActor``, or any
            ``ProbabilisticTensorDictSequential``), whose distribution has ``log_prob``;
            continuous, discrete or composite.
        drop_factor: ``eps_b`` in ``[0, inf]``; ``inf`` keeps every batch. A property, so it can be
            annealed. Or a :class:`DropFactorController`, which chooses it at every measurement.

    Keyword Args:
        metric: ``"mean_abs_deviation"`` (``R' - 1``), ``"per_dimension"`` (the same, averaged over the
            action dimensions of a Gaussian), ``"kl"`` (``mean(r - 1 - log r)``),
            ``"effective_sample_size"`` (``1 - ESS/N``), ``"age"`` (in batches), a function of
            the log-ratios ``[batches, frames]`` that returns ``[batches]``, or a
            :class:`DistributionMetric`, which sees both distributions of each frame.
        report_only: only measure, and drop nothing; ``reason`` holds the verdict that would have applied.
        action_key: where actions are stored. Defaults to the actor's own.
        log_prob_key: where the behaviour policy's log-probability is stored. Defaults to the
            actor's own.
        loc_key: where the mean of the behaviour policy's Gaussian is stored.
        scale_key: where its standard deviation is stored.
        mask_key: where :meth:`forward` writes its mask.
        proximal_log_prob_key: where :meth:`measure` writes the log-probability of each frame's action
            under the current actor, which :class:`~amber_trl.objectives.GePPOLoss` reads. A buffer that
            holds the filter stores it. By default it is not written.
        max_importance_ratio: frames with a higher ratio are counted in the ledger.
        chunk_size: frames per forward pass, which bounds memory.

    Raises:
        TypeError: if ``actor`` has no ``get_dist``, or an argument has a wrong type.
        ValueError: if an argument is out of range, the actor is recurrent or reads what it samples,
            or ``metric="per_dimension"`` is used with an actor that is not Gaussian.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.transforms import ISStalenessFilter
        >>> actor = gaussian_actor(observation_size=3, action_size=1)
        >>> batches = actor(TensorDict({"observation": torch.randn(2, 64, 3)}, [2, 64]))
        >>> staleness = ISStalenessFilter(actor, drop_factor=0.25)
        >>> staleness.measure(batches)["active"]
        tensor([True, True])
        >>> batches["action_log_prob"][1] -= 1  # as if these actions had been less likely
        >>> staleness.measure(batches)["active"]
        tensor([ True, False])
        >>> staleness.select(batches).shape
        torch.Size([64])
    """

    def __init__(
        self,
        actor: ProbabilisticTensorDictSequential,
        drop_factor: float | DropFactorController = 0.25,
        *,
        metric: StalenessMetric = "mean_abs_deviation",
        report_only: bool = False,
        action_key: NestedKey | None = None,
        log_prob_key: NestedKey | None = None,
        loc_key: NestedKey = "loc",
        scale_key: NestedKey = "scale",
        mask_key: NestedKey = "staleness_mask",
        proximal_log_prob_key: NestedKey | None = None,
        max_importance_ratio: float = 1e3,
        chunk_size: int = 4096,
    ) -> None:
        super().__init__(out_keys=[mask_key])
        self.metric = check_metric(metric)
        self.report_only = report_only
        self.proximal_log_prob_key = proximal_log_prob_key
        self.max_importance_ratio = check_number(
            "max_importance_ratio", max_importance_ratio, above=0
        )
        self.chunk_size = check_integer("chunk_size", chunk_size)
        self.controller: DropFactorController | None = None
        """The controller that chooses the drop factor; None if it is a number."""
        if isinstance(drop_factor, DropFactorController):
            self.controller, drop_factor = drop_factor, drop_factor.max_drop_factor
        self._drop_factor = check_number("drop_factor", drop_factor)
        self._action_keys = None if action_key is None else [unravel_key(action_key)]
        self._log_prob_keys = None if log_prob_key is None else [unravel_key(log_prob_key)]
        self._gaussian_keys = [unravel_key(loc_key), unravel_key(scale_key)]
        self.set_actor(actor)

    @property
    def drop_factor(self) -> float:
        """``eps_b`` in ``[0, inf]``; with a controller, its last choice, initially its bound."""
        return self._drop_factor

    @drop_factor.setter
    def drop_factor(self, value: float) -> None:
        if self.controller is not None:
            raise ValueError(
                f"drop_factor={value} for a filter whose drop factor {self.controller} chooses: "
                "build the filter with a number, or leave it to the controller (and out of a schedule)"
            )
        self._drop_factor = check_number("drop_factor", value)

    @property
    def actor(self) -> ProbabilisticTensorDictSequential:
        """The live actor; ``RuntimeError`` if this filter was copied or unpickled without one."""
        actor = self.__dict__.get("_actor")
        if actor is None:
            raise RuntimeError(
                "this ISStalenessFilter was copied or unpickled and has no actor: call "
                "set_actor(actor) with the one being trained"
            )
        return cast("ProbabilisticTensorDictSequential", actor)

    def set_actor(self, actor: ProbabilisticTensorDictSequential) -> None:
        """Measure against ``actor`` from now on; raises the constructor's errors."""
        if not callable(getattr(actor, "get_dist", None)):
            raise TypeError(
                f"actor of type {type(actor).__name__} has no get_dist, so no log-probability of a "
                "stored action: give a torchrl.modules.ProbabilisticActor"
            )
        check_evaluable(actor)
        # Bypasses nn.Module's __setattr__, which would register the actor as a child of the filter.
        self.__dict__["_actor"] = actor
        keys = [*keys_read(actor), *self.action_keys, *self.log_prob_keys]
        if self.metric == "per_dimension":
            check_gaussian(actor, 'metric="per_dimension"')
        keys += self._behaviour_keys
        self.in_keys = list(dict.fromkeys(unravel_key(key) for key in keys))

    @property
    def action_keys(self) -> list[NestedKey]:
        """Where actions are stored; more than one for a composite action."""
        return self._action_keys or list(self.actor.dist_sample_keys)

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """Where the behaviour policy's log-probability is stored."""
        return self._log_prob_keys or list(self.actor.log_prob_keys)

    @property
    def _behaviour_keys(self) -> list[NestedKey]:
        """Where the metric reads the parameters of the behaviour policy's distribution."""
        if self.metric == "per_dimension":
            return self._gaussian_keys
        if isinstance(self.metric, DistributionMetric):
            return [unravel_key(key) for key in self.actor.dist_params_keys]
        return []

    @torch.no_grad()
    def measure(self, tensordict: TensorDictBase, age: Tensor | None = None) -> TensorDict:
        """Measure one or several batches under the current actor.

        Runs in eval mode (restored afterwards) and changes no generator or parameter.

        Args:
            tensordict: ``[batches, frames]``, or ``[frames]`` for one batch.
            age: ``int64`` ``[batches]``, 0 for the newest, which is then always in use.

        Returns:
            The ledger, a TensorDict ``[batches]`` in the order given, with ``age`` (if given),
            ``importance_ratio`` (``R'``), ``staleness`` (``d``), ``kl``, ``ess`` (over ``N``),
            ``max_log_ratio``, ``num_capped`` (frames above ``max_importance_ratio``),
            ``num_non_finite`` (frames whose ratio is not finite), ``active`` and ``reason``
            (a :class:`~amber_trl.transforms.Reason`).

        Raises:
            KeyError: if a key that the filter reads is missing.
            ValueError: if a shape does not fit, ``age`` is not a tensor, or a function given as the
                metric returns a negative number.
            RuntimeError: if the metric needs ages and none are given.
        """
        self.check_frames(tensordict)
        batches = tensordict if tensordict.ndim == 2 else tensordict.unsqueeze(0)
        if age is not None and (not isinstance(age, Tensor) or age.shape != batches.shape[:1]):
            raise ValueError(
                f"age={age!r} for {len(batches)} batches: give an int64 tensor of one age per batch, "
                "such as the age of a MultiBatchReplayBuffer"
            )
        frames = batches.select(*self.in_keys).reshape(-1)
        chunks = [self._measure_chunk(chunk) for chunk in frames.split(self.chunk_size)]
        log_prob, log_ratio, measured = map(torch.cat, zip(*chunks, strict=True))
        log_ratio = log_ratio.view(batches.shape)
        age = None if age is None else age.to(log_ratio.device)
        if self.proximal_log_prob_key is not None:
            tensordict.set(
                self.proximal_log_prob_key, log_prob.view(tensordict.shape), inplace=True
            )
        staleness = self._staleness(log_ratio, measured, age)
        if self.controller is not None:
            self._drop_factor = self.controller(staleness, effective_sample_size(log_ratio), age)
        return make_ledger(
            log_ratio,
            staleness,
            age,
            drop_factor=self.drop_factor,
            max_importance_ratio=self.max_importance_ratio,
            report_only=self.report_only,
        )

    def select(self, tensordict: TensorDictBase, age: Tensor | None = None) -> TensorDictBase:
        """The frames of the batches in use, for any loss; shape ``[0]`` if no batch is in use.

        Arguments and errors are those of :meth:`measure`.
        """
        active = self.measure(tensordict, age)["active"]
        batches = tensordict if tensordict.ndim == 2 else tensordict.unsqueeze(0)
        kept = batches[active]
        return kept.reshape(kept.batch_size.numel())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write under ``mask_key`` which frames belong to batches in use.

        A loss excludes the other frames if its ``loss_mask_key`` names this key. A stock loss sets their
        loss to 0, which is safe only for bounded ratios, and still counts them elsewhere (see Concepts).
        :class:`~amber_trl.objectives.AmberPPOLoss` removes them, and :meth:`select` returns only the others.

        Arguments and errors are those of :meth:`measure`, without ages. The mask is boolean and has
        the batch size of the TensorDict, which is returned.
        """
        active = self.measure(tensordict)["active"]
        mask = active if tensordict.ndim == 1 else active[:, None]
        return tensordict.set(self.out_keys[0], mask.expand(tensordict.shape).clone())

    def check_frames(self, tensordict: TensorDictBase) -> None:
        """Raise unless log-ratios of ``[batches, frames]`` or ``[frames]`` can be computed.

        Raises:
            KeyError: if a key that the filter reads is missing.
            ValueError: if the number of dimensions is neither 1 nor 2, a batch is empty, or a
                log-probability has more than one number per frame.
        """
        if tensordict.ndim not in (1, 2) or 0 in tensordict.batch_size:
            raise ValueError(
                f"tensordict of batch size {tuple(tensordict.shape)}: expected [batches, frames] "
                "or [frames], with at least one frame"
            )
        missing = [key for key in self.in_keys if tensordict.get(key, None) is None]
        if missing:
            raise KeyError(
                f"{missing} missing: the staleness filter reads {self.in_keys} with metric="
                f"{self.metric!r}; record what the actor writes when it collects "
                "(return_log_prob=True), keep it in storage (keys=), or name the keys "
                "(action_key=, log_prob_key=, loc_key=, scale_key=)"
            )
        if len(self.log_prob_keys) == 1:
            log_prob = tensordict.get(self.log_prob_keys[0])
            check_one_per_frame(self.log_prob_keys[0], log_prob, tensordict.numel())

    def _measure_chunk(self, frames: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability and log-ratio of each frame, and the metric's own measurement.

        The measurement is the log-ratios ``[frames, D]`` of the action dimensions for ``"per_dimension"``,
        ``[frames]`` for a :class:`DistributionMetric`, and empty for others.
        """
        actor, device = self.actor, device_of(self.actor)
        there = frames if device is None else frames.to(device)
        with evaluation(actor):  # x_n = log pi(a_n|s_n) - log pi_b(a_n|s_n)
            dist = actor.get_dist(there.select(*keys_read(actor)))
            current = joint_log_prob(dist, there, self.action_keys)
        behaviour = sum_of_heads([there.get(key) for key in self.log_prob_keys], len(frames))
        measured = behaviour.new_empty(0)
        if self.metric == "per_dimension":
            measured = log_ratio_of_dimensions(
                dist, there, self.action_keys[0], self._gaussian_keys, 'metric="per_dimension"'
            )
        elif isinstance(self.metric, DistributionMetric):
            recorded = actor.build_dist_from_params(there.select(*self._behaviour_keys))
            measured = self.metric(dist, recorded)
            if not isinstance(measured, Tensor) or measured.shape != (len(frames),):
                raise _wrong_shape(
                    self.metric, measured, "two distributions of [frames]", "[frames]"
                )
        home = frames.get(self.log_prob_keys[0]).device
        return current.to(home), (current - behaviour).to(home), measured.to(home)

    def _staleness(self, log_ratio: Tensor, measured: Tensor, age: Tensor | None) -> Tensor:
        if self.metric == "age":
            if age is None:
                raise RuntimeError('metric="age" needs the ages of the batches: pass age=')
            return age.to(log_ratio.dtype)
        if self.metric == "per_dimension":
            return per_dimension_deviation(measured.view(*log_ratio.shape, -1))
        if isinstance(self.metric, str):
            return OF_LOG_RATIO[self.metric](log_ratio)
        if isinstance(self.metric, DistributionMetric):
            staleness = measured.view(log_ratio.shape).mean(-1)
        else:
            staleness = self.metric(log_ratio)
        if not isinstance(staleness, Tensor) or staleness.shape != log_ratio.shape[:1]:
            raise _wrong_shape(self.metric, staleness, "log-ratios [batches, frames]", "[batches]")
        if (staleness < -1e-4).any():  # further below 0 than rounding explains
            raise ValueError(f"metric {self.metric!r} returned {staleness.min()}: give at least 0")
        return staleness

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Raises ``RuntimeError``: the filter is not an environment transform."""
        raise RuntimeError(
            "ISStalenessFilter measures whole stored batches and is not an environment transform: give "
            "it to MultiBatchReplayBuffer as staleness=, or call measure, select or forward"
        )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_actor": None}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(drop_factor={self.drop_factor}, metric={self.metric!r}, "
            f"report_only={self.report_only}, keys={self.in_keys})"
        )


def _wrong_shape(metric: object, returned: object, given: str, shape: str) -> ValueError:
    found = tuple(returned.shape) if isinstance(returned, Tensor) else returned
    return ValueError(
        f"metric {metric!r} returned {found}: it must map {given} to a tensor {shape}; a metric of "
        "distributions instead of log-ratios is a DistributionMetric"
    )
