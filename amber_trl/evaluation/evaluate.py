"""Evaluating a run's policy: what ``amber-trl evaluate`` does."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from amber_trl.evaluation.playing import play
from amber_trl.evaluation.policies import Which, find_policy, load_policy
from amber_trl.evaluation.video import record_episode
from amber_trl.training.provenance import package_versions


def evaluate_run(
    run_dir: str | os.PathLike[str],
    *,
    checkpoint: Which = "last",
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    video: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Plays a run's policy in fresh environments, and writes the result as JSON.

    Args:
        run_dir: run directory.
        checkpoint: which policy, as in :func:`find_policy`.
        episodes: as in :func:`play`.
        deterministic: as in :func:`play`.
        seed: as in :func:`play`.
        out: where the JSON goes; None is ``evaluation-CHECKPOINT-deterministic.json`` (or
            ``-stochastic``) in the run directory. An older file is replaced.
        video: first record one episode there, as :func:`record_episode` does.
        progress: as in :func:`play`.

    Returns:
        What the JSON holds, that is ``policy`` (its path in the run directory), ``env_id``,
        ``deterministic``, ``seed``, ``episodes``, ``mean``, ``std``, ``interval`` (95 %, of the
        mean; null for one episode), ``returns``, ``lengths`` and ``versions``.

    Raises:
        FileNotFoundError: the run has no such policy.
        CheckpointError: the checkpoint is damaged.
        ValueError: an argument is out of range, or the file holds no policy.
        ImportError: a video is asked for and cannot be written.
        RuntimeError: a video is asked for and the environment cannot be drawn.

    Examples:
        >>> import tempfile
        >>> from amber_trl.evaluation import evaluate_run
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.training import Checkpoints, PolicyRecord
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> policy = PolicyRecord("Pendulum-v1", arguments, gaussian_actor(**arguments))
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     checkpoints = Checkpoints(f"{run_dir}/checkpoints", {"policy": policy})
        ...     _ = checkpoints.save(2048, score=None)
        ...     found = evaluate_run(run_dir, episodes=2)
        >>> found["policy"], found["lengths"], found["mean"] < 0
        ('checkpoints/000000002048', [200, 200], True)
    """
    path = find_policy(run_dir, checkpoint)
    policy = load_policy(path)
    options: dict[str, Any] = {"deterministic": deterministic, "seed": seed, "progress": progress}
    if video is not None:
        record_episode(policy, video, **options)
    played = play(policy, episodes, **options)
    found = {
        "policy": path.relative_to(run_dir).as_posix(),
        "env_id": policy.env_id,
        "deterministic": deterministic,
        "seed": seed,
        "episodes": episodes,
        "mean": played.mean,
        "std": _number(played.std),
        "interval": None if episodes < 2 else list(played.interval),
        "returns": list(played.returns),
        "lengths": list(played.lengths),
        "versions": package_versions(),
    }
    mode = "deterministic" if deterministic else "stochastic"
    file = Path(run_dir, f"evaluation-{checkpoint}-{mode}.json") if out is None else Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(file)
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
