"""Runs a training loop that can be stopped and resumed."""

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.collectors import BaseCollector
from tqdm import tqdm

from amber_trl._checks import check_integer
from amber_trl.checkpoints import CheckpointError, Checkpoints, list_checkpoints
from amber_trl.collectors import CollectionState
from amber_trl.modules import RewardScaler
from amber_trl.runs._episodes import WINDOW
from amber_trl.runs._log import TrainingLog
from amber_trl.runs.interrupts import StopOnInterrupt
from amber_trl.runs.policies import Policy
from amber_trl.runs.run_directory import RunDirectory

_logger = logging.getLogger(__name__)

_SHARE = 0.5
"""Share of a training after which any number of episodes counts as a full window."""


class TrainingRun:
    """Runs the iterations of a training: resumes, stops, saves checkpoints, logs and summarises.

    It wraps any training loop over a collector's batches, as in the example. On entering, it continues
    from the newest undamaged checkpoint if the directory was opened with ``resume=True``. On the CPU,
    with simulators that can be saved, a resumed training ends with the same bits as one that never
    stopped. Otherwise ``reasons`` in ``summary`` says why not.

    A checkpoint contains the parts, the collector and its simulators, the random generators and the
    log's position. Its score is the mean return of the last 100 training episodes. Since short episodes
    end first, a checkpoint has a score only once 100 episodes have ended or half of ``total_frames`` has
    been collected. Its details store the number of ``episodes``.

    The first signal of :class:`StopOnInterrupt` ends the loop after the current iteration, as does
    ``break`` after :meth:`record`. On leaving, even after an error, the collector is shut down and
    ``policy.pt`` and ``summary.json`` are written.

    Args:
        directory: the run directory, closed on leaving.
        collector: a collector of whole batches. Its ``total_frames`` become those of the training, and are
            then set to infinity, since the run itself decides when to end. A resume is exact with
            :class:`~amber_trl.collectors.GymCollector`; other collectors start new episodes.
        parts: what a checkpoint saves besides the collector, by name: every object that changes and has
            ``state_dict`` and ``load_state_dict``. If there is a :class:`Policy` under the name ``policy``, it is
            also written to ``policy.pt``, for ``amber-trl evaluate``.
        num_batches: largest number of batches in the ledger; its columns are written for each age.
        checkpoint_interval: iterations between checkpoints; None saves only the last. One is also
            saved after each evaluation.
        log_interval: iterations between rows of ``iterations.csv`` and ``timing.csv``, for loops with many
            short iterations. Episodes are always written, and so is the iteration that reaches
            ``total_frames``. Must divide ``eval_interval``.
        eval_interval: iterations between evaluations; None for no evaluations.
        evaluate: plays some episodes with the current actor and returns their mean return. It must not
            advance any generator that the training uses; :func:`~amber_trl.evaluation.play` does not.
            The mean goes to the column ``eval_return``, and is the score of a checkpoint saved after that
            iteration. Other checkpoints then have no score.
        progress: whether to show a progress bar.

    Attributes:
        frames: total number of frames collected and recorded so far.
        total_frames: frames of the whole training, in whole batches; may be infinite.
        summary: the contents of ``summary.json``, after leaving.

    Raises:
        ValueError: if a number is out of range, or a part has a reserved name.
        CheckpointError: on entering, if the directory has no checkpoint to resume from, or none that fits the
            parts.

    Examples:
        A complete training with TorchRL's ``ReinforceLoss`` that can be stopped and resumed:

        >>> import tempfile
        >>> import torch
        >>> from torchrl.objectives import ReinforceLoss
        >>> from torchrl.objectives.value import GAE
        >>> from amber_trl.collectors import GymCollector
        >>> from amber_trl.envs import make_env
        >>> from amber_trl.modules import gaussian_actor, value_critic
        >>> from amber_trl.runs import RunDirectory, TrainingRun
        >>> def train(path, resume=False):
        ...     env = make_env("InvertedPendulum-v5", num_envs=2, seed=0)
        ...     actor, critic = gaussian_actor(4, 1), value_critic(4)
        ...     loss = ReinforceLoss(actor, critic)
        ...     advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
        ...     optimizer = torch.optim.Adam(loss.parameters())
        ...     collector = GymCollector(env, actor, frames_per_batch=64, total_frames=256)
        ...     directory = RunDirectory(path, resume=resume)
        ...     parts = {"loss": loss, "optimizer": optimizer}
        ...     with TrainingRun(directory, collector, parts, progress=False) as run:
        ...         for batch in run.batches():
        ...             losses = loss(advantage(batch))
        ...             (losses["loss_actor"] + losses["loss_value"]).backward()
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        ...             run.record(batch, metrics=losses.detach())
        ...     return run.summary
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     summary = train(f"{parent}/run")
        >>> summary["frames"], summary["interrupted"], summary["exactness"]
        (256, False, 'exact')
    """

    def __init__(
        self,
        directory: RunDirectory,
        collector: BaseCollector,
        parts: Mapping[str, Any],
        *,
        num_batches: int = 1,
        checkpoint_interval: int | None = None,
        log_interval: int = 1,
        eval_interval: int | None = None,
        evaluate: Callable[[], float] | None = None,
        progress: bool = True,
    ) -> None:
        check_integer("num_batches", num_batches)
        self._log_interval = check_integer("log_interval", log_interval)
        intervals = {"checkpoint_interval": checkpoint_interval, "eval_interval": eval_interval}
        for name, interval in intervals.items():
            if interval is not None:
                check_integer(name, interval)
        if eval_interval is not None and eval_interval % log_interval:
            raise ValueError(
                f"log_interval={log_interval} does not divide eval_interval={eval_interval}: the rows "
                "of evaluations would be missing"
            )
        if eval_interval is not None and evaluate is None:
            raise ValueError(f"eval_interval={eval_interval} without evaluate: pass a function")
        self.frames = 0
        self.summary: dict[str, Any] = {}
        self._directory, self._collector, self._parts = directory, collector, dict(parts)
        self._size = size = collector.requested_frames_per_batch
        self.total_frames = total = collector.total_frames
        if math.isfinite(total):  # the last batch is whole
            self.total_frames = -(-total // size) * size
        # The collector would close the simulators with its last batch, before they are saved.
        collector.total_frames = math.inf
        self._num_batches, self._interval = num_batches, checkpoint_interval
        self._eval_interval, self._evaluate = eval_interval, evaluate
        self._progress = progress
        own: dict[str, Any] = {}
        self._collection = None
        if (env := getattr(collector, "env", None)) is not None:  # not in other processes
            own["collection"] = self._collection = CollectionState(collector, env)
        # Its frames, time and unfinished episodes; after what may be refused, since it removes files.
        own["run"] = self
        own["generators"] = GlobalRNGState()  # last, since others may draw while they load
        if taken := own.keys() & parts:
            raise ValueError(f"parts={sorted(taken)} are saved anyway: give the parts other names")
        policy = parts.get("policy")
        self._policy = policy if isinstance(policy, Policy) else None
        self._checkpoints = Checkpoints(directory.checkpoints, {**parts, **own})
        self._stop = StopOnInterrupt()
        self._earlier: list[str] = []  # why resuming was not exact
        self._saved = 0  # frames of the newest checkpoint
        self._pending: torch.Size | None = None  # shape of the batch that is not recorded yet
        self._evaluated: float | None = None  # after the last iteration

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._directory.close)
            stack.enter_context(self._stop)
            saved = [int(file.stem) for file in list_checkpoints(self._directory.checkpoints)]
            progress = self._progress and max(saved, default=0) < self.total_frames
            self._log = TrainingLog(
                self._directory, self.total_frames, self._num_batches, progress=progress
            )
            stack.callback(self._log.bar.close)
            if self._directory.resumed:
                self._restore()
            self._closing = stack.pop_all()
        return self

    def batches(self) -> Iterator[TensorDictBase]:
        """Yields the collector's batches until all are collected or the run is asked to stop.

        Between batches it saves a checkpoint when one is due, and after each evaluation.

        Raises:
            RuntimeError: if a batch was not recorded before the next is requested.
        """
        batches = iter(self._collector)
        # A signal that arrives after this check takes effect once the iteration is finished.
        while self.frames < self.total_frames and not self._stop.requested:
            due = self._interval and self.frames // self._size % self._interval == 0
            if due or self._evaluated is not None:
                self._save()
            self._log.lap("checkpoint")
            if (batch := next(batches, None)) is None:
                return
            self._log.lap("collect")
            self._pending = batch.shape
            yield batch
            if self._pending is not None:
                raise RuntimeError(
                    "a batch was not recorded: end each iteration with run.record(...)"
                )

    def record(
        self,
        batch: TensorDictBase,
        values: Mapping[str, Any] | None = None,
        metrics: TensorDictBase | Sequence[TensorDictBase] = (),
        ledger: TensorDictBase | None = None,
    ) -> None:
        """Ends an iteration: counts its frames, logs it and moves the bar.

        Args:
            batch: the batch as collected, ``[E, T]`` or ``[T]``, with the environment's own rewards and flags.
            values: further columns of ``iterations.csv``, such as the values that a schedule set.
            metrics: what the updates returned, one TensorDict per epoch or update; means over
                all updates are written. The first row fixes the columns of ``iterations.csv``, so for
                an iteration without updates pass a TensorDict with the same keys and batch size ``[0]``.
            ledger: what ``refresh`` returned, newest batch first.

        Raises:
            ValueError: if the number of frames or the last dimension of the batch differs from the batch that
                :meth:`batches` yielded.
            RuntimeError: if no batch waits to be recorded, as on a second call.
        """
        if self._pending is None:
            raise RuntimeError("no batch waits to be recorded: call run.record once per batch")
        if batch.numel() != self._pending.numel() or batch.shape[-1] != self._pending[-1]:
            raise ValueError(
                f"batch of shape {list(batch.shape)} given to record, but batches() yielded "
                f"{list(self._pending)}: pass that batch, before it is flattened"
            )
        self._log.lap("update")
        metrics = [metrics] if isinstance(metrics, TensorDictBase) else metrics
        self._evaluated = None
        iteration = self.frames // self._size + 1
        if self._eval_interval is not None and self._evaluate is not None:
            self._evaluated = None if iteration % self._eval_interval else self._evaluate()
            values = {**(values or {}), "eval_return": self._evaluated}
        self._log.count(batch, self.frames)
        self.frames += batch.numel()
        if iteration % self._log_interval == 0 or self.frames >= self.total_frames:
            self._log.write(self.frames, values or {}, metrics, ledger)
        self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """Frames, time, unfinished episodes and configuration, for a checkpoint."""
        config = self._directory.config_text()
        return {"frames": self.frames, "config": config, "log": self._log.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state; later rows of the tables are removed.

        Raises:
            ValueError: if ``config.json`` or the tables are not those of the run that saved it.
        """
        if not _same_config(state["config"], self._directory.config_text()):
            raise ValueError(
                f"{self._directory.path}/config.json is not what it was when the checkpoint was "
                "saved: restore it, since a resumed run keeps its options"
            )
        self._log.load_state_dict(state["log"], state["frames"])
        self.frames = state["frames"]

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._closing:
            try:
                if error is None and self._pending is None:
                    self._save()
            except BaseException as failure:
                self._leave(failure)
                raise
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Writes the final files; a failure here must not hide an earlier error."""
        interrupted = error is not None or self.frames < self.total_frames
        stopped_by = self._stop.signal
        reasons = self._reasons()
        between_rows = min(self._size * self._log_interval, max(1, self.frames))
        self.summary = {
            **self._log.summary(self.frames, between_rows),
            "interrupted": interrupted,
            "stopped_by": stopped_by.name if stopped_by and interrupted else None,
            "exactness": "approximate" if reasons else "exact",
            "reasons": reasons,
        }
        try:
            if self._policy is not None:
                self._policy.save(self._directory.path / "policy.pt")
            self._directory.write_summary(self.summary)
        except OSError as failure:
            if error is None:
                raise
            _logger.error("policy.pt and summary.json could not be written: %s", failure)
        finally:
            self._collector.shutdown(raise_on_error=error is None)

    def _save(self) -> None:
        if self.frames == self._saved:
            return
        self._directory.sync()  # a checkpoint must not refer to a row that a crash can lose
        episodes = len(self._log.episodes)
        full = episodes >= WINDOW or self.frames >= _SHARE * self.total_frames
        trained = self._log.means()[0] if full else None
        self._checkpoints.save(
            self.frames,
            score=trained if self._eval_interval is None else self._evaluated,
            details={"episodes": episodes, "reasons": self._reasons()},
        )
        self._saved = self.frames

    def _restore(self) -> None:
        restored = self._checkpoints.restore()
        if restored is None:
            raise CheckpointError(
                f"there is no checkpoint in {self._checkpoints.directory}: start the run again, "
                "with --overwrite"
            )
        self._saved = self.frames
        self._earlier, finished = [*restored.details["reasons"]], self.frames >= self.total_frames
        if not finished:
            self._earlier += restored.differences
        if not finished and (self._collection is None or not self._collection.continues):
            self._log.recorder.drop_unfinished()
            for part in self._parts.values():
                if isinstance(part, RewardScaler):
                    part.restart()
            self._earlier.append("running episodes could not be restored, so new ones started")
        for reason in self._earlier:
            _logger.warning("resumed approximately: %s", reason)
        if self._progress:
            tqdm.write(f"resumed after {self.frames} of {self.total_frames} frames", sys.stderr)
        if self.frames >= self.total_frames:
            _logger.warning(
                "the run in %(run)s is finished: continue it with --extend %(run)s "
                "--total-frames M, or start a new run from its policy with --init-from %(run)s",
                {"run": self._directory.path},
            )

    def _reasons(self) -> list[str]:
        """Why the run, or a resumed one, may differ from a run that never stopped; empty if it may not."""
        reasons = [*self._earlier]
        if self._collection is None:
            name = type(self._collector).__name__
            reasons.append(f"{name} has no env in this process, so simulators are not saved")
        else:
            reasons += self._collection.inexact
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        devices = {str(p.device) for module in modules for p in module.parameters()} - {"cpu"}
        reasons += [
            f"device {device}: the order of sums varies from run to run"
            for device in sorted(devices)
        ]
        return list(dict.fromkeys(reasons))


def _same_config(saved: str, now: str) -> bool:
    """Whether a run's configuration is unchanged; an extended run may have another length."""
    if saved == now:
        return True
    before, after = (json.loads(text or "{}") for text in (saved, now))
    length = dict.fromkeys(("total_frames", "extended_at"))
    return bool(after.get("extended_at")) and before | length == after | length
