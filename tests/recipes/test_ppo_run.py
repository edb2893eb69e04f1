"""The main recipe at work: the files of a run, and their reproducibility."""

import ctypes
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ppo_amber_builders as builders
import ppo_amber_mujoco as ppo
import pytest
import torch
from ppo_amber_config import Config, resolve
from tensordict import TensorDict

from amber_trl.runs import find_policy
from amber_trl.transforms import Reason
from tests.recipes.conftest import RECIPES, run_main, run_script
from tests.runs.left import last_state, read_rows, read_tables


def _train(run_dir: Path, **options: Any) -> dict[str, Any]:
    small = {"env_id": "Pendulum-v1", "smoke": True, "progress": False, "run_dir": run_dir}
    return ppo.train(Config(**{**small, **options}))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A smoke run in another process, and its output."""
    parent = tmp_path_factory.mktemp("smoke")
    options = ("--smoke", "--env-id", "Pendulum-v1", "--run-dir", "run")
    done = run_script("ppo_amber_mujoco", *options, cwd=parent)
    assert re.search(
        r"^final score -\d+(\.\d+)? after 2560 frames: run$", done.stdout, re.MULTILINE
    )
    return parent / "run", done.stderr


def test_a_run_leaves_its_files(smoke: tuple[Path, str]) -> None:
    run_dir, _ = smoke
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "checkpoints",
        "config.json",
        "episodes.csv",
        "iterations.csv",
        "policy.pt",
        "summary.json",
        "timing.csv",
        "versions.json",
    ]
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["num_batches"], config["time_limits"]) == (8, "bootstrap")


def test_the_bar_shows_progress(smoke: tuple[Path, str]) -> None:
    _, shown = smoke
    for part in ("2560/2560", "frame/s", "return=-", "active=", "staleness="):
        assert part in shown
    assert "Warning" not in shown


def test_episodes_are_those_of_the_environment(smoke: tuple[Path, str]) -> None:
    episodes = read_rows(smoke[0], "episodes")
    # Eight Pendulums end together, after 200 steps: frames 199 * 8 + 1 to 200 * 8.
    assert [int(row["frame"]) for row in episodes] == list(range(1593, 1601))
    assert {row["length"] for row in episodes} == {"200"}
    assert {(row["terminated"], row["truncated"]) for row in episodes} == {("0", "1")}
    assert all(-2000 < float(row["return"]) < 0 for row in episodes)


def test_iterations_describe_the_training(smoke: tuple[Path, str]) -> None:
    iterations = read_rows(smoke[0])
    assert [int(row["frames"]) for row in iterations] == list(range(256, 2561, 256))
    for number, row in enumerate(iterations):
        left = 1 - number / 10
        assert float(row["learning_rate"]) == pytest.approx(3e-4 * left)
        assert float(row["clip_epsilon"]) == pytest.approx(0.4 * left)
        assert float(row["drop_factor"]) == pytest.approx(0.25 * left)
        active = [row[f"active_{age}"] for age in range(8)]
        assert active.count("1") == int(row["active_batches"])
        assert active.count("") == max(0, 7 - number)
        assert int(row["minibatch_size"]) == 64 * int(row["active_batches"])
        assert int(row["updates"]) == 2 * 256 // 64
        assert float(row["importance_ratio_0"]) >= 1
        assert float(row["loss_critic"]) > 0
        assert float(row["capped_frames"]) == 0
    assert max(int(row["active_batches"]) for row in iterations) > 1


def test_every_file_and_column_is_described(smoke: tuple[Path, str], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    _train(whole, entropy_coeff=0.01, max_grad_norm=0.5, eval_interval=5, eval_episodes=1)
    page = (RECIPES.parent / "docs" / "run_directory.md").read_text()
    described = {
        part.partition("\n")[0]: set(re.findall(r"`(\w+)`", " ".join(_first_cells(part))))
        for part in re.split(r"^## ", page, flags=re.MULTILINE)
    }
    for name in ("episodes", "iterations", "timing"):
        columns = {re.sub(r"_\d+$", "_A", column) for column in read_rows(whole, name)[0]}
        assert described[f"{name}.csv"] == columns
    summary = json.loads((whole / "summary.json").read_text())
    assert described["summary.json"] == summary.keys()
    for file in (*smoke[0].iterdir(), whole / "evaluation-*.json"):
        assert f"`{file.name}" in page
    for reason in Reason:
        assert f"| {reason.value} | " in page


def _first_cells(text: str) -> list[str]:
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]


def test_freed_batches_are_returned_to_the_system() -> None:
    """glibc returns memory that it got for a single block when that block is freed."""
    code = """
import ctypes
import torch
import ppo_amber_mujoco

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def is_single_block(floats):
    before = libc.mallinfo2().hblkhd
    batch = torch.ones(floats)
    return libc.mallinfo2().hblkhd - before >= 4 * floats

