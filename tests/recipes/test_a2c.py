import json
from pathlib import Path
from typing import Any

import a2c_staleness_mujoco as a2c
import pytest
import torch

from amber_trl.training import NonFiniteError
from tests.recipes.conftest import run_main
from tests.runs.left import read_rows, read_tables, stopping


def test_smoke(tmp_path: Path) -> None:
    metric = "tests.recipes.own_parts:exact_kl"
    options: Any = {"staleness_metric": metric, "activation": "relu", "eval_interval": 5}
    summary = a2c.train(a2c.Config(smoke=True, run_dir=tmp_path / "run", **options))
    assert summary["frames"] == 2560
    assert max(int(row["active_batches"]) for row in read_rows(tmp_path / "run")) > 1
    assert json.loads((tmp_path / "run" / "config.json").read_text())["drop_factor"] == 0.05
    evaluated = [bool(row["eval_return"]) for row in read_rows(tmp_path / "run")]
    assert evaluated == [number % 5 == 0 for number in range(1, 11)]
    policy = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    assert policy["arguments"]["activation"] == "relu"
    assert all(value.isfinite().all() for value in policy["actor"].values())


def test_smoke_keeps_given_options(tmp_path: Path) -> None:
    config = a2c.Config(
        smoke=True, total_frames=200, frames_per_batch=128, run_dir=tmp_path / "run"
    )
    assert a2c.train(config)["frames"] == 256
    assert json.loads((tmp_path / "run" / "config.json").read_text())["frames_per_batch"] == 128


def test_it_resumes(tmp_path: Path) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    a2c.train(a2c.Config(smoke=True, run_dir=whole))
    with stopping():
        assert a2c.train(a2c.Config(smoke=True, run_dir=run_dir))["stopped_by"] == "SIGTERM"
    assert run_main(a2c, "--resume", run_dir) == 0
    assert read_tables(run_dir) == read_tables(whole)


def test_it_stops_when_nothing_can_be_learnt(tmp_path: Path) -> None:
    """A finite reward whose square in the critic's loss is not finite."""
    run_dir = tmp_path / "run"
    with pytest.raises(NonFiniteError, match="batches of age"):
        a2c.train(a2c.Config(env_id="tests.recipes.faulty:Huge-v0", smoke=True, run_dir=run_dir))


def test_unsupported_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drop_factor=-1"):
        a2c.train(a2c.Config(drop_factor=-1, run_dir=tmp_path / "run"))
    with pytest.raises(ValueError, match="staleness_metric='size'"):
        a2c.train(a2c.Config(staleness_metric="size", run_dir=tmp_path / "run"))
    with pytest.raises(TypeError, match="discrete actions"):
        a2c.train(a2c.Config(env_id="CartPole-v1", run_dir=tmp_path / "run"))
    for options in (
        ["--minibatch-size", 48],
        ["--frames-per-batch", 100, "--minibatch-size", 4],
        ["--staleness-metric", "collections:Counter"],
    ):
        said = run_main(a2c, "--run-dir", tmp_path / "run", *map(str, options))
        assert said.startswith("error: ")
    assert not (tmp_path / "run").exists()
