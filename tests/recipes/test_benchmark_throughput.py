"""The benchmark: it runs, its programs do the same work, and its ratios are right."""

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from benchmark_throughput import Config, run, workload
from throughput import hand_written
from throughput.limits import targets
from throughput.rounds import measure
from throughput.tables import rate, ratio, spread

from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import UpdateStep
from tests.recipes.conftest import RECIPES


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The output of a smoke run, and its numbers."""
    path = tmp_path_factory.mktemp("smoke") / "found.json"
    command = [sys.executable, str(RECIPES / "benchmark_throughput.py"), "--smoke"]
    command += ["--limits", "--json", str(path)]
    done = subprocess.run(command, cwd=path.parent, check=True, capture_output=True, text=True)
    return done.stdout, json.loads(path.read_text())


def test_smoke_prints_tables(smoke: tuple[str, dict[str, Any]]) -> None:
    lines = smoke[0].splitlines()
    assert lines[0].startswith("Pendulum-v1, N = 64")
    assert "torchrl 0." in smoke[0]
    titles = [line for line in lines if line.startswith("### ")]
    assert len(titles) == 4
    assert titles[-1] == "### Targets"
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert before.count("|") == line.count("|")


def test_smoke_measures_every_program(smoke: tuple[str, dict[str, Any]]) -> None:
    samples = smoke[1]["samples"]
    assert set(samples) == {"loop", "memory", "scaling"}
    for name in ("ppo, 1", "amber, 1", "ppo, 8", "amber, 8"):
        (times,) = samples["loop"][name]
        parts = [times[part] for part in ("collect", "update", "refresh")]
        assert min(parts) > 0
        assert sum(parts) <= times["whole"]
    for name in ("stock TorchRL PPO, 1", "hand-written ppo, 1"):
        (times,) = samples["loop"][name]
        assert 0 < times["collect"] + times["update"] <= times["whole"]
    for part in ("loop", "scaling"):
        for rounds in samples[part].values():
            assert all(times["peak"] > 2**20 for times in rounds)


def test_targets_are_met_by_the_median_of_ratios_within_rounds() -> None:
    slow, fast = [{"whole": w} for w in (2.6, 9.0, 20.0)], [{"whole": w} for w in (1.0, 3.0, 10.0)]
    samples = {"loop": {"Stable-Baselines3 PPO, 8": slow, "ppo, 8": fast, "amber, 8": slow}}
    rows = {name: row for name, *row in targets(samples)}
    assert len(rows) == 13
    ppo = rows["Stable-Baselines3 PPO, 8: whole / ppo, 8: whole"]
    assert ppo == [">= 2.5", "2.6 (2.3 to 2.8)", "yes"]
    amber = rows["Stable-Baselines3 PPO, 8: whole / amber, 8: whole"]
    assert amber == [">= 1.3", "1 (1 to 1)", "**no**"]
    assert rows["eager: more / eager: stored"] == ["<= 1.5", "", "not measured"]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_hand_written_update_is_the_librarys(compiled: bool) -> None:
    torch.manual_seed(0)
    work = workload(Config(smoke=True))
    actor, critic, stored = hand_written.random_problem(work)
    stored["action_log_prob"] += 0.3 * torch.randn(len(stored))
    with torch.compiler.set_stance("force_eager"):
        by_hand = hand_written.HandWrittenUpdate(actor, critic, stored, compile=compiled)
        loss = AmberPPOLoss(actor, critic, clip_epsilon=hand_written.CLIP_EPSILON, functional=False)
        adam = torch.optim.Adam(
            loss.parameters(), lr=hand_written.LEARNING_RATE, eps=hand_written.ADAM_EPS
        )
        update = UpdateStep(loss, adam)
        for _ in range(20):
            index = torch.randperm(len(stored))[:16]
            by_hand(index)
            update(stored[index])
    parameters = [*actor.parameters(), *critic.parameters()]
    for weight, parameter in zip(by_hand.weights, parameters, strict=True):
        torch.testing.assert_close(weight, parameter, rtol=1e-4, atol=1e-6)


def test_ratios_are_taken_within_a_round() -> None:
    samples = {"slow": [{"whole": 2.0}, {"whole": 30.0}], "fast": [{"whole": 1.0}, {"whole": 10.0}]}
    assert ratio(samples, "slow", "fast") == [2.0, 3.0]
    assert ratio(samples, "slow", "absent") == []
    assert rate(samples, "fast", 20) == [20.0, 2.0]
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0], ".1f") == "3.0 (2.0 to 4.0)"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="repeats=0"):
        run(Config(smoke=True, repeats=0))


def test_a_program_that_fails_is_named() -> None:
    work = workload(Config(smoke=True))
    measured: Any = {"the broken one": (hand_written.simulate, 1)}
    with pytest.raises(RuntimeError, match=r"(?s)the broken one failed: .*num_envs"):
        measure(measured, work, 1, "test")
