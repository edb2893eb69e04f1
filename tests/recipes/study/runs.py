"""Small run directories, as the main recipe leaves them, with known scores."""

import csv
import json
from pathlib import Path
from typing import Any

from study.references import PAPER_SETTINGS

FRAMES, BATCH, LENGTH = 20_480, 2048, 512

SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"num_batches": 1, "clip_epsilon": 0.3, "drop_factor": None},
    "mber": {"num_batches": 2, "clip_epsilon": 0.4, "drop_factor": None},
    "amber": {"num_batches": 8, "clip_epsilon": 0.4, "drop_factor": 0.25},
}
_SETTINGS = {
    **PAPER_SETTINGS,
    "total_frames": FRAMES,
    "frames_per_batch": BATCH,
    "scale_minibatch": True,
    "minibatches": "uniform",
    "learning_rate": 3e-4,
    "progress": False,
}


def write_run(
    folder: Path,
    setup: str = "ppo",
    seed: int = 0,
    *,
    level: float = 1.0,
    task: str = "Pendulum-v1",
    name: str | None = None,
    **config: Any,
) -> Path:
    """A finished run in which every episode returns ``level``, so that both scores equal it."""
    given: dict[str, Any] = {"env_id": task, "setup": setup, "protocol": "paper", "seed": seed}
    given |= _SETTINGS | SETUPS[setup] | config
    run = folder / (name or f"{given['protocol']}/{task}/{setup}-seed{seed}")
    run.mkdir(parents=True)
    episodes = [[frame, level, LENGTH, 1, 0] for frame in range(LENGTH, FRAMES + 1, LENGTH)]
    _table(run / "episodes.csv", ["frame", "return", "length", "terminated", "truncated"], episodes)
    _table(run / "iterations.csv", *_iterations(given["num_batches"], given["drop_factor"]))
    summary = {
        "final_score": level,
        "speed_score": level,
        "frames": FRAMES,
        "episodes": len(episodes),
        "seconds": 2.5,
        "interrupted": False,
    }
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    for file, contents in (("config", given), ("versions", versions), ("summary", summary)):
        (run / f"{file}.json").write_text(json.dumps(contents))
    return run


def write_study(folder: Path, levels: dict[tuple[str, str], list[float]]) -> Path:
    """Runs of the paper's protocol by task and setup, with one level per seed."""
    for (task, setup), values in levels.items():
        for seed, level in enumerate(values):
            write_run(folder, setup, seed, level=level, task=task)
    return folder


def edit(file: Path, **values: Any) -> None:
    """Changes fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _iterations(num_batches: int, drop_factor: float | None) -> tuple[list[str], list[list[Any]]]:
    """A batch of age l has the staleness l / 1000; at most three batches are in use."""
    header = ["frames", "drop_factor", "active_batches", "mean_abs_deviation"]
    header += [f"staleness_{age}" for age in range(num_batches)]
    rows: list[list[Any]] = []
    for number in range(1, FRAMES // BATCH + 1):
        stored = min(number, num_batches)
        row = [number * BATCH, drop_factor or "", min(stored, 3), 0.05]
        rows.append([*row, *(age / 1000 for age in range(stored)), *[""] * (num_batches - stored)])
    return header, rows


def _table(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
