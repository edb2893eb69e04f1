"""What is shown and written while a training runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from tqdm import tqdm

from amber_trl.runs.episodes import Episode, EpisodeRecorder
from amber_trl.runs.run_directory import RunDirectory
from amber_trl.runs.scores import final_score, speed_score


class TrainingLog:
    """Feeds a run directory and a progress bar, once per iteration.

    The bar shows frames per second, the mean return of the last 100 episodes, the batches in use
    and the staleness of the oldest of them. Numbers leave the device here and not in the update
    path. It is a context manager that closes both, and it holds the finished episodes, a few
    numbers each, for the scores of the summary.

    Args:
        run: directory to write to.
        total_frames: frames that will be collected, for the bar.
        frames_per_batch: ``N``, frames of an iteration.
        num_batches: ``L``, batches kept; the ledger's columns are written for each age.
        progress: whether to show the bar.

    Raises:
        ValueError: if a number is below 1.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from amber_trl.runs import RunDirectory, TrainingLog
        >>> done = torch.tensor([[False, True]])[..., None]
        >>> batch = TensorDict(
        ...     {"next": {"reward": torch.ones(1, 2, 1), "done": done, "terminated": done}}, [1, 2]
        ... )
        >>> metrics = TensorDict({"loss_critic": torch.tensor([2.0])}, [1])  # one update
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     run = RunDirectory(f"{parent}/run")
        ...     with TrainingLog(run, total_frames=2, frames_per_batch=2, progress=False) as log:
        ...         log.lap("collect")
        ...         log.iteration(batch, {"learning_rate": 0.1}, metrics)
        ...         summary = log.summary()
        >>> summary["final_score"], summary["frames"]
        (2.0, 2)
    """

    def __init__(
        self,
        run: RunDirectory,
        total_frames: int,
        frames_per_batch: int,
        num_batches: int = 1,
        *,
        progress: bool = True,
    ) -> None:
        for name in ("total_frames", "frames_per_batch", "num_batches"):
            if (value := locals()[name]) < 1:
                raise ValueError(f"{name}={value} given to TrainingLog: it must be at least 1")
        self.recorder = EpisodeRecorder()
        self.episodes: list[Episode] = []
        self._run, self._num_batches = run, num_batches
        self._frames_per_batch = frames_per_batch
        self._bar = tqdm(total=total_frames, unit="frame", disable=not progress)
        self._started = self._lapped = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Notes the time since the last lap, for the column ``name_seconds`` of ``timing.csv``.

        Args:
            name: what took the time. Every iteration must note the same laps.
        """
        now = time.perf_counter()
        self._laps[f"{name}_seconds"], self._lapped = now - self._lapped, now

    def iteration(
        self,
        batch: TensorDictBase,
        values: Mapping[str, Any],
        metrics: TensorDictBase,
        ledger: TensorDictBase | None = None,
    ) -> None:
        """Writes one iteration's rows, and moves the bar.

        Args:
            batch: as collected, ``[E, T]`` or ``[T]``, with the environment's own flags.
            values: further columns of ``iterations.csv``, such as what the schedule set.
            metrics: ``[updates]``, what the updates of the iteration returned; their means are
                written.
            ledger: what ``refresh`` returned, newest batch first.
        """
        finished = self.recorder.record(batch)
        self.episodes += finished
        self._run.append_episodes(finished)
        row = {"frames": self.recorder.frames, **values, "updates": len(metrics), **_mean(metrics)}
        shown = {"return": f"{self.recorder.mean_return:.4g}"}
        if ledger is not None:
            active = ledger["staleness"][ledger["active"]].tolist()
            row["active_batches"] = len(active)
            shown |= {"active": str(len(active)), "staleness": f"{active[-1]:.3g}"}
        self._run.append_iteration(row, ledger=ledger, num_batches=self._num_batches)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(batch.numel())
        seconds = time.perf_counter() - self._started
        self._run.append_timing({"frames": row["frames"], "seconds": seconds, **self._laps})
        self._lapped = time.perf_counter()

    def summary(self) -> dict[str, Any]:
        """Scores, frames and time so far.

        Returns:
            ``final_score`` and ``speed_score`` (NaN before the first finished episode),
            ``frames``, ``episodes``, ``seconds`` and ``frames_per_second``.
        """
        ends = [episode.frame for episode in self.episodes]
        returns = [episode.episode_return for episode in self.episodes]
        frames, seconds = self.recorder.frames, time.perf_counter() - self._started
        return {
            "final_score": final_score(ends, returns),
            "speed_score": speed_score(ends, returns, self._frames_per_batch, frames),
            "frames": frames,
            "episodes": len(ends),
            "seconds": seconds,
            "frames_per_second": frames / seconds,
        }

    def state_dict(self) -> dict[str, Any]:
        """Unfinished episodes, time so far, and where each table ends, which is then on disk."""
        return {
            "recorder": self.recorder.state_dict(),
            "episodes": len(self.episodes),
            "positions": self._run.positions(),
            "seconds": time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved state, in the run directory that it was saved in.

        Args:
            state: what :meth:`state_dict` returned. Rows written after it are removed.

        Raises:
            ValueError: if the run directory's tables are not those of the state.
        """
        frames = int(state["recorder"]["frames"])
        self._run.rewind(state["positions"], frames)
        episodes = self._run.read_episodes()
        if len(episodes) != state["episodes"]:
            raise ValueError(
                f"{self._run.path}/episodes.csv holds {len(episodes)} episodes where the checkpoint "
                f"counts {state['episodes']}: restore the file, or start the run again"
            )
        self.recorder.load_state_dict(state["recorder"])
        self.episodes = episodes
        self._bar.n = self._bar.initial = frames
        self._bar.refresh()
        self._lapped = time.perf_counter()
        self._started = self._lapped - state["seconds"]

    def close(self) -> None:
        """Closes the bar and the run directory's files."""
        self._bar.close()
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _mean(metrics: TensorDictBase) -> dict[str, float]:
    means = metrics.cpu().to(torch.float64).mean(0)
    return {name: means[name].item() for name in sorted(means.keys())}
