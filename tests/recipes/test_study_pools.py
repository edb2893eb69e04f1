"""Making the study's runs in processes and on Ray: faults, retries, stopping."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ppo_amber_mujoco as ppo
import pytest
import reproduce_paper as recipe
import tyro
from ppo_amber_config import Config
from study import pools, runs

from tests.recipes.conftest import RECIPES
from tests.runs.left import read_tables

_ROOT = RECIPES.parent
_FAULTY = "tests.recipes.faulty"


@pytest.mark.parametrize("where", [["--workers", "2"], ["--ray-address", "local"]])
def test_a_killed_run_is_tried_again_and_an_error_stops_no_other(
    where: list[str], tmp_path: Path
) -> None:
    if "--ray-address" in where:
        pytest.importorskip("ray")
    study = tmp_path / "study"
    command = [sys.executable, str(RECIPES / "reproduce_paper.py"), "--study", str(study)]
    command += ["--tasks", f"{_FAULTY}:Broken-v0", f"{_FAULTY}:Deadly-v0"]
    command += ["--setups", "ppo", "--seeds", "0", "--smoke", "--compile", "off", *where]
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "DEADLY": str(tmp_path / "killed")}
    env["RAY_worker_niceness"] = "0"  # Ray's 15 would starve the test on a busy machine
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1, done.stderr
    broken, deadly = (
        study / "paper" / f"{_FAULTY}-{task}" / "ppo-seed0" for task in ("Broken-v0", "Deadly-v0")
    )
    shown = done.stdout
    assert f"2 runs in {study}: 2 new" in shown
    assert f"failed      {broken.relative_to(study)}: error: " in shown
    assert f"; see {broken / 'log.txt'}; " in shown
    assert f"again       {deadly.relative_to(study)}: killed by SIGKILL" in shown
    assert f"finished    {deadly.relative_to(study)}: " in shown
    assert "Traceback" not in shown + done.stderr
    assert "'next', 'reward'" in (broken / "log.txt").read_text().splitlines()[-1]
    assert (deadly / "log.txt").read_text().count(" python recipes/ppo_amber_mujoco.py ") == 2
    whole = tmp_path / "whole"
    options: Any = {"setup": "ppo", "protocol": "paper", "smoke": True, "compile": "off"}
    ppo.train(Config(env_id="Pendulum-v1", run_dir=whole, progress=False, **options))
    assert read_tables(deadly) == read_tables(whole)
    assert json.loads((deadly / "summary.json").read_text())["interrupted"] is False


def test_a_stop_ends_runs_after_their_iteration_and_they_can_resume(tmp_path: Path) -> None:
    frames = 5_120
    options = ["--study", str(tmp_path), "--tasks", "Pendulum-v1", "--setups", "ppo"]
    options += ["--seeds", "0", "1", "--smoke", "--compile", "off", "--total-frames", str(frames)]
    first, second = recipe.grid(tyro.cli(recipe.Config, args=options))["main"]
    command = [sys.executable, str(RECIPES / "reproduce_paper.py"), *options, "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        table = first.run_dir / "iterations.csv"
        while not table.exists() or table.read_text().count("\n") < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate(timeout=120)
    assert process.returncode == 130, shown
    assert f"interrupted {first.name}: stopped after " in shown
    rows = table.read_text().splitlines()[1:]
    assert (runs.read_summary(first) or {})["frames"] == 256 * len(rows) < frames
    assert not second.run_dir.exists()
    assert list(pools.make([first], 1, 0)) == [pools.Ended(first, None)]
    assert runs.state(first) == "finished"
    rows = table.read_text().splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == list(range(256, frames + 1, 256))
