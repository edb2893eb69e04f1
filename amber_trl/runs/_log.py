"""Displays and logs a running training."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tqdm import tqdm

from amber_trl.runs._episodes import COLUMNS, WINDOW, Episode, EpisodeRecorder
from amber_trl.runs.run_directory import RunDirectory
from amber_trl.runs.scores import final_score, speed_score

_LAPS = ("collect", "update", "checkpoint")
_LEDGER_COLUMNS = (
    "importance_ratio",
    "staleness",
    "kl",
    "ess",
    "num_capped",
    "num_non_finite",
    "active",
    "reason",
)


class TrainingLog:
    """Updates a run directory's tables and logger, and a progress bar, once per iteration.

    Numbers leave the device here, not in the update path.
    """

    def __init__(
        self, directory: RunDirectory, total_frames: float, num_batches: int, *, progress: bool
    ) -> None:
        self.episodes: list[Episode] = []
        self._directory, self._num_batches = directory, num_batches
        self.recorder = EpisodeRecorder()
        total = None if math.isinf(total_frames) else total_frames
        self.bar = tqdm(total=total, unit="frame", disable=not progress)
        self._laps = dict.fromkeys(_LAPS, 0.0)
        self._started = self._lapped = self._logged = time.perf_counter()
        self._written = 0  # frames at the last row

    def lap(self, name: str) -> None:
        """Adds the time since the last lap to ``name``."""
        now = time.perf_counter()
        self._laps[name] += now - self._lapped
        self._lapped = now

    def count(self, batch: TensorDictBase, frames: int) -> None:
        """Writes the episodes that end in a batch that follows ``frames`` frames."""
        finished = self.recorder.record(batch, frames)
        self.episodes += finished
        rows = (dict(zip(COLUMNS, episode, strict=True)) for episode in finished)
        self._directory.append("episodes", *rows)

    def write(
        self,
        frames: int,
        values: Mapping[str, Any],
        metrics: Sequence[TensorDictBase],
        ledger: TensorDictBase | None,
    ) -> None:
        """Writes the rows of an iteration that ends at ``frames`` frames."""
        mean_return, mean_length = self.means()
        shown = {} if mean_return is None else {"return": f"{mean_return:.4g}"}
        row = {"frames": frames, **values, **_means(metrics)}
        if ledger is not None:
            active = ledger["staleness"][ledger["active"]].tolist()
            row["active_batches"] = len(active)
            shown |= {"active": str(len(active)), "staleness": f"{active[-1]:.3g}"}
        row |= {"mean_return": mean_return, "mean_length": mean_length}
        cells = {} if ledger is None else _ledger_cells(ledger, self._num_batches)
        self._directory.append("iterations", row | cells)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(frames - self._written)
        now = time.perf_counter()
        timing: dict[str, float] = {"frames": frames, "seconds": now - self._started}
        timing |= {f"{name}_seconds": seconds for name, seconds in self._laps.items()}
        timing["frames_per_second"] = (frames - self._written) / (now - self._logged)
        del row["frames"]  # the logger's x axis
        row["frames_per_second"] = timing["frames_per_second"]
        by_age = {f"ledger/{name}": value for name, value in cells.items()}
        self._directory.log(frames, row | by_age)
        self._directory.append("timing", timing)
        self._written, self._laps = frames, dict.fromkeys(_LAPS, 0.0)
        self._lapped = self._logged = time.perf_counter()

    def means(self) -> tuple[float | None, float | None]:
        """Mean return and length of the last 100 episodes; None before the first."""
        last = self.episodes[-WINDOW:]
        if not last:
            return None, None
        returns, lengths = (sum(e[column] for e in last) for column in (1, 2))
        return returns / len(last), lengths / len(last)

    def summary(self, frames: int, every: int) -> dict[str, Any]:
        """Scores and time after ``frames`` frames; the learning curve has a point every ``every``."""
        ends = [episode.frame for episode in self.episodes]
        returns = [episode.episode_return for episode in self.episodes]
        seconds = time.perf_counter() - self._started
        return {
            "final_score": final_score(ends, returns),
            "speed_score": speed_score(ends, returns, every, frames),
            "frames": frames,
            "episodes": len(ends),
            "seconds": seconds,
            "frames_per_second": frames / seconds,
        }

    def state_dict(self) -> dict[str, Any]:
        """Unfinished episodes, the frames at the last row, and the time so far."""
        return {
            "unfinished": self.recorder.state_dict(),
            "written": self._written,
            "seconds": time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: Mapping[str, Any], frames: int) -> None:
        """Continues after ``frames`` frames, with the rows up to there."""
        self._written = state["written"]
        self._directory.rewind(frames, last_row=self._written)
        self.episodes = [
            Episode(int(frame), float(total), int(length), terminated == "1", truncated == "1")
            for frame, total, length, terminated, truncated in self._directory.rows("episodes")
        ]
        self.recorder.load_state_dict(state["unfinished"])
        self.bar.n = self.bar.initial = self._written
        self.bar.refresh()
        self._lapped = self._logged = time.perf_counter()
        self._started = self._lapped - state["seconds"]


def _means(metrics: Sequence[TensorDictBase]) -> dict[str, Any]:
    """The number of updates, and the means over all of them."""
    if not metrics:
        return {"updates": 0}
    updates: TensorDictBase = torch.cat(
        [each.reshape(each.batch_size.numel()) for each in metrics]  # -1 fails if there are none
    )
    means = updates.cpu().to(torch.float64).mean(0)
    return {"updates": len(updates), **{name: means[name].item() for name in sorted(means.keys())}}


def _ledger_cells(ledger: TensorDictBase, num_batches: int) -> dict[str, Any]:
    """The ledger's columns, once per batch age; empty for ages that are not stored yet."""
    if len(ledger) > num_batches:
        raise ValueError(
            f"ledger of {len(ledger)} batches given with num_batches={num_batches}: "
            "pass the num_batches of the buffer"
        )
    cells: dict[str, Any] = {}
    for name in _LEDGER_COLUMNS:
        column = ledger[name].tolist() + [None] * (num_batches - len(ledger))
        cells.update((f"{name}_{age}", value) for age, value in enumerate(column))
    return cells
