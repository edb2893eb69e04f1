"""A custom actor, sampler and staleness metric, named on the command line."""

import json
from pathlib import Path
from typing import Any

import ppo_amber_mujoco as ppo
import pytest
from ppo_amber_config import Config

from amber_trl.__main__ import main
from amber_trl.envs import make_env
from amber_trl.evaluation import play
from amber_trl.modules import ObservationNormalizer, gaussian_actor
from amber_trl.runs import Policy, load_policy
from amber_trl.runs.named_actor import named_actor
from tests.recipes.conftest import run_main
from tests.runs.left import read_rows, read_tables, stopping

OWN = "tests.recipes.own_parts"
NAMED = {
    "actor": f"{OWN}:state_dependent",
    "sampler": f"{OWN}:NewestTwice",
    "staleness_metric": f"{OWN}:exact_kl",
}
SMALL: dict[str, Any] = {"env_id": "Pendulum-v1", "smoke": True, "total_frames": 1024}


def _options(**options: Any) -> list[str]:
    words = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations from the command line."""
    run_dir = tmp_path_factory.mktemp("own") / "run"
    options = _options(**SMALL, **NAMED, no_progress=True, run_dir=run_dir)
    assert run_main(ppo, *options) == 0
    return run_dir


def test_the_run_is_by_the_parts_that_were_named(run_dir: Path) -> None:
    config = json.loads((run_dir / "config.json").read_text())
    assert {name: config[name] for name in NAMED} == NAMED
    rows = read_rows(run_dir)
    assert max(int(row["active_batches"]) for row in rows) > 1
    last = rows[-1]
    # The KL divergence of small steps, which the average importance ratio exceeds.
    assert 0 < float(last["staleness_0"]) < float(last["importance_ratio_0"]) - 1


def test_it_resumes_to_the_same_bits(run_dir: Path, tmp_path: Path) -> None:
    ours = tmp_path / "run"
    config = {**SMALL, **NAMED, "run_dir": ours, "progress": False}
    with stopping():
        assert ppo.train(Config(**config))["stopped_by"] == "SIGTERM"
    assert run_main(ppo, "--resume", ours) == 0
    assert read_tables(ours) == read_tables(run_dir)


def test_it_is_played_where_the_same_function_is_named(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = ["evaluate", str(run_dir), "--episodes", "1"]
    assert main(evaluate) == 1
    assert f"--actor {NAMED['actor']}" in capsys.readouterr().err
    assert main([*evaluate, "--actor", f"{OWN}:raw"]) == 1
    assert "was passed" in capsys.readouterr().err
    assert main([*evaluate, "--actor", NAMED["actor"]]) == 0
    assert "mean return -" in capsys.readouterr().out


def test_an_actor_is_tried_and_played_in_evaluation_mode() -> None:
    env = make_env("Pendulum-v1", num_envs=1)
    actor = named_actor(f"{OWN}:batch_normalized", env, ObservationNormalizer(3))
    assert actor.training
    policy = Policy("Pendulum-v1", {}, actor)
    assert play(policy, 1) == play(policy, 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("silent", "action_log_prob.*return_log_prob=True"),
        ("misnamed", "does not write.*'action'"),
        ("of_pixels", "reads.*'pixels'"),
        ("too_many", r"shape \[8, 3\]"),
        ("critic", "made a Linear"),
        ("nothing", "has no nothing"),
    ],
)
def test_an_unsuitable_actor_is_refused_before_a_run_is_created(
    tmp_path: Path, name: str, says: str
) -> None:
    config = Config(**{**SMALL, "actor": f"{OWN}:{name}", "run_dir": tmp_path / "run"})
    with pytest.raises((ValueError, TypeError, ImportError), match=f"actor='{OWN}:{name}'.*{says}"):
        ppo.train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [{"staleness_metric": "per_dimension"}, {"loss": "disc"}])
def test_what_needs_parameters_that_the_actor_does_not_write_is_refused_too(
    tmp_path: Path, option: dict[str, str]
) -> None:
    options = {**SMALL, "actor": NAMED["actor"], **option}
    with pytest.raises(ValueError, match=r"'loc'.*'scale'"):
        ppo.train(Config(**options, run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_actor_of_another_kind_is_named_as_the_cause(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"observation_size": 3, "action_size": 1}
    wide = gaussian_actor(**arguments, hidden_sizes=[8])
    for saved in ({}, arguments):
        Policy("Pendulum-v1", saved, wide).save(tmp_path / "policy.pt")
        with pytest.raises(ValueError, match="actor_function="):
            load_policy(tmp_path / "policy.pt")
