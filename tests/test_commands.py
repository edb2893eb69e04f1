"""``amber-trl evaluate`` and ``amber-trl verify`` as they are typed."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from amber_trl.__main__ import main
from amber_trl.checkpoints import Checkpoints, list_checkpoints
from amber_trl.modules import categorical_actor, gaussian_actor
from amber_trl.runs import Policy


def policy(env_id: str) -> Policy:
    arguments: dict[str, Any] = {"observation_size": 3, "action_size": 1}
    return Policy(env_id, arguments, gaussian_actor(**arguments))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpoints = Checkpoints(tmp_path / "checkpoints", {"policy": policy("Pendulum-v1")})
    for frames in (100, 200):
        checkpoints.save(frames, score=-float(frames))
    return tmp_path


def test_evaluate_prints_and_writes_the_policys_return(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(run), "--checkpoint", "best", "--episodes", "2", "--stochastic"]
    assert main([*words, "--seed", "7"]) == 0
    said = capsys.readouterr().out
    found = json.loads((run / "evaluation-best-stochastic.json").read_text())
    assert (found["seed"], found["episodes"], found["deterministic"]) == (7, 2, False)
    assert said.startswith(
        "Pendulum-v1, checkpoints/000000000100.ckpt, episodes=2, drawn actions: "
    )
    for number in (found["mean"], *found["interval"], found["std"]):
        assert f"{number:.2f}" in said


def test_evaluate_of_one_episode_has_no_interval(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run / "one.json"
    assert main(["evaluate", str(run), "--episodes", "1", "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(
        f"episodes=1, mean actions: mean return {json.loads(out.read_text())['mean']:.2f}\n"
    )


def test_evaluate_prints_the_path_of_the_video(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    arguments = {"observation_size": 4, "num_actions": 2}
    Policy("CartPole-v1", arguments, categorical_actor(4, 2)).save(run / "policy.pt")
    video = run / "episode.mp4"
    words = ["evaluate", str(run), "--checkpoint", "final", "--episodes", "1"]
    assert main([*words, "--video", str(video)]) == 0
    assert capsys.readouterr().out.endswith(f"\nvideo of one more episode: {video}\n")
    assert video.stat().st_size > 1000


def test_evaluate_reports_mismatches_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(run), "--checkpoint", "final"]
    for content, message in (
        ({"actor": {}}, "policy.pt"),
        (policy("evil:X-v0").state_dict(), "(--env-id evil:X-v0)"),
        (policy("Pendulum-v1").state_dict(), "max_frames=199"),
    ):
        torch.save(content, run / "policy.pt")
        assert main([*words, "--max-frames", "199"]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not list(run.glob("evaluation*"))


def test_verify_lists_whole_and_damaged_checkpoints(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = list_checkpoints(run / "checkpoints")
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out == f"{older}: whole\n{newer}: whole\n"
    newer.write_bytes(newer.read_bytes()[:-1])
    assert main(["verify", str(run)]) == 1
    error = capsys.readouterr().err
    assert f"{older}: whole" in error
    assert f"{newer} is damaged" in error
    assert main(["verify", str(older)]) == 0
    assert main(["verify", str(newer)]) == 1


def test_verify_needs_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "holds no checkpoint" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_any_path_is_shown_on_an_ascii_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = tmp_path / "Übung"
    Checkpoints(run_dir / "checkpoints", {"part": torch.nn.Linear(1, 1)}).save(1, score=None)
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["verify", str(run_dir)]) == 0
    shown.seek(0)
    assert "\\xdcbung" in shown.read()
