"""A run that was stopped and resumed ends as if it had never stopped."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ppo_amber_mujoco as ppo
import pytest
import torch
from command_line import saved_config as _saved_config
from ppo_amber_config import Config, EffectiveConfig

from amber_trl.checkpoints import list_checkpoints
from amber_trl.runs import TrainingRun
from tests.data.frames import assert_same
from tests.recipes.conftest import RECIPES, run_main, run_script
from tests.runs.left import last_state, read_rows, read_tables, stopping

_SCRIPT = str(RECIPES / "ppo_amber_mujoco.py")


def saved_config(run_dir: Path) -> Any:
    return _saved_config(EffectiveConfig, run_dir)


def _config(run_dir: Path, **options: Any) -> Any:
    small = {"env_id": "Pendulum-v1", "smoke": True, "progress": False, "run_dir": run_dir}
    return Config(**{**small, **options})


def _train_until(config: Any, frames: int) -> dict[str, Any]:
    """Asks the run to stop, like Ctrl-C, in the iteration that reaches ``frames``."""
    with stopping(frames, signal.SIGINT):
        summary: dict[str, Any] = ppo.train(config)
    assert summary["frames"] == frames
    assert summary["interrupted"]
    return summary


def _result(run_dir: Path) -> tuple[list[bytes], Any]:
    states = {name: last_state(run_dir, name) for name in ("loss", "optimizer", "collection")}
    del states["collection"]["simulators"]  # spaces have generators that nobody seeds or uses
    return read_tables(run_dir), states


@pytest.mark.parametrize(
    "options",
    [
        {"setup": "amber"},
        {"setup": "ppo", "num_envs": 1},
        {"setup": "mber", "minibatches": "episodic", "minibatch_size": 16},
        {
            "env_id": "BipedalWalker-v3",
            "setup": "amber",
            "num_envs": 2,
            "advantages": "gae-v",
            "critic_on": "all",
        },
        {"env_id": "HalfCheetah-v5", "setup": "amber", "protocol": "paper"},
        {"env_id": "Hopper-v5", "setup": "disc", "num_batches": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_resumed_twice_is_byte_identical(tmp_path: Path, options: dict[str, Any]) -> None:
    ppo.train(_config(tmp_path / "whole", **options))
    run_dir = tmp_path / "stopped"
    _train_until(_config(run_dir, **options), 512)  # a partly filled buffer
    _train_until(saved_config(run_dir), 1536)
    ppo.train(saved_config(run_dir))
    assert_same(_result(tmp_path / "whole"), _result(run_dir))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["exactness"], summary["reasons"]) == ("exact", [])
    assert (summary["interrupted"], summary["frames"]) == (False, 2560)


def test_a_compiled_run_resumes_byte_identically(tmp_path: Path) -> None:
    options = {"compile": "on", "total_frames": 1024, "hidden_sizes": (8,)}
    ppo.train(_config(tmp_path / "whole", **options))
    _train_until(_config(tmp_path / "stopped", **options), 512)
    resumed = ("--resume", tmp_path / "stopped", "--no-progress")
    assert run_script("ppo_amber_mujoco", *resumed).returncode == 0
    assert_same(_result(tmp_path / "whole"), _result(tmp_path / "stopped"))


def _started(run_dir: Path, *options: str) -> subprocess.Popen[str]:
    """A run in another process that has finished three iterations."""
    command = [sys.executable, _SCRIPT, "--smoke", "--env-id", "Pendulum-v1", "--no-progress"]
    command += ["--run-dir", str(run_dir), *options]
    pipe, table, deadline = subprocess.PIPE, run_dir / "iterations.csv", time.monotonic() + 120
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    while not table.exists() or table.read_text().count("\n") < 4:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    process = _started(run_dir := tmp_path / "run", "--checkpoint-interval", "2")
    process.kill()
    process.communicate()
    assert not (run_dir / "summary.json").exists()
    ppo.train(saved_config(run_dir))
    ppo.train(_config(tmp_path / "whole"))
    assert_same(_result(tmp_path / "whole"), _result(run_dir))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_exits_with_its_code(tmp_path: Path, number: int) -> None:
    run_dir = tmp_path / "run"
    process = _started(run_dir, "--total-frames", "1000000", "--compile", "off")
    process.send_signal(number)
    told, shown = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"resume with --resume {run_dir}" in told
    assert "Traceback" not in shown
    (checkpoint,) = list_checkpoints(run_dir / "checkpoints")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert int(checkpoint.stem) == summary["frames"] < 1_000_000
    assert (summary["interrupted"], summary["stopped_by"]) == (True, signal.Signals(number).name)
    assert torch.load(run_dir / "policy.pt", weights_only=True)["env_id"] == "Pendulum-v1"


def test_a_damaged_checkpoint_is_skipped_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    _train_until(_config(run_dir, checkpoint_interval=1), 1024)
    last = list_checkpoints(run_dir / "checkpoints")[-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    ppo.train(saved_config(run_dir))
    assert str(last) in caplog.text
    ppo.train(_config(tmp_path / "whole"))
    assert_same(_result(tmp_path / "whole"), _result(run_dir))
    assert last.with_suffix(".damaged").read_bytes() == content


def test_options_are_the_run_s_own(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _train_until(_config(run_dir, seed=3, drop_factor=math.inf), 512)
    before = (run_dir / "iterations.csv").read_bytes()
    for words, said in (
        (("--seed", "0"), "seed=0 contradicts seed=3"),  # 0 is also the default
        (("--total-frames", "5000"), "total_frames=5000 contradicts total_frames=2560"),
        (("--total-frames", "5000"), "--extend instead of --resume"),
    ):
        assert said in run_main(ppo, "--resume", run_dir, *words)
    assert (run_dir / "iterations.csv").read_bytes() == before
    shutil.move(run_dir, moved := tmp_path / "moved")
    assert run_main(ppo, "--resume", moved, "--seed", "3", "--no-progress") == 0


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_run_that_ends_early_says_how_to_continue(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def fail(run: TrainingRun, *args: Any, **kwargs: Any) -> None:
        if run.frames == 512:
            raise error
        record(run, *args, **kwargs)

    record = TrainingRun.record
    monkeypatch.setattr(TrainingRun, "record", fail)
    options = ("--smoke", "--env-id", "Pendulum-v1", "--checkpoint-interval", "1")
    left = run_main(ppo, *options, "--run-dir", tmp_path / "run")
    assert f"continue from frame 512 with --resume {tmp_path}" in f"{left}{capsys.readouterr().out}"
    assert isinstance(error, OSError) or left == 130


def test_a_configuration_of_another_version_is_refused(tmp_path: Path) -> None:
    ppo.train(_config(tmp_path, total_frames=256))
    whole = json.loads((tmp_path / "config.json").read_text())
    del whole["gamma"]
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="gamma"):
        ppo.train(Config(resume=tmp_path))


def test_another_collector_resumes_approximately_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    _train_until(_config(run_dir, collector="torchrl"), 512)
    summary = ppo.train(saved_config(run_dir))
    assert summary["exactness"] == "approximate"
    assert "Collector does not expose its running episodes" in summary["reasons"][0]
    assert "resumed approximately" in caplog.text
    # New episodes start when the run is resumed: eight of 200 steps from frame 512 on.
    frames = [int(row["frame"]) for row in read_rows(run_dir, "episodes")]
    assert frames == list(range(512 + 1593, 512 + 1601))
