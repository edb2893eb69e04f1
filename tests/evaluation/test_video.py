"""Videos of one episode."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv

from amber_trl.evaluation import record_episode
from amber_trl.modules import categorical_actor, gaussian_actor
from amber_trl.runs import Policy


@pytest.fixture
def policy() -> Policy:
    return Policy("CartPole-v1", {}, categorical_actor(observation_size=4, num_actions=2))


def test_an_episode_becomes_a_video(policy: Policy, tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    file = tmp_path / "new" / "episode.mp4"
    pictures = record_episode(policy, file, seed=1)
    assert [path.name for path in file.parent.iterdir()] == ["episode.mp4"]
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(file))
    assert frames == pictures
    assert seconds == pytest.approx(pictures / 50, abs=0.03)  # CartPole's own rate


def test_the_last_picture_is_the_end_of_the_episode(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    angles: list[float] = []

    def render(env: CartPoleEnv) -> np.ndarray:
        angles.append(abs(env.state[2]) if env.state is not None else 0.0)
        return np.zeros((16, 16, 3), np.uint8)

    monkeypatch.setattr(CartPoleEnv, "render", render)
    record_episode(policy, tmp_path / "episode.mp4")
    assert [angle > math.radians(12) for angle in angles] == [False] * (len(angles) - 1) + [True]


def test_another_format_is_refused(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"episode\.gif' must end in \.mp4"):
        record_episode(policy, tmp_path / "episode.gif")


def test_without_the_writer_the_error_names_it(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match="pip install imageio-ffmpeg"):
        record_episode(policy, tmp_path / "episode.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_cannot_be_rendered_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio_ffmpeg")

    def fail(self: PendulumEnv) -> None:
        raise OSError("no display")

    monkeypatch.setattr(PendulumEnv, "render", fail)
    policy = Policy("Pendulum-v1", {}, gaussian_actor(observation_size=3, action_size=1))
    with pytest.raises(RuntimeError, match=r"cannot be drawn here \(no display\).*MUJOCO_GL=egl"):
        record_episode(policy, tmp_path / "episode.mp4")
    assert list(tmp_path.iterdir()) == []
