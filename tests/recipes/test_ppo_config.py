"""The main recipe's options: defaults, contradictions, ranges, and what the command line says."""

import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any

import ppo_amber_mujoco as ppo
import pytest
from ppo_amber_config import Config, resolve

from tests.recipes.conftest import run_main


def _resolve(**options: Any) -> Any:
    return resolve(Config(**options))


@pytest.mark.parametrize(
    ("setup", "num_batches", "clip_epsilon", "drop_factor"),
    [("ppo", 1, 0.3, None), ("mber", 2, 0.4, None), ("amber", 8, 0.4, 0.25)],
)
def test_a_setup_decides_what_is_left_out(
    setup: str, num_batches: int, clip_epsilon: float, drop_factor: float | None
) -> None:
    config = _resolve(setup=setup)
    assert config.num_batches == num_batches
    assert config.clip_epsilon == clip_epsilon
    assert config.drop_factor == drop_factor
    assert (config.num_envs, config.time_limits) == (8, "bootstrap")
    assert (config.total_frames, config.frames_per_batch, config.epochs) == (1_000_000, 2048, 10)
    assert config.run_dir == Path("runs") / f"HalfCheetah-v5-{setup}-seed0"


def test_given_values_win_and_resolving_twice_changes_nothing() -> None:
    config = _resolve(
        setup="amber", num_batches=4, clip_epsilon=0.2, drop_factor=math.inf, num_envs=4
    )
    assert (config.num_batches, config.clip_epsilon, config.drop_factor) == (4, 0.2, math.inf)
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"setup": "disc"}, {"loss": "disc", "num_batches": 64, "drop_factor": 0.1}),
        ({"setup": "disc", "num_batches": 4}, {"shares": None, "range_schedule": "constant"}),
        ({"setup": "geppo"}, {"frames_per_batch": 1024, "shares": (4, 3, 2, 1)}),
        ({"setup": "geppo", "smoke": True}, {"frames_per_batch": 256, "minibatch_size": 32}),
        ({"setup": "geppo", "minibatches": "uniform"}, {"shares": None}),
        ({"setup": "geppo", "loss": "amber"}, {"learning_rate_schedule": "linear"}),
        ({"setup": "gipo"}, {"num_batches": 8, "clip_epsilon": None, "sigma": 1.0}),
        ({"setup": "gipo"}, {"range_schedule": None}),
        ({"setup": "disc", "critic_on": "all"}, {"drop_factor": 0.1}),
        ({"batches_in_use": 3, "staleness_metric": "age", "max_drop_factor": 6}, {}),
        ({"setup": "gipo", "loss": "amber"}, {"clip_epsilon": 0.4, "sigma": None}),
        ({"loss": "gipo"}, {"clip_epsilon": None, "sigma": 1.0, "drop_factor": 0.25}),
        ({"batches_in_use": 3}, {"drop_factor": None, "max_drop_factor": 1.0}),
        ({"ess_in_use": 3, "max_drop_factor": 0.5}, {"drop_factor": None, "max_drop_factor": 0.5}),
        ({"frames_per_batch": 512, "replay_frames": 16384}, {"num_batches": 32}),
    ],
)
def test_values_implied_by_setup_loss_and_batches_in_use(
    options: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = _resolve(**options)
    assert {name: getattr(config, name) for name in expected} == expected
    assert resolve(config) == config


def test_a_killed_run_can_be_resumed_unless_that_is_turned_off() -> None:
    assert _resolve().checkpoint_interval == 50
    assert _resolve(checkpoint_interval=None).checkpoint_interval is None


def test_the_paper_protocol() -> None:
    config = _resolve(protocol="paper")
    assert (config.num_envs, config.time_limits) == (1, "terminal")
    assert _resolve(protocol="paper", num_envs=1) == config


def test_smoke_keeps_given_options() -> None:
    config = _resolve(smoke=True, total_frames=512)
    assert (config.total_frames, config.frames_per_batch) == (512, 256)
    assert config.num_batches == 8


def test_an_id_with_a_slash_makes_one_directory() -> None:
    assert _resolve(env_id="my/Task:v0").run_dir.parent == Path("runs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setup": "ppo", "num_batches": 2}, r"num_batches=2 with setup='ppo'.*mber and amber"),
        ({"setup": "ppo", "scale_minibatch": False}, r"scale_minibatch=False .*setup='ppo'"),
        ({"setup": "ppo", "advantages": "gae-v"}, r"advantages='gae-v' with setup='ppo'"),
        ({"critic_on": "all"}, r"critic_on='all' with advantages='stored'"),
        ({"critic_on": "all", "setup": "mber"}, r"critic_on='all' with setup='mber'"),
        ({"critic_on": "all", "drop_factor": math.inf}, r"critic_on='all' with drop_factor=inf"),
        ({"critic_on": "all", "num_batches": 1}, r"critic_on='all' with num_batches=1"),
        (
            {"critic_on": "all", "advantages": "vtrace", "critic_coeff": 0},
            r"critic_on='all' with critic_coeff=0",
        ),
        ({"loss": "disc", "scale_minibatch": False}, r"scale_minibatch=False with loss='disc'"),
        ({"loss": "disc", "minibatches": "episodic"}, r"minibatches='episodic' with loss='disc'"),
        (
            {"critic_on": "all", "advantages": "vtrace", "scale_minibatch": False},
            r"critic_on='all' with scale_minibatch=False",
        ),
        ({"setup": "ppo", "drop_factor": 0.1}, r"drop_factor=0.1 with setup='ppo'.*leave it out"),
        ({"setup": "mber", "drop_factor": 0.1}, r"drop_factor=0.1 with setup='mber'"),
        ({"protocol": "paper", "num_envs": 8}, r"num_envs=8 with protocol='paper'.* 1;"),
        ({"protocol": "paper", "time_limits": "bootstrap"}, r"time_limits='bootstrap' with proto"),
        ({"num_envs": 3}, r"num_envs=3 with frames_per_batch=2048"),
        ({"minibatch_size": 100}, r"minibatch_size=100 with frames_per_batch=2048"),
        ({"minibatches": "episodic"}, r"minibatches='episodic' with minibatch_size=64.* = 256"),
        (
            {"minibatches": "episodic", "num_batches": 2, "scale_minibatch": False},
            r"minibatches='episodic' .*scale_minibatch=False",
        ),
        (
            {"sampler": "amber_trl.data:EpisodicMinibatchSampler", "minibatches": "episodic"},
            r"sampler='amber_trl.data:Epi.* with minibatches='episodic'",
        ),
        (
            {"sampler": "amber_trl.data:EpisodicMinibatchSampler", "scale_minibatch": False},
            r"sampler='amber_trl.data:Epi.* with scale_minibatch=False",
        ),
        ({"setup": "sac"}, r"setup='sac': choose one of \['ppo', 'mber', 'amber', "),
        ({"setup": "geppo", "drop_factor": 0.1}, r"drop_factor=0.1 with setup='geppo'"),
        ({"setup": "mber", "batches_in_use": 2}, r"batches_in_use=2 with setup='mber'"),
        ({"batches_in_use": 2, "drop_factor": 0.1}, r"drop_factor=0.1 with batches_in_use=2"),
        ({"batches_in_use": 2, "ess_in_use": 2.0}, r"batches_in_use=2 with ess_in_use=2.0"),
        ({"batches_in_use": 9}, r"batches_in_use=9 with num_batches=8"),
        ({"ess_in_use": 8.5}, r"ess_in_use=8.5 with num_batches=8"),
        (
            {"batches_in_use": 3, "staleness_metric": "age"},
            r"batches_in_use=3 with staleness_metric='age' with max_drop_factor=None",
        ),
        ({"staleness_metric": "age"}, r"drop_factor=0.25 with staleness_metric='age'"),
        ({"setup": "gipo", "range_schedule": "linear"}, r"range_schedule='linear' with loss"),
        ({"max_drop_factor": 0.5}, r"max_drop_factor=0.5 with batches_in_use=None"),
        (
            {"setup": "mber", "max_drop_factor": 2.0},
            r"max_drop_factor=2.0 with batches_in_use=None",
        ),
        ({"loss": "gipo", "clip_epsilon": 0.2}, r"clip_epsilon=0.2 with loss='gipo'"),
        ({"sigma": 0.5}, r"sigma=0.5 with loss='amber'"),
        ({"learning_rate_schedule": "adaptive"}, r"'adaptive' with loss='amber'"),
        ({"learning_rate_schedule": "adaptive", "loss": "geppo"}, "range_schedule='linear'"),
        ({"shares": (1.0,) * 8}, r"shares=.* with minibatches='uniform'"),
        ({"minibatches": "stratified", "shares": (2.0, 1.0)}, r"shares=.* with num_batches=8"),
        ({"setup": "geppo", "shares": (0.0, 1.0, 1.0, 1.0)}, r"shares=.* with num_batches=4"),
        ({"minibatches": "stratified", "scale_minibatch": False}, r"scale_minibatch=False"),
        ({"replay_frames": 3000}, r"replay_frames=3000 with frames_per_batch=2048"),
        ({"replay_frames": 4096, "num_batches": 8}, r"replay_frames=4096 .*num_batches=8"),
        ({"setup": "ppo", "replay_frames": 4096}, r"num_batches=2 .*setup='ppo'"),
        ({"staleness_metric": "size"}, r"staleness_metric='size': choose one of"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _resolve(**options)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("seed", [-1, 2**31]),
        ("total_frames", [0]),
        ("hidden_sizes", [(64, 0)]),
        ("drop_factor", [-0.1, math.nan]),
        ("max_drop_factor", [0.0, math.inf]),
        ("clip_epsilon", [0.0, 1.1]),
        ("learning_rate", [0.0, math.inf]),
        ("gamma", [-0.1, 1.1, math.nan]),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match="choose a value") as raised:
            _resolve(**{field: value})
        assert str(raised.value).startswith(f"{field}={value}")


