"""Evaluating a run's policy: what ``amber-trl evaluate`` does."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amber_trl._provenance import package_versions
from amber_trl.checkpoints.checkpoint_file import write_whole
from amber_trl.evaluation.playing import MAX_FRAMES, play
from amber_trl.evaluation.video import record_episode
from amber_trl.runs.policies import Which, find_policy, load_policy


def evaluate_run(
    run_dir: str | os.PathLike[str],
    *,
    checkpoint: Which = "last",
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    max_frames: int = MAX_FRAMES,
    env_id: str | None = None,
    wrappers: Sequence[str] | None = None,
    actor: str | None = None,
    out: str | os.PathLike[str] | None = None,
    video: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Plays a run's policy in fresh environments, and writes the result as JSON.

    Args:
        run_dir: the run directory.
        checkpoint: which policy, as in :func:`~amber_trl.runs.find_policy`.
        episodes: as in :func:`play`.
        deterministic: as in :func:`play`.
        seed: as in :func:`play`.
        max_frames: as in :func:`play`, also for the video's episode.
        env_id: as in :func:`~amber_trl.runs.load_policy`.
        wrappers: as in :func:`~amber_trl.runs.load_policy`.
        actor: as in :func:`~amber_trl.runs.load_policy`.
        out: the JSON file; None is ``evaluation-CHECKPOINT-deterministic.json`` (or ``-stochastic``)
            in the run directory. An older file is replaced, and missing folders are created.
        video: file for a video of one episode, recorded first, as by :func:`record_episode`.
        progress: as in :func:`play`.

    Returns:
        The contents of the JSON file, which has ``policy`` (its path in the run directory), ``env_id``,
        ``env_kwargs``, ``wrappers``, ``deterministic``, ``seed``, ``episodes``, ``mean``, ``std``,
        ``interval`` (95 %, of the mean; null for one episode), ``returns``, ``lengths``, ``versions``.

    Raises:
        FileNotFoundError: if the run has no such policy.
        CheckpointError: if the checkpoint is damaged.
        OSError: if ``out`` cannot be written.
        ValueError, ImportError, RuntimeError: as ``load_policy``, ``play`` and ``record_episode`` do.

    Examples:
        >>> import tempfile
        >>> from amber_trl.evaluation import evaluate_run
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.checkpoints import Checkpoints
        >>> from amber_trl.runs import Policy
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> policy = Policy("Pendulum-v1", arguments, gaussian_actor(**arguments))
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     checkpoints = Checkpoints(f"{run_dir}/checkpoints", {"policy": policy})
        ...     _ = checkpoints.save(2048, score=None)
        ...     found = evaluate_run(run_dir, episodes=2)
        >>> found["policy"], found["lengths"], found["mean"] < 0
        ('checkpoints/000000002048.ckpt', [200, 200], True)
    """
    path = find_policy(run_dir, checkpoint)
    policy = load_policy(path, env_id=env_id, wrappers=wrappers, actor=actor)
    mode = "deterministic" if deterministic else "stochastic"
    file = Path(run_dir, f"evaluation-{checkpoint}-{mode}.json") if out is None else Path(out)
    how = {"deterministic": deterministic, "seed": seed}
    options: dict[str, Any] = how | {"max_frames": max_frames, "progress": progress}
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        raise IsADirectoryError(f"out={str(file)!r} is a directory: name a file")
    if video is not None:
        record_episode(policy, video, **options)
    played = play(policy, episodes, **options)
    found = {
        "policy": path.relative_to(run_dir).as_posix(),
        "env_id": policy.env_id,
        "env_kwargs": dict(policy.env_kwargs),
        "wrappers": list(policy.wrappers),
        **how,
        "episodes": episodes,
        "mean": played.mean,
        "std": None if episodes < 2 else played.std,
        "interval": None if episodes < 2 else list(played.interval),
        "returns": list(played.returns),
        "lengths": list(played.lengths),
        "versions": package_versions(),
    }
    write_whole(file, f"{json.dumps(found, indent=2, allow_nan=False)}\n".encode())
    return found
