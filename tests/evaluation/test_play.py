"""Policies loaded from runs and checkpoints, and the episodes that they play."""

import json
import math
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import ExplorationType, set_exploration_type

from amber_trl.envs import make_env
from amber_trl.evaluation import Played, Policy, evaluate_run, find_policy, load_policy, play
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor
from amber_trl.training import CheckpointError, Checkpoints, PolicyRecord, list_checkpoints

_OBSERVATIONS = {"Pendulum-v1": torch.randn(5, 3), "CartPole-v1": torch.randn(5, 4)}


def _record(env_id: str = "Pendulum-v1") -> PolicyRecord:
    """A policy whose normaliser has seen something."""
    size = _OBSERVATIONS[env_id].shape[1]
    normalizer = ObservationNormalizer(size)
    normalizer.update(torch.randn(50, size) * 3 + 1)
    arguments: dict[str, Any] = {"observation_size": size, "hidden_sizes": [8]}
    if env_id == "CartPole-v1":
        arguments["num_actions"] = 2
        return PolicyRecord(
            env_id, arguments, categorical_actor(**arguments, normalizer=normalizer)
        )
    arguments["action_size"] = 1
    return PolicyRecord(env_id, arguments, gaussian_actor(**arguments, normalizer=normalizer))


def _policy(env_id: str = "Pendulum-v1") -> Policy:
    return Policy(_record(env_id).actor, env_id)


def _save_run(path: Path) -> dict[str, PolicyRecord]:
    """A run of three checkpoints, the first the best, and another final policy."""
    records = {name: _record() for name in ("best", "middle", "last", "final")}
    for index, name in enumerate(("best", "middle", "last")):
        checkpoints = Checkpoints(path / "checkpoints", {"policy": records[name]})
        checkpoints.save(100 * index, score=-float(index))
    torch.save(records["final"].state_dict(), path / "policy.pt")
    return records


def _actions(actor: torch.nn.Module, env_id: str = "Pendulum-v1") -> Tensor:
    frames = TensorDict({"observation": _OBSERVATIONS[env_id]}, [5])
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        actions: Tensor = actor(frames)["action"]
    return actions


@pytest.mark.parametrize("which", ["last", "best", "final"])
def test_each_policy_of_a_run_comes_back_with_its_normaliser(tmp_path: Path, which: Any) -> None:
    records = _save_run(tmp_path)
    generator = torch.random.get_rng_state()
    policy = load_policy(find_policy(tmp_path, which))
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert policy.env_id == "Pendulum-v1"
    assert torch.equal(_actions(policy.actor), _actions(records[which].actor))
    others = [_actions(record.actor) for name, record in records.items() if name != which]
    assert not any(torch.equal(_actions(policy.actor), other) for other in others)


def test_discrete_and_unnormalised_policies_come_back(tmp_path: Path) -> None:
    record = _record("CartPole-v1")
    torch.save(record.state_dict(), tmp_path / "policy.pt")
    loaded = load_policy(tmp_path / "policy.pt")
    assert torch.equal(_actions(loaded.actor, "CartPole-v1"), _actions(record.actor, "CartPole-v1"))
    plain = gaussian_actor(observation_size=3, action_size=1)
    arguments = {"observation_size": 3, "action_size": 1}
    torch.save(PolicyRecord("x", arguments, plain).state_dict(), tmp_path / "plain.pt")
    assert torch.equal(_actions(load_policy(tmp_path / "plain.pt").actor), _actions(plain))


def test_what_a_run_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no last checkpoint, nor any other policy"):
        find_policy(tmp_path)
    torch.save(_record().state_dict(), tmp_path / "policy.pt")
    with pytest.raises(FileNotFoundError, match=r"no best checkpoint, but a policy.pt: ask for"):
        find_policy(tmp_path, "best")
    (tmp_path / "policy.pt").unlink()
    Checkpoints(tmp_path / "checkpoints", {"policy": _record()}).save(1, score=None)
    with pytest.raises(FileNotFoundError, match=r"no policy.pt, but checkpoints"):
        find_policy(tmp_path, "final")
    with pytest.raises(FileNotFoundError, match="no best checkpoint, but checkpoints: ask for the"):
        find_policy(tmp_path, "best")
    with pytest.raises(FileNotFoundError, match="there is no policy file"):
        load_policy(tmp_path / "policy.pt")


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.pt"
    file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"policy\.pt' cannot be loaded"):
        load_policy(file)
    saved = _record().state_dict()
    for broken in ({}, {**saved, "arguments": {}}, {**saved, "actor": {}}, [1, 2]):
        torch.save(broken, file)
        with pytest.raises(ValueError, match=r"policy\.pt' holds no policy"):
            load_policy(file)


