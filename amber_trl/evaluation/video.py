"""A video of one episode."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchrl.envs import EnvBase
from tqdm import tqdm

from amber_trl._checks import check_integer
from amber_trl.evaluation._stepping import MAX_FRAMES, acting_in_env, endless, step
from amber_trl.runs.policies import Policy


def record_episode(
    policy: Policy,
    file: str | os.PathLike[str],
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_frames: int = MAX_FRAMES,
    progress: bool = False,
) -> int:
    """Plays one episode and writes it as an MP4 video, which appears when it is complete.

    It needs the extra ``video``. On a machine without a display, set the environment variable
    ``MUJOCO_GL=egl`` or ``MUJOCO_GL=osmesa`` for MuJoCo; without a GPU, a picture then takes a tenth
    of a second or more.

    Args:
        policy: as :func:`~amber_trl.runs.load_policy` returns it.
        file: where to, ending in ``.mp4``. An older file is replaced.
        deterministic: as in :func:`play`.
        seed: as in :func:`play`.
        max_frames: as in :func:`play`.
        progress: as in :func:`play`.

    Returns:
        The number of pictures, one more than the episode has frames.

    Raises:
        ImportError: if ``imageio-ffmpeg`` is not installed.
        RuntimeError: if the environment cannot be drawn here, or the episode has not ended after
            ``max_frames``.
        ValueError: if the file's name ends differently, or :func:`play` would refuse the policy.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import record_episode
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy(gaussian_actor(observation_size=3, action_size=1), "Pendulum-v1")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record_episode(policy, f"{folder}/swing.mp4")
        201
    """
    check_integer("max_frames", max_frames)
    file = Path(file)
    if file.suffix != ".mp4":
        raise ValueError(f"file={str(file)!r} must end in .mp4")
    write_frames = _writer()
    part = file.with_name(f".{file.stem}.part.mp4")
    options: dict[str, Any] = {"deterministic": deterministic, "seed": seed}
    count = 0
    try:
        with (
            acting_in_env(policy, 1, render_mode="rgb_array", **options) as env,
            contextlib.ExitStack() as stack,
        ):
            pictures = _pictures(policy, env)
            for picture in tqdm(pictures, unit="picture", disable=not progress):
                if count > max_frames:
                    raise endless(policy, max_frames)
                if count == 0:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    size, rate = picture.shape[1::-1], env.metadata.get("render_fps", 30)
                    writer = write_frames(str(part), size, fps=rate, macro_block_size=1)
                    stack.enter_context(contextlib.closing(writer))
                    writer.send(None)
                writer.send(picture)
                count += 1
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return count


def _pictures(policy: Policy, env: EnvBase) -> Iterator[NDArray[np.uint8]]:
    frames, ended = env.reset(), False
    yield _draw(policy, env)
    while not ended:
        taken, frames = step(policy, env, frames)
        ended = bool(taken["next", "done"])
        yield _draw(policy, env)


def _draw(policy: Policy, env: EnvBase) -> NDArray[np.uint8]:
    try:
        return np.ascontiguousarray(env.render()[0], dtype=np.uint8)
    except Exception as error:
        raise RuntimeError(
            f"env_id={policy.env_id!r} cannot be drawn here ({error}): without a display set "
            "MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts, and install that library"
        ) from error


def _writer() -> Any:
    try:
        from imageio_ffmpeg import write_frames
    except ImportError as error:
        raise ImportError(
            "a video needs imageio-ffmpeg, which is not installed: "
            'pip install "amber_trl[video]", or leave the video out'
        ) from error
    return write_frames
