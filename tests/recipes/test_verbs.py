"""What can be done with a run besides resuming it, through the command line."""

import json
import shutil
from pathlib import Path

import a2c_staleness_mujoco as a2c
import ppo_amber_mujoco as ppo
import pytest
import torch
from ppo_amber_config import Config

from amber_trl.runs import find_policy
from tests.recipes.conftest import run_main, run_script
from tests.runs.left import last_state, read_rows, read_tables, stopping

_SMALL = ("--smoke", "--env-id", "Pendulum-v1", "--total-frames", "1024")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    assert run_main(ppo, *_SMALL, "--run-dir", run_dir) == 0
    return run_dir


def test_resuming_a_finished_run_names_the_alternatives(
    finished: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = read_tables(finished)
    assert run_main(ppo, "--resume", finished) == 0
    assert "%|" not in capsys.readouterr().err  # no bar
    for words in ("is finished", f"--extend {finished}", f"--init-from {finished}"):
        assert words in caplog.text
    assert read_tables(finished) == before


def test_another_run_starts_from_its_networks_alone(finished: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ("--setup", "ppo", "--learning-rate", "1e-12", "--critic-coeff", "0.5")
    assert run_main(ppo, *_SMALL, *options, "--run-dir", run_dir, "--init-from", finished) == 0
    assert run_main(ppo, "--resume", run_dir, "--init-from", finished) == 0  # no contradiction
    theirs, ours = last_state(finished, "loss"), last_state(run_dir, "loss")
    weights = [name for name in theirs if name.endswith(("weight", "bias", "log_std"))]
    assert len(weights) == 13
    for name in weights:
        assert torch.allclose(ours[name], theirs[name], atol=1e-6)
    (count,) = {ours[name].item() for name in ours if name.endswith("count")}
    assert count == 2048
    assert ours["critic_coeff"] == 0.5
    assert float(read_rows(run_dir)[0]["learning_rate"]) == 1e-12
    assert json.loads((run_dir / "config.json").read_text())["init_from"] == str(finished)


def test_networks_of_another_shape_are_refused(finished: Path, tmp_path: Path) -> None:
    options = ("--env-id", "CartPole-v1", "--run-dir", tmp_path / "run", "--init-from", finished)
    said = run_main(ppo, *_SMALL, *options)
    assert "error: init_from=" in said
    assert "\n" not in said
    nowhere = ("--run-dir", tmp_path / "run", "--init-from", tmp_path / "nowhere")
    assert "error: init_from=" in run_main(ppo, *_SMALL, *nowhere)
    assert "one of its checkpoints" in run_main(ppo, *nowhere[:3], finished / "policy.pt")
    assert not (tmp_path / "run").exists()
    own = ("--run-dir", finished, "--overwrite", "--init-from", finished)
    assert "overwrite would remove init_from" in run_main(ppo, *_SMALL, *own)
    assert find_policy(finished).exists()


@pytest.fixture(scope="module")
def extended(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished run, extended by four iterations in a process of its own."""
    run_dir = shutil.copytree(finished, tmp_path_factory.mktemp("extended") / "run")
    options = ("--extend", run_dir, "--total-frames", "2048", "--no-progress")
    done = run_script("ppo_amber_mujoco", *options)
    assert done.returncode == 0, done.stderr
    assert "from 1024 to 2048 frames" in done.stdout
    return run_dir


def test_an_extended_run_continues_where_it_ended(finished: Path, extended: Path) -> None:
    rows = read_rows(extended)
    assert [int(row["frames"]) for row in rows] == list(range(256, 2049, 256))
    assert rows[:4] == read_rows(finished)
    left = [float(row["learning_rate"]) / 3e-4 for row in rows]
    assert left == pytest.approx([1, 0.75, 0.5, 0.25, 0.5, 0.375, 0.25, 0.125])
    assert rows[4]["active_4"] != ""  # the buffer's batches are still there
    # Eight episodes of 200 frames began in the first run and ended in its extension.
    ends = [row["frame"] for row in read_rows(extended, "episodes")]
    assert ends == [str(frame) for frame in range(1593, 1601)]
    config = json.loads((extended / "config.json").read_text())
    assert (config["total_frames"], config["extended_at"]) == (2048, [1024])
    summary = json.loads((extended / "summary.json").read_text())
    assert (summary["interrupted"], summary["exactness"]) == (False, "exact")


def test_an_extended_run_resumes_exactly(finished: Path, extended: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(finished, tmp_path / "run")
    asked = Config(extend=run_dir, total_frames=2048, progress=False)
    with stopping():
        assert ppo.train(asked)["frames"] == 1280
    said = run_main(ppo, "--extend", run_dir, "--total-frames", "4096")
    assert "resume it first (--resume)" in said
    assert run_main(ppo, "--resume", run_dir) == 0
    assert read_tables(run_dir) == read_tables(extended)


def test_a_run_that_cannot_be_extended_is_reported(finished: Path) -> None:
    for options in ((), ("--total-frames", "1024")):
        assert "--total-frames" in run_main(ppo, "--extend", finished, *options)
    said = run_main(ppo, "--extend", finished, "--total-frames", "2048", "--gamma", "0.5")
    assert "gamma=0.5 contradicts gamma=0.99" in said


def test_a_run_is_resumed_by_its_own_recipe(finished: Path) -> None:
    assert "setup='amber'" in run_main(a2c, "--resume", finished)


def test_a2c_is_extended(tmp_path: Path) -> None:
    assert run_main(a2c, "--smoke", "--total-frames", "512", "--run-dir", tmp_path) == 0
    assert run_main(a2c, "--extend", tmp_path, "--total-frames", "1024") == 0
    assert [row["frames"] for row in read_rows(tmp_path)] == ["256", "512", "768", "1024"]


def test_a_kl_target_ends_the_epochs_early(tmp_path: Path) -> None:
    options = ("--run-dir", tmp_path / "run", "--epochs", "5", "--target-kl", "1e-9")
    assert run_main(ppo, *_SMALL, *options) == 0
    updates = [int(row["updates"]) for row in read_rows(tmp_path / "run")]
    assert all(number % 4 == 0 for number in updates)  # whole epochs
    assert min(updates) < 20


def test_evaluation_leaves_the_training_alone_and_chooses_the_best(
    finished: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    options = ("--eval-interval", "2", "--eval-episodes", "3", "--checkpoint-interval", "3")
    assert run_main(ppo, *_SMALL, *options, "--run-dir", run_dir) == 0
    rows = read_rows(run_dir)
    returns = [row.pop("eval_return") for row in rows]
    assert rows == read_rows(finished)
    assert [bool(text) for text in returns] == [False, True, False, True]
    best = 512 if float(returns[1]) > float(returns[3]) else 1024
    assert int(find_policy(run_dir, "best").stem) == best
