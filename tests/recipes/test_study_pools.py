"""Making the study's runs in worker processes and on Ray: faults, retries, stopping."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reproduce_paper as recipe
from study import runs
from study.pools import LocalPool

from tests.recipes.conftest import RECIPES

_ROOT = RECIPES.parent
_FAULTY = "tests.recipes.faulty"


@pytest.mark.parametrize("where", [["--workers", "2"], ["--ray-address", "local"]])
def test_a_dead_worker_is_replaced_and_an_error_stops_no_other(
    ppo: ModuleType, where: list[str], tmp_path: Path
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
    assert "failed      paper/tests.recipes.faulty-Broken-v0/ppo-seed0: NonFinite" in shown
    assert "again       paper/tests.recipes.faulty-Deadly-v0/ppo-seed0: its " in shown
    assert "finished    paper/tests.recipes.faulty-Deadly-v0/ppo-seed0: final -" in shown
    assert f"failed: paper/tests.recipes.faulty-Broken-v0/ppo-seed0, see {broken}" in shown
    assert "Traceback" not in shown + done.stderr
    log = (broken / "log.txt").read_text()
    assert log.count("# begun ") == 1
    assert "'next', 'reward'" in log.splitlines()[-1]
    assert (deadly / "log.txt").read_text().count("# begun ") == 2
    whole = tmp_path / "whole"
    options = {"setup": "ppo", "protocol": "paper", "smoke": True, "compile": "off"}
    ppo.train(ppo.Config(env_id="Pendulum-v1", run_dir=whole, progress=False, **options))
    for table in ("episodes.csv", "iterations.csv"):
        assert (deadly / table).read_bytes() == (whole / table).read_bytes()
    assert json.loads((deadly / "summary.json").read_text())["interrupted"] is False


def test_a_stop_ends_runs_after_their_iteration_and_they_go_on_later(tmp_path: Path) -> None:
    options: dict[str, Any] = {"study": tmp_path, "tasks": ("Pendulum-v1",), "smoke": True}
    options |= {"compile": "off"}
    config = recipe.Config(**options, total_frames=10_240, setups=("ppo",), seeds=(0, 1))
    first, second = recipe.grid(config)
    pool, asked, ends = LocalPool(1, retries=2), False, []
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    try:
        for ended in pool.run([first, second]):
            if ended is not None:
                ends.append(ended)
            if not asked and runs.frames(first) > 0:
                asked = True
                pool.stop()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [(ended.job, ended.problem, ended.again) for ended in ends] == [(first, None, False)]
    assert runs.state(first) == "interrupted"
    frames = runs.frames(first)
    assert (runs.summary(first) or {})["frames"] == frames < 10_240
    assert not second.run_dir.exists()
    earlier = (first.run_dir / "timing.csv").read_bytes()
    progress = recipe.Progress([first], finished=0)
    assert recipe.make([first], LocalPool(1, retries=0), progress) == {first.name: "finished"}
    # The wall clock of the iterations before the stop is still that of the first attempt.
    assert (first.run_dir / "timing.csv").read_bytes().startswith(earlier)
    rows = (first.run_dir / "iterations.csv").read_text().splitlines()[1:]
    assert [int(row.partition(",")[0]) for row in rows] == list(range(256, 10_241, 256))
    assert (first.run_dir / "log.txt").read_text().count("# begun ") == 2
