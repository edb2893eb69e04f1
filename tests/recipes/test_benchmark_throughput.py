"""The benchmark: it runs, what it compares with does the same work, and its ratios are right."""

import importlib
import itertools
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from amber_trl.objectives import AmberPPOLoss
from amber_trl.training import UpdateStep
from tests.recipes.conftest import RECIPES

_STAGES = ("collect", "prepare", "refresh", "update")


@pytest.fixture(scope="module")
def throughput() -> Any:
    return importlib.import_module("benchmark_throughput")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a smoke run printed, and its numbers."""
    path = tmp_path_factory.mktemp("smoke") / "found.json"
    command = [
        sys.executable,
        str(RECIPES / "benchmark_throughput.py"),
        "--smoke",
        "--json",
        str(path),
    ]
    done = subprocess.run(command, cwd=path.parent, check=True, capture_output=True, text=True)
    return done.stdout, json.loads(path.read_text())


def test_smoke_prints_a_page_and_nothing_else(smoke: tuple[str, dict[str, Any]]) -> None:
    page, _ = smoke
    assert page.startswith("Pendulum-v1, N = 64")
    assert "torchrl" in page
    lines = page.splitlines()
    titles = [line for line in lines if line.startswith("### ")]
    assert len(titles) == 6
    assert titles[-1] == "### Targets"
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert before.count("|") == line.count("|")


def test_smoke_measures_every_program(smoke: tuple[str, dict[str, Any]]) -> None:
    samples = smoke[1]["samples"]
    assert set(samples) == {"loop", "collector", "update", "memory, eager", "scaling"}
    for envs in (1, 8):
        for setup in ("ppo", "amber"):
            (times,) = samples["loop"][f"{setup}, {envs}"]
            assert 0 < sum(times.get(stage, 0.0) for stage in _STAGES) <= times["whole"]
    (times,) = samples["loop"]["stock TorchRL PPO, 1"]
    assert 0 < times["collect"] + times["update"] <= times["whole"]
    for rounds in (rounds for part in samples.values() for rounds in part.values()):
        assert rounds
        assert all(times["peak"] > 2**20 for times in rounds)


def test_smoke_judges_what_it_measured(smoke: tuple[str, dict[str, Any]]) -> None:
    verdicts = {target["name"]: target["met"] for target in smoke[1]["targets"]}
    assert len(verdicts) == 12
    for name, met in verdicts.items():
        unmeasured = name.startswith("compiled update") or "Stable-Baselines3" in name
        assert (met is not None) or unmeasured, name


@pytest.mark.parametrize("compiled", [False, True])
def test_the_update_by_hand_is_the_librarys(throughput: ModuleType, compiled: bool) -> None:
    bare = throughput.bare
    torch.manual_seed(0)
    work = throughput.Workload(
        env_id="Pendulum-v1", frames_per_batch=64, epochs=1, minibatch_size=16, device="cpu"
    )
    actor, critic, stored = bare.random_problem(work)
    stored["action_log_prob"] += 0.3 * torch.randn(len(stored))
    with torch.compiler.set_stance("force_eager"):
        by_hand = bare.BareUpdate(actor, critic, stored, compile=compiled)
        loss = AmberPPOLoss(actor, critic, clip_epsilon=bare.CLIP_EPSILON, functional=False)
        adam = torch.optim.Adam(loss.parameters(), lr=bare.LEARNING_RATE, eps=bare.ADAM_EPS)
        update = UpdateStep(loss, adam)
        for _ in range(20):
            index = torch.randperm(len(stored))[:16]
            by_hand(index)
            update(stored[index])
    parameters = [*actor.parameters(), *critic.parameters()]
    for weight, parameter in zip(by_hand.weights, parameters, strict=True):
        torch.testing.assert_close(weight, parameter, rtol=1e-4, atol=1e-6)


def test_ratios_are_taken_within_a_round(throughput: ModuleType) -> None:
    slow = [{"whole": 2.0, "update": 1.0}, {"whole": 30.0, "update": 1.0}]
    samples = {"slow": slow, "fast": [{"whole": 1.0}, {"whole": 10.0}]}
    assert throughput.ratio(samples, "slow", "fast") == [2.0, 3.0]
    assert throughput.ratio(samples, "slow", "fast", "update") == []
    assert throughput.ratio(samples, "slow", "absent") == []
    assert throughput.rate(samples, "fast", 20) == [20.0, 2.0]
    assert throughput.spread([1.0, 2.0, 3.0, 4.0, 5.0], ".1f") == "3.0 (2.0 to 4.0)"


@pytest.mark.parametrize(
    ("limit", "values", "met"),
    [
        ({"at_least": 2.0}, [1.0, 2.0, 9.0], True),
        ({"at_least": 2.1}, [1.0, 2.0, 9.0], False),
        ({"at_most": 2.0}, [1.0, 2.0, 9.0], True),
        ({"at_most": 1.9}, [1.0, 2.0, 9.0], False),
        ({"at_most": 1.0}, [], None),
    ],
)
def test_a_target_is_met_by_the_median(
    throughput: ModuleType, limit: dict[str, float], values: list[float], met: bool | None
) -> None:
    target = throughput.Target("name", values, **limit)
    assert target.met is met
    assert len(target.row) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats=0"),
        ({"num_batches": (1, 2)}, r"num_batches=\(1, 2\)"),
        ({"num_batches": (4, 2, 1)}, "ascending"),
        ({"frames_per_batch": 60}, "num_envs=8 does not divide frames_per_batch=60"),
        ({"epochs": 0}, "epochs=0"),
        ({"env_id": "CartPole-v1"}, "env_id='CartPole-v1' has discrete actions"),
        ({"memory_env_id": "Nothing-v0"}, "env_id='Nothing-v0' is not known"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    throughput: ModuleType, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        throughput.resolve(throughput.Config(smoke=True, **options))


def test_a_program_that_fails_is_named(throughput: ModuleType) -> None:
    programs = {"the broken one": (throughput.bare.simulate, 1)}
    config = throughput.resolve(throughput.Config(smoke=True))
    with pytest.raises(RuntimeError, match=r"(?s)the broken one failed: .*num_envs"):
        throughput.measure(programs, config.work, 1, "test")


def test_a_profile_names_functions(throughput: ModuleType) -> None:
    page = throughput.run(throughput.Config(smoke=True, profile=True))
    text = "\n".join(page.lines)
    assert "| update |" in text
    assert "tottime" in text
