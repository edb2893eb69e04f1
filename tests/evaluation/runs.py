"""Small run directories, as the main recipe leaves them, with scores that are known beforehand."""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path
from typing import Any

FRAMES, BATCH, LENGTH = 1000, 100, 20

VERSIONS = {
    **{"python": "3.11.7", "amber_trl": "0.1.0", "torch": "2.13.0", "torchrl": "0.14.1"},
    **{"tensordict": "0.14.3", "gymnasium": "1.4.0", "numpy": "2.4.6"},
}
SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"num_batches": 1, "clip_epsilon": 0.3, "drop_factor": None},
    "mber": {"num_batches": 2, "clip_epsilon": 0.4, "drop_factor": None},
    "amber": {"num_batches": 8, "clip_epsilon": 0.4, "drop_factor": 0.25},
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "paper": {"num_envs": 1, "time_limits": "terminal"},
    "default": {"num_envs": 8, "time_limits": "bootstrap"},
}


def write_run(
    folder: Path,
    setup: str = "ppo",
    seed: int = 0,
    *,
    level: float = 1.0,
    task: str = "Pendulum-v1",
    protocol: str = "paper",
    name: str | None = None,
    **config: Any,
) -> Path:
    """A finished run whose every episode returns ``level``, so that both scores are that."""
    given = {
        "env_id": task,
        "setup": setup,
        "protocol": protocol,
        "seed": seed,
        "total_frames": FRAMES,
        "frames_per_batch": BATCH,
        "staleness_metric": "mean_abs_deviation",
        "epochs": 10,
        "minibatch_size": 64,
        "scale_minibatch": True,
        "minibatches": "uniform",
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "normalize_advantage": "batch",
        "critic_coeff": 1.0,
        "entropy_coeff": 0.0,
        "max_grad_norm": None,
        "hidden_sizes": [64, 64],
        "progress": False,
        **SETUPS[setup],
        **PROTOCOLS[protocol],
        **config,
    }
    run = folder / (name or f"{protocol}/{task}/{setup}-seed{seed}")
    run.mkdir(parents=True)
    lanes = given["num_envs"]
    ends = range(LENGTH, FRAMES // lanes + 1, LENGTH)
    frames = [(end - 1) * lanes + lane + 1 for end in ends for lane in range(lanes)]
    episodes = [[frame, level, LENGTH, 1, 0] for frame in frames]
    _table(run / "episodes.csv", ["frame", "return", "length", "terminated", "truncated"], episodes)
    _table(run / "iterations.csv", *_iterations(given, loss=zlib.crc32(str(run).encode())))
    summary = {
        "final_score": level,
        "speed_score": level,
        "frames": FRAMES,
        "episodes": len(episodes),
        "seconds": float(zlib.crc32(str(run).encode())),
        "interrupted": False,
        "versions": VERSIONS,
    }
    for file, contents in (("config", given), ("versions", VERSIONS), ("summary", summary)):
        (run / f"{file}.json").write_text(json.dumps(contents))
    return run


def write_study(folder: Path, levels: dict[tuple[str, str], list[float]]) -> Path:
    """Runs of the paper's protocol by task and setup, a level per seed."""
    for (task, setup), values in levels.items():
        for seed, level in enumerate(values):
            write_run(folder, setup, seed, level=level, task=task)
    return folder


def edit(file: Path, **values: Any) -> None:
    """Changes fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _iterations(config: dict[str, Any], loss: float) -> tuple[list[str], list[list[Any]]]:
    """Batch of age l is at R' = 1 + l / 1000, and from 3 on at 1 + l / 10, where it is stale."""
    ages = config["num_batches"]
    scheduled = {
        name: config[name]
        for name in ("learning_rate", "clip_epsilon", "drop_factor")
        if config[name] is not None
    }
    ledger = ("importance_ratio", "staleness", "active")
    header = ["frames", *scheduled, "minibatch_size", "updates", "loss_critic"]
    header += ["active_batches", "mean_abs_deviation"]
    header += [f"{column}_{age}" for column in ledger for age in range(ages)]
    rows = []
    for number in range(1, FRAMES // BATCH + 1):
        stored = range(min(number, ages))
        empty = [""] * (ages - len(stored))
        left = 1 - (number - 1) * BATCH / FRAMES
        row: list[Any] = [number * BATCH, *(float(value) * left for value in scheduled.values())]
        active = len(stored) if config["drop_factor"] == "inf" else min(len(stored), 3)
        minibatch, updates = (
            config["minibatch_size"],
            config["epochs"] * (BATCH // config["minibatch_size"]),
        )
        if config["scale_minibatch"]:
            row += [minibatch * active, updates]
        else:
            row += [minibatch, updates * active]
        row += [loss, active, 0.05]
        staleness = [age / (1000 if age < 3 else 10) for age in stored]
        for values in (
            [1 + value for value in staleness],
            staleness,
            [int(age < active) for age in stored],
        ):
            row += [*values, *empty]
        rows.append(row)
    return header, rows


def _table(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
