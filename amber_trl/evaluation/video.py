"""A video of one episode."""

import contextlib
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from torchrl.envs import EnvBase
from tqdm import tqdm

from amber_trl.evaluation.playing import MAX_FRAMES, play
from amber_trl.runs import Policy


def record_episode(
    policy: Policy,
    file: str | os.PathLike[str],
    *,
    deterministic: bool = True,
    seed: int = 0,
    max_frames: int = MAX_FRAMES,
    progress: bool = False,
) -> int:
    """Plays one episode and writes it as an MP4 video, which appears once complete.

    Needs imageio-ffmpeg. On a machine without a display, set the environment variable
    ``MUJOCO_GL=egl`` or ``MUJOCO_GL=osmesa`` for MuJoCo; without a GPU, each picture then takes a tenth
    of a second or more.

    Args:
        policy: a policy from :func:`~amber_trl.runs.load_policy`.
        file: the video file, ending in ``.mp4``. An older file is replaced.
        deterministic: as in :func:`play`.
        seed: as in :func:`play`.
        max_frames: as in :func:`play`.
        progress: as in :func:`play`.

    Returns:
        The number of pictures, one more than the number of frames.

    Raises:
        ImportError: if ``imageio-ffmpeg`` is not installed.
        RuntimeError: if the environment cannot be rendered here, or the episode has not ended after
            ``max_frames``.
        ValueError: if the file name has another ending, or :func:`play` rejects the policy.

    Examples:
        >>> import tempfile
        >>> from amber_trl.runs import Policy
        >>> from amber_trl.evaluation import record_episode
        >>> from amber_trl.modules import gaussian_actor
        >>> policy = Policy("Pendulum-v1", {}, gaussian_actor(observation_size=3, action_size=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record_episode(policy, f"{folder}/swing.mp4")
        201
    """
    file = Path(file)
    if file.suffix != ".mp4":
        raise ValueError(f"file={str(file)!r} must end in .mp4")
    try:
        from imageio_ffmpeg import write_frames
    except ImportError as error:
        raise ImportError(
            "a video needs imageio-ffmpeg, which is not installed: pip install imageio-ffmpeg, "
            "or do not ask for a video"
        ) from error
    part = file.with_name(f".{file.stem}.part.mp4")
    video = None

    def film(env: EnvBase) -> None:
        nonlocal video
        try:
            with warnings.catch_warnings(action="ignore"):  # GLFW's, before it fails
                picture = np.ascontiguousarray(env.render()[0], dtype=np.uint8)
        except Exception as error:
            raise RuntimeError(
                f"env_id={policy.env_id!r} cannot be drawn here ({error}): without a display set "
                "MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts, and install that library"
            ) from error
        if video is None:  # the size is known only from the first picture
            file.parent.mkdir(parents=True, exist_ok=True)
            size, rate = picture.shape[1::-1], env.metadata.get("render_fps", 30)
            video = opened.enter_context(
                contextlib.closing(write_frames(str(part), size, fps=rate, macro_block_size=1))
            )
            video.send(None)
        video.send(picture)
        bar.update()

    try:
        with (
            contextlib.ExitStack() as opened,
            tqdm(unit="picture", disable=not progress) as bar,
        ):
            played = play(
                replace(policy, env_kwargs={**policy.env_kwargs, "render_mode": "rgb_array"}),
                1,
                deterministic=deterministic,
                seed=seed,
                max_frames=max_frames,
                show=film,
            )
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return played.lengths[0] + 1