torch.ones(5_000_000)  # freed at once, from which glibc learns to keep such blocks
kept = not is_single_block(1_000_000)
ppo_amber_mujoco.return_large_blocks()
print(kept, is_single_block(2_000_000))  # more than the heap has free
"""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("no glibc")
    environment = os.environ | {"PYTHONPATH": str(RECIPES)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["True", "True"]


def test_one_seed_seeds_everything(smoke: tuple[Path, str], tmp_path: Path) -> None:
    first, second, other = smoke[0], tmp_path / "second", tmp_path / "other"
    _train(second)
    _train(other, seed=1)
    assert read_tables(first) == read_tables(second)
    assert all(one != two for one, two in zip(read_tables(first), read_tables(other), strict=True))
    policies = [
        torch.load(run_dir / "policy.pt", weights_only=True)["actor"]
        for run_dir in (first, second, other)
    ]
    for name, value in policies[0].items():
        assert torch.equal(value, policies[1][name])
    assert any(not torch.equal(value, policies[2][name]) for name, value in policies[0].items())


def test_ppo_on_discrete_actions(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _train(run_dir, env_id="CartPole-v1", setup="ppo", total_frames=512)
    rows = read_rows(run_dir)
    assert {row["active_batches"] for row in rows} == {"1"}
    assert "drop_factor" not in rows[0]
    assert "importance_ratio_1" not in rows[0]
    assert {row["terminated"] for row in read_rows(run_dir, "episodes")} == {"1"}


def test_time_limits_end_only_what_is_learnt_from(tmp_path: Path) -> None:
    _train(tmp_path / "run", setup="mber", protocol="paper", total_frames=512)
    assert {row["terminated"] for row in read_rows(tmp_path / "run", "episodes")} == {"0"}
    assert [row["active_batches"] for row in read_rows(tmp_path / "run")] == ["1", "2"]
    policy = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    bootstrap = tmp_path / "bootstrap"
    _train(bootstrap, setup="mber", num_envs=1, total_frames=512)
    assert read_rows(bootstrap, "episodes")[0] == read_rows(tmp_path / "run", "episodes")[0]
    other = torch.load(bootstrap / "policy.pt", weights_only=True)["actor"]
    assert any(not torch.equal(value, other[name]) for name, value in policy["actor"].items())


def test_options_reach_the_parts(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "total_frames": 768,
        "num_envs": 2,
        "minibatch_size": 32,
        "epochs": 1,
    }
    unscaled, episodic = tmp_path / "unscaled", tmp_path / "episodic"
    _train(unscaled, setup="mber", scale_minibatch=False, max_grad_norm=0.5, **options)
    last = read_rows(unscaled)[-1]
    assert (last["active_batches"], last["minibatch_size"], last["updates"]) == ("2", "32", "16")
    assert float(last["grad_norm"]) > 0
    _train(
        episodic,
        minibatches="episodic",
        num_batches=2,
        drop_factor=float("inf"),
        staleness_metric="per_dimension",
        normalize_advantage="minibatch",
        entropy_coeff=0.01,
        hidden_sizes=(8,),
        activation="elu",
        **options,
    )
    last = read_rows(episodic)[-1]
    assert (last["active_batches"], last["minibatch_size"], last["updates"]) == ("2", "64", "8")
    assert float(last["drop_factor"]) == float("inf")
    assert "loss_entropy" in last
    arguments = torch.load(episodic / "policy.pt", weights_only=True)["arguments"]
    sizes = {"observation_size": 3, "action_size": 1, "hidden_sizes": [8]}
    assert arguments == {**sizes, "activation": "elu"}


def test_disc_adapts_its_penalty_and_anneals_its_step_size_alone(tmp_path: Path) -> None:
    _train(tmp_path, setup="disc", num_batches=2, total_frames=768)
    rows = read_rows(tmp_path)
    weight, weights = 1.0, []
    for row in rows:
        weights.append(weight)
        penalty = float(row["penalty"])
        assert float(row["loss_penalty"]) == pytest.approx(weight * penalty)
        weight *= 2 if penalty > 1.5e-3 else 0.5 if penalty < 1e-3 / 1.5 else 1
    assert [float(row["penalty_coeff"]) for row in rows] == weights
    assert len(set(weights)) > 1
    assert float(rows[-1]["learning_rate"]) == pytest.approx(1e-4)
    assert not {"clip_epsilon", "drop_factor"} & rows[0].keys()


def test_geppos_step_size_follows_the_policy_and_its_own_network(tmp_path: Path) -> None:
    _train(tmp_path, setup="geppo", total_frames=768)
    rows = read_rows(tmp_path)
    assert [int(row["minibatch_size"]) for row in rows] == [32, 64, 96]
    sizes = [float(row["learning_rate"]) for row in rows]
    assert all(float(row["total_variation"]) < 0.025 for row in rows)
    assert sizes == pytest.approx([3e-4, 3e-4 * 1.03, 3e-4 * 1.03**2])
    saved = last_state(tmp_path, "optimizer")["param_groups"]
    assert [group["lr"] for group in saved] == pytest.approx([3e-4 * 1.03**3, 3e-4])


def test_a_wanted_number_of_batches_is_in_use(tmp_path: Path) -> None:
    _train(tmp_path, batches_in_use=2, loss="gipo", replay_frames=1024, total_frames=1024)
    rows = read_rows(tmp_path)
    assert [row["active_batches"] for row in rows] == ["1", "2", "2", "2"]
    for row in rows[2:]:
        older = sorted(float(row[f"staleness_{age}"]) for age in (1, 2, 3) if row[f"active_{age}"])
        assert float(row["drop_factor"]) == older[0] < older[1]
    assert "clip_epsilon" not in rows[0]
    assert all(0 < float(row["trust_weight"]) <= 1 for row in rows)


@pytest.mark.parametrize(("protocol", "prior"), [("paper", 0.01), ("default", 0.0)])
def test_the_paper_s_observation_statistics_have_a_prior(protocol: Any, prior: float) -> None:
    config = resolve(Config(env_id="Pendulum-v1", protocol=protocol))
    env = builders.build_env(config)
    normalizer = builders.build_networks(config, env)[2]
    env.close()
    assert normalizer.count.item() == prior


def test_only_what_is_read_is_stored() -> None:
    config = resolve(Config(env_id="Pendulum-v1"))
    env = builders.build_env(config)
    actor, critic, *_ = builders.build_networks(config, env)
    env.close()
    replay = builders.build_replay(config, actor, critic)
    stored = {"observation", "action", "action_log_prob", "advantage", "value_target"}
    assert set(replay.keys or ()) == stored


def test_bad_data_ends_a_run_with_one_line_and_keeps_the_files(tmp_path: Path) -> None:
    env_id = "tests.recipes.faulty:Broken-v0"
    options = ["--env-id", env_id, "--num-envs", "1", "--smoke", "--compile", "off"]
    said = run_main(ppo, *options, "--run-dir", tmp_path / "run")
    assert said.startswith("error: ('next', 'reward') is not finite in")
    # The first batch is learnt from; the second, which has the 300th step, is refused.
    assert [row["frames"] for row in read_rows(tmp_path / "run")] == ["256"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["interrupted"], summary["frames"]) == (True, 256)
    assert torch.load(tmp_path / "run" / "policy.pt", weights_only=True)["env_id"] == env_id


def test_the_best_checkpoint_is_not_that_of_the_first_short_episodes(tmp_path: Path) -> None:
    """Eight episodes of two frames end first, with the highest returns."""
    env_id = "tests.recipes.faulty:Flattering-v0"
    _train(tmp_path / "run", env_id=env_id, checkpoint_interval=1)
    best = find_policy(tmp_path / "run", "best")
    assert int(best.name[:12]) == 2560


def test_few_episodes_count_once_half_of_the_frames_are_collected(tmp_path: Path) -> None:
    _train(tmp_path / "run")  # eight episodes, at 1600 of 2560 frames
    assert find_policy(tmp_path / "run", "best").name.startswith("000000002560")


def test_a_run_without_an_episode_has_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--smoke", "--env-id", "Pendulum-v1", "--total-frames", "256", "--epochs", "1")
    assert run_main(ppo, *options, "--run-dir", tmp_path) == 0
    said = f"no final score (no episode has ended) after 256 frames: {tmp_path}\n"
    assert capsys.readouterr().out == said


def test_on_another_device_the_fast_collector_acts_by_a_copy_on_the_cpu() -> None:
    config = resolve(Config(env_id="Pendulum-v1", smoke=True))
    env = builders.build_env(config)
    actor, *_ = builders.build_networks(config, env)
    elsewhere = dataclasses.replace(config, device="cuda")
    collector = builders.build_collector(elsewhere, env, actor)
    assert collector.policy is not actor
    assert collector.storing_device == torch.device("cuda")
    with torch.no_grad():
        for tensor in (*actor.parameters(), *actor.buffers()):
            tensor += 1
    collector.update_policy_weights_(TensorDict.from_module(actor))
    acting = collector.policy.state_dict()
    assert all(torch.equal(acting[name], value) for name, value in actor.state_dict().items())
    assert builders.build_collector(config, env, actor).policy is actor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compile", ["off", "on"])
@pytest.mark.parametrize("collector", ["fast", "torchrl"])
def test_trains_on_cuda(tmp_path: Path, compile: str, collector: str) -> None:
    options = {"device": "cuda", "compile": compile, "collector": collector}
    summary = _train(tmp_path / "run", **options)
    assert math.isfinite(summary["final_score"])
