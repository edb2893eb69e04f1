"""Watching a run: the terminal, and loggers in addition to the run's tables."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import ppo_amber_mujoco as ppo
import pytest
from ppo_amber_config import Config

from amber_trl.checkpoints import list_checkpoints
from tests.recipes.conftest import RECIPES, run_main, run_script
from tests.runs.left import read_rows
from tests.runs.test_run_directory import logged

_OPTIONS = ("--smoke", "--env-id", "InvertedPendulum-v5", "--checkpoint-interval", "2")


def test_tensorboard_has_what_the_tables_have_and_each_frame_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_dir = tmp_path / "run"
    options = ("--total-frames", "1024", "--eval-interval", "2", "--eval-episodes", "1")
    logger = ("--logger", "tensorboard", "--run-dir", run_dir)
    assert run_main(ppo, *_OPTIONS, *options, *logger) == 0
    list_checkpoints(run_dir / "checkpoints")[-1].unlink()  # so that two iterations are repeated
    ppo.train(Config(resume=run_dir, logger="tensorboard", progress=False))
    found = logged(run_dir)
    assert [step for step, _ in found["ledger/kl_0"]] == [256, 512, 768, 1024]
    assert [step for step, _ in found["eval_return"]] == [512, 1024]
    columns = ["mean_return", "mean_length", "loss_objective", "loss_critic", "active_batches"]
    for name in (*columns, "learning_rate", "eval_return"):
        logged_values = [value for _, value in found[name]]
        written = [float(row[name]) for row in read_rows(run_dir) if row[name]]
        assert logged_values == pytest.approx(written)
    assert [step for step, _ in found["frames_per_second"]] == [256, 512, 768, 1024]
    list_checkpoints(run_dir / "checkpoints")[-1].unlink()
    assert run_main(ppo, "--resume", run_dir, "--logger", "csv") == 0  # without its package too
    assert logged(run_dir) == found


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_resumed_run_is_one_run_of_its_service(logger: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(logger) is None:
        pytest.skip(f"{logger} is not installed")
    run_dir, offline = tmp_path / "run", {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": ""}
    first = (*_OPTIONS, "--total-frames", "1024", "--logger", logger, "--run-dir", run_dir)
    for options in (first, ("--resume", run_dir)):
        done = run_script("ppo_amber_mujoco", *options, env=offline)
        assert done.returncode == 0, done.stderr
        list_checkpoints(run_dir / "checkpoints")[-1].unlink()
    run_id = (run_dir / "logger_id.txt").read_text()
    if logger == "wandb":
        assert len(list((run_dir / "wandb").glob(f"offline-run-*-{run_id}"))) == 2
    else:
        query = "select run_uuid, step from metrics where key = 'loss_critic' order by step"
        rows = sqlite3.connect(run_dir / "mlflow.db").execute(query).fetchall()
        assert rows == [(run_id, step) for step in (256, 512, 768, 1024)]


def _on_a_terminal(code: str) -> str:
    """The output of a Python program on a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, cwd=RECIPES
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the program has closed it
            os.close(ours)
            process.wait()
            return shown.decode()


@pytest.mark.parametrize("program", ["ppo_amber_mujoco", "a2c_staleness_mujoco", "amber_trl"])
def test_the_first_word_comes_before_torch(program: str) -> None:
    code = f"""
import runpy, sys
sys.modules["torch"] = None
sys.modules["mujoco"] = None
sys.argv = [{program!r}, "verify", "nowhere"]
sys.path.insert(0, "")
runpy.run_module({program!r}, run_name="__main__")
"""
    first, *rest = _on_a_terminal(code).splitlines()
    assert first == "loading torch and TorchRL"
    assert "torch" in rest[-1]  # where it ended


def test_a_missing_opengl_library_ends_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    done = run_script(
        "ppo_amber_mujoco", "--smoke", "--run-dir", tmp_path / "run", env={"MUJOCO_GL": "none-such"}
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "MUJOCO_GL='none-such'" in done.stderr


def test_output_may_stop_being_read(tmp_path: Path) -> None:
    code = """
import os, sys
from amber_trl._terminal import say
reading, writing = os.pipe()
os.dup2(writing, 1)
os.close(reading)
os.close(writing)
say("first")
say("second")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
