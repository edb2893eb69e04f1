"""Dict observations, tasks with arguments and rewards of any size, through the command line."""

import json
from pathlib import Path
from typing import Any

import a2c_staleness_mujoco as a2c
import ppo_amber_mujoco as ppo
import pytest
import torch
from command_line import saved_config
from ppo_amber_config import Config, EffectiveConfig

from amber_trl.__main__ import main as amber_trl
from amber_trl.checkpoints import CheckpointError
from amber_trl.modules import RewardScaler
from tests.recipes.conftest import run_main
from tests.runs.left import last_state, read_rows, read_tables, stopping

_ENV_ID = "tests.recipes.tasks:Target-v0"
_WRAPPERS = ("tests.recipes.tasks:shifted", "gymnasium.wrappers:FlattenObservation")
_ASKED: dict[str, Any] = {
    "env_id": _ENV_ID,
    "env_kwargs": {"scale": 1e6},
    "wrappers": _WRAPPERS,
    "reward_scaling": True,
    "smoke": True,
    "total_frames": 1024,
}
_WORDS = (
    *("--env-id", _ENV_ID, "--env-kwargs", '{"scale": 1e6}', "--wrappers", *_WRAPPERS),
    *("--reward-scaling", "--smoke", "--total-frames", "1024"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations, evaluated after every second iteration."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    evaluated = ("--eval-interval", "2", "--eval-episodes", "1")
    assert run_main(ppo, *_WORDS, "--run-dir", run_dir, "--no-progress", *evaluated) == 0
    return run_dir


def test_rewards_of_a_million_are_learnt_from_and_logged_as_they_are(whole: Path) -> None:
    config = json.loads((whole / "config.json").read_text())
    assert (config["env_kwargs"], config["wrappers"]) == ({"scale": 1e6}, list(_WRAPPERS))
    returns = [float(row["return"]) for row in read_rows(whole, "episodes")]
    assert max(returns) < -1e6
    rows = read_rows(whole)
    assert all(float(row["loss_critic"]) < 1e3 for row in rows)
    assert float(rows[1]["eval_return"]) < -1e6
    scaler = last_state(whole, "reward_scaler")
    assert scaler["count"] == 1024
    assert scaler["variance"] > 1e12


def test_evaluate_makes_the_same_environment(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(whole), "--episodes", "1", "--env-id", _ENV_ID]
    assert amber_trl(words) == 1
    assert f"(--wrappers {' '.join(_WRAPPERS)})" in capsys.readouterr().err
    assert amber_trl([*words, "--wrappers", *_WRAPPERS]) == 0
    found = json.loads((whole / "evaluation-last-deterministic.json").read_text())
    assert (found["env_kwargs"], found["wrappers"]) == ({"scale": 1e6}, list(_WRAPPERS))
    assert found["mean"] < -1e6


def test_it_resumes_exactly(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    asked = {**_ASKED, "eval_interval": 2, "eval_episodes": 1, "progress": False}
    with stopping(512):
        ppo.train(Config(**asked, run_dir=run_dir))
    assert (last_state(run_dir, "reward_scaler")["returns"] < -1e6).all()
    assert ppo.train(saved_config(EffectiveConfig, run_dir))["exactness"] == "exact"
    assert read_tables(run_dir) == read_tables(whole)
    for part in ("loss", "reward_scaler"):
        one, other = (last_state(place, part) for place in (run_dir, whole))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_unfinished_sums_are_dropped_with_unfinished_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Config(**_ASKED, collector="torchrl", progress=False, run_dir=tmp_path / "run")
    with stopping(512):
        ppo.train(asked)
    before: list[torch.Tensor] = []

    def restart(scaler: RewardScaler) -> None:
        before.append(scaler.returns.clone())
        scaler.returns.zero_()

    monkeypatch.setattr(RewardScaler, "restart", restart)
    assert ppo.train(saved_config(EffectiveConfig, tmp_path / "run"))["frames"] == 1024
    (sums,) = before
    assert (sums < -1e6).all()


def test_the_scale_comes_along_with_the_networks(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    a2c.train(a2c.Config(**_ASKED, run_dir=first))
    a2c.train(a2c.Config(**_ASKED, run_dir=second, init_from=first))
    theirs, ours = (last_state(place, "reward_scaler") for place in (first, second))
    assert (theirs["count"], ours["count"]) == (1024, 2048)
    unscaled = {**_ASKED, "reward_scaling": False}
    with pytest.raises(CheckpointError, match=r"init_from=.*reward_scaling"):
        a2c.train(a2c.Config(**unscaled, run_dir=tmp_path / "third", init_from=first))
    assert not (tmp_path / "third").exists()