def test_a_damaged_checkpoint_plays_nothing(tmp_path: Path) -> None:
    _save_run(tmp_path)
    last = list_checkpoints(tmp_path / "checkpoints")[-1]
    (file,) = last.rglob("*.pt")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=str(file)):
        evaluate_run(tmp_path)
    assert not list(tmp_path.glob("evaluation*"))


def test_returns_are_those_of_a_plain_rollout() -> None:
    policy = _policy()
    played = play(policy, 1, seed=3)
    env = make_env("Pendulum-v1", 1, seed=3)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        episode = env.rollout(1000, policy.actor)
    env.close()
    assert played.lengths == (200,)
    assert played.returns[0] == pytest.approx(episode["next", "reward"].double().sum().item())


def test_same_seed_same_episodes_and_no_global_generator_moves() -> None:
    policy = _policy("CartPole-v1")
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    first = play(policy, 5, deterministic=False, seed=1)
    torch.rand(3)
    torch.random.set_rng_state(before[2])
    assert play(policy, 5, deterministic=False, seed=1) == first
    assert play(policy, 5, deterministic=False, seed=2) != first
    assert play(policy, 5, deterministic=True, seed=1) != first
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), before[2])


def test_short_episodes_count_no_more_than_long_ones() -> None:
    """Each copy plays a share that is fixed before, however long its episodes are."""

    class Fixed(gymnasium.Env[Any, Any]):
        """Each copy's episodes have one length, drawn once; the return is the length."""

        observation_space = gymnasium.spaces.Box(-1, 1, (3,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))
        made = 0

        def __init__(self) -> None:
            self.length, self.left = 3 + 10 * Fixed.made, 0
            Fixed.made += 1

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.left = self.length
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            self.left -= 1
            return np.zeros(3, np.float32), 1.0, self.left == 0, False, {}

    gymnasium.register("tests/Fixed-v0", entry_point=lambda: Fixed())
    try:
        Fixed.made = 0
        played = play(Policy(_record().actor, "tests/Fixed-v0"), 19)
    finally:
        del gymnasium.registry["tests/Fixed-v0"]
    expected = sorted(3 + 10 * copy for copy in range(8) for _ in range(3 if copy < 3 else 2))
    first = min(played.lengths)
    assert sorted(length - first + 3 for length in played.lengths) == expected
    assert [float(length) for length in played.lengths] == list(played.returns)


@pytest.mark.parametrize("count", [2, 3, 10, 20, 100, 2000])
def test_interval_is_student_s(count: int) -> None:
    returns = np.random.default_rng(0).normal(size=count) * 5 - 100
    played = Played(tuple(returns.tolist()), (1,) * count)
    expected = stats.t.interval(0.95, count - 1, returns.mean(), stats.sem(returns))
    assert played.interval == pytest.approx(expected, rel=1e-4)
    assert (played.mean, played.std) == pytest.approx((returns.mean(), returns.std(ddof=1)))


def test_one_episode_has_no_interval() -> None:
    played = Played((1.0,), (3,))
    assert played.mean == 1.0
    assert math.isnan(played.std)
    assert all(math.isnan(end) for end in played.interval)


def test_evaluation_is_written(tmp_path: Path) -> None:
    _save_run(tmp_path)
    found = evaluate_run(tmp_path, checkpoint="best", episodes=3, deterministic=False, seed=5)
    file = tmp_path / "evaluation-best-stochastic.json"
    assert json.loads(file.read_text()) == found
    assert found["policy"] == "checkpoints/000000000000"
    assert (found["episodes"], found["seed"], found["deterministic"]) == (3, 5, False)
    assert found["mean"] == pytest.approx(np.mean(found["returns"]))
    assert found["interval"][0] < found["mean"] < found["interval"][1]
    single = evaluate_run(tmp_path, checkpoint="final", episodes=1, out=tmp_path / "x" / "e.json")
    assert json.loads((tmp_path / "x" / "e.json").read_text()) == single
    assert (single["std"], single["interval"]) == (None, None)


def test_numbers_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="episodes=0"):
        play(_policy(), 0)
    with pytest.raises(ValueError, match="seed=-1"):
        play(_policy(), 1, seed=-1)