def test_every_number_has_a_range() -> None:
    for field in dataclasses.fields(Config):
        if "int" in str(field.type) or "float" in str(field.type):
            assert "Range" in str(field.type), field.name


def test_help_explains_each_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run_main(ppo, "--help") == 0
    shown = capsys.readouterr().out
    source = "".join(inspect.getsource(kind) for kind in Config.__mro__[:-1])
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')}" in shown
        described = source.split(f"    {field.name}: ", 1)[1].split('"""')[1]
        assert described[:30] in shown, field.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clip-epsilon", "2"], "clip_epsilon=2.0: choose a value in (0, 1]"),
        (["--env-id", "Pendulum-v9"], "Pendulum-v1"),
        (["--env-id", "Blackjack-v1"], "observation space"),
        (["--env-kwargs", "[1]"], "env_kwargs=[1] is not a JSON object"),
        (["--env-kwargs", '{"a": NaN}'], "env_kwargs='{\"a\": NaN}' is not a JSON object"),
        (["--env-kwargs", '{"g": 1e400}'], "env_kwargs='{\"g\": 1e400}' is not a JSON object"),
        (["--env-kwargs", '{"seed": 1}'], "env_kwargs={'seed': 1}: the recipe sets ['seed']"),
        (["--env-kwargs", '{"nothing": 1}'], "env_kwargs={'nothing': 1}"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--env-id", "CartPole-v1", "--staleness-metric", "per_dimension"], "Gaussian"),
        (["--env-id", "CartPole-v1", "--loss", "disc"], "loss='disc': DISCLoss needs a Gaussian"),
        (["--actor", "math:sqrt"], "actor='math:sqrt' is not a function(observation_spec"),
        (["--sampler", "fractions:Fraction", "--smoke"], "sampler='fractions:Fraction' made a"),
        (["--staleness-metric", "math:pi"], "staleness_metric='math:pi'"),
        (["--staleness-metric", "collections:Counter"], "collections.Counter"),
    ],
)
def test_the_command_line_reports_errors_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run_main(ppo, *options)
    assert code.startswith("error: ")
    assert message in code
    assert not (tmp_path / "runs").exists()


def test_the_command_line_does_not_overwrite_a_run(tmp_path: Path) -> None:
    (tmp_path / "episodes.csv").write_text("kept")
    code = run_main(ppo, "--env-id", "Pendulum-v1", "--run-dir", str(tmp_path))
    assert "already holds a run" in code
    assert (tmp_path / "episodes.csv").read_text() == "kept"
