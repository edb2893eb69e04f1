"""Policies loaded from runs and checkpoints, and the episodes that they play."""

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

from amber_trl.checkpoints import CheckpointError, Checkpoints, list_checkpoints
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.evaluation import Played, evaluate_run, play
from amber_trl.modules import ObservationNormalizer, categorical_actor, gaussian_actor
from amber_trl.runs import Policy, find_policy, load_policy

_OBSERVATIONS = {"Pendulum-v1": torch.randn(5, 3), "CartPole-v1": torch.randn(5, 4)}


def _record(env_id: str = "Pendulum-v1") -> Policy:
    """A policy whose normaliser has seen data."""
    size = _OBSERVATIONS[env_id].shape[1]
    normalizer = ObservationNormalizer(size)
    normalizer.update(torch.randn(50, size) * 3 + 1)
    arguments: dict[str, Any] = {"observation_size": size, "hidden_sizes": [8]}
    if env_id == "CartPole-v1":
        arguments["num_actions"] = 2
        return Policy(env_id, arguments, categorical_actor(**arguments, normalizer=normalizer))
    arguments["action_size"] = 1
    return Policy(env_id, arguments, gaussian_actor(**arguments, normalizer=normalizer))


@pytest.mark.parametrize("option", [{"clip": 1.0}, {"min_variance": 5.0}, {"dtype": torch.float64}])
def test_a_normaliser_s_options_come_back(tmp_path: Path, option: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"observation_size": 3, "action_size": 1}
    actor = gaussian_actor(**arguments, normalizer=ObservationNormalizer(3, **option))
    Policy("Pendulum-v1", arguments, actor).save(tmp_path / "policy.pt")
    loaded = load_policy(tmp_path / "policy.pt")
    assert torch.equal(_actions(loaded.actor), _actions(actor))


def _save_run(path: Path) -> dict[str, Policy]:
    """A run of three checkpoints, the first the best, and another final policy."""
    records = {name: _record() for name in ("best", "middle", "last", "final")}
    for index, name in enumerate(("best", "middle", "last")):
        checkpoints = Checkpoints(path / "checkpoints", {"policy": records[name]})
        checkpoints.save(100 * index, score=-float(index))
    torch.save(records["final"].state_dict(), path / "policy.pt")
    return records


@contextmanager
def _registered(make: Callable[[], gymnasium.Env[Any, Any]]) -> Iterator[str]:
    gymnasium.register("tests/Task-v0", lambda: make(), disable_env_checker=True)
    try:
        yield "tests/Task-v0"
    finally:
        del gymnasium.registry["tests/Task-v0"]


class _Task(gymnasium.Env[Any, Any]):
    """Fits a Pendulum policy. Rewards are 1; frame 3 has ``observation`` and ``reward``."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    steps = 0

    def __init__(self, observation: float = 0.0, reward: float = 1.0, length: int = 0) -> None:
        self.observation, self.reward, self.length = observation, reward, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        value, reward = (self.observation, self.reward) if self.steps == 3 else (0.0, 1.0)
        return np.full(3, value, np.float32), reward, self.steps == self.length, False, {}


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
    torch.save(Policy("x", arguments, plain).state_dict(), tmp_path / "plain.pt")
    assert torch.equal(_actions(load_policy(tmp_path / "plain.pt").actor), _actions(plain))


def test_a_missing_policy_is_reported(tmp_path: Path) -> None:
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


def test_anything_but_a_policy_is_refused(tmp_path: Path) -> None:
    file, saved = tmp_path / "policy.pt", _record().state_dict()
    others: list[Any] = [{}, [1, 2], torch.zeros(3), saved["actor"]]
    for broken in others:
        torch.save(broken, file)
        with pytest.raises(ValueError, match=r"policy\.pt' does not hold a policy"):
            load_policy(file)
    for entry in ("arguments", "actor"):  # as after a change of the network's code
        torch.save({**saved, entry: {}}, file)
        with pytest.raises(ValueError, match=r"policy\.pt' does not hold the network that"):
            load_policy(file)


def test_a_damaged_checkpoint_plays_nothing(tmp_path: Path) -> None:
    _save_run(tmp_path)
    last = list_checkpoints(tmp_path / "checkpoints")[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=str(last)):
        evaluate_run(tmp_path)
    assert not list(tmp_path.glob("evaluation*"))


def test_returns_are_those_of_a_plain_rollout() -> None:
    policy = _record()
    played = play(policy, 1, seed=3)
    env = make_env("Pendulum-v1", 1, seed=3)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        episode = env.rollout(1000, policy.actor)
    env.close()
    assert played.lengths == (200,)
    assert played.returns[0] == pytest.approx(episode["next", "reward"].double().sum().item())


def test_same_seed_same_episodes_and_no_global_generator_moves() -> None:
    policy = _record("CartPole-v1")
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


def test_an_environment_that_draws_from_global_generators_is_repeatable() -> None:
    def draw() -> _Task:
        return _Task(reward=random.random() + np.random.rand() + torch.rand(()).item(), length=5)  # noqa: NPY002

    with _registered(draw) as env_id:
        policy = Policy(env_id, {}, _record().actor)
        assert play(policy, 5, seed=1) == play(policy, 5, seed=1) != play(policy, 5, seed=2)


def test_short_episodes_count_no_more_than_long_ones() -> None:
    """Each copy plays a fixed share, however long its episodes are."""
    lengths = [3 + 10 * copy for copy in range(8)]
    left = iter(lengths)
    with _registered(lambda: _Task(length=next(left))) as env_id:
        played = play(Policy(env_id, {}, _record().actor), 19)
    assert sorted(played.lengths) == sorted(2 * lengths + lengths[:3])
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
    found = evaluate_run(tmp_path, checkpoint="best", episodes=3)
    assert json.loads((tmp_path / "evaluation-best-deterministic.json").read_text()) == found
    assert found["mean"] == pytest.approx(np.mean(found["returns"]))
    single = evaluate_run(tmp_path, checkpoint="final", episodes=1, out=tmp_path / "x" / "e.json")
    assert json.loads((tmp_path / "x" / "e.json").read_text()) == single
    assert (single["std"], single["interval"]) == (None, None)


@pytest.mark.parametrize("name", ["episodes", "seed", "max_frames"])
def test_numbers_out_of_range_are_named(name: str) -> None:
    options: dict[str, Any] = {"episodes": 1}
    with pytest.raises(ValueError, match=f"{name}=-1"):
        play(_record(), **options | {name: -1})
    with pytest.raises(TypeError, match=f"{name}=True"):
        play(_record(), **options | {name: True})


@pytest.mark.parametrize("out", ["checkpoints", "policy.pt/x.json"])
def test_nothing_is_played_if_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    _save_run(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.delattr("amber_trl.evaluation.evaluate.play")
    with pytest.raises(OSError, match=out.removesuffix("/x.json")):
        evaluate_run(tmp_path, out=tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["observation", "reward"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values_are_named(tmp_path: Path, name: str, value: float) -> None:
    with _registered(partial(_Task, **{name: value}, length=5)) as env_id:
        torch.save({**_record().state_dict(), "env_id": env_id}, tmp_path / "policy.pt")
        with pytest.raises(
            NonFiniteDataError, match=rf"the {name} in env_id='tests/Task-v0' is not finite"
        ):
            evaluate_run(tmp_path, checkpoint="final", out=tmp_path / "new" / "x.json")
    assert not list((tmp_path / "new").iterdir())


def test_an_endless_episode_is_not_played_forever() -> None:
    with _registered(_Task) as env_id:
        policy = Policy(env_id, {}, _record().actor)
        with pytest.raises(
            RuntimeError, match=r"env_id='tests/Task-v0' .*max_frames=50: give the en"
        ):
            play(policy, 2, max_frames=50)
    pendulum = _record()
    assert play(pendulum, 1, max_frames=200).lengths == (200,)
    with pytest.raises(RuntimeError, match="max_frames=199"):
        play(pendulum, 1, max_frames=199)


def test_a_copy_that_has_played_its_share_may_keep_running() -> None:
    class Once(_Task):
        """Ends one episode after five frames, and none after that."""

        def step(self, action: Any) -> Any:
            result = super().step(action)
            if self.steps == 5:
                self.length = 0
            return result

    left = iter([_Task(length=20), *(Once(length=5) for _ in range(7))])
    with _registered(lambda: next(left)) as env_id:
        played = play(Policy(env_id, {}, _record().actor), 9, max_frames=30)
    assert sorted(played.lengths) == [5] * 7 + [20] * 2


def test_a_module_that_a_file_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_by_a_file.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    env_id = "named_by_a_file:Pendulum-v1"
    torch.save({**_record().state_dict(), "env_id": env_id}, tmp_path / "policy.pt")
    with pytest.raises(
        ValueError, match=rf"imports the module 'named_by_a_file': .*--env-id {env_id}"
    ):
        evaluate_run(tmp_path, checkpoint="final", episodes=1)
    with pytest.raises(ValueError, match=r"but env_id='other:Pendulum-v1' was passed"):
        load_policy(tmp_path / "policy.pt", env_id="other:Pendulum-v1")
    assert "named_by_a_file" not in sys.modules
    found = evaluate_run(tmp_path, checkpoint="final", episodes=1, env_id=env_id)
    assert "named_by_a_file" in sys.modules
    assert found["env_id"] == env_id


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v1", r"observation has shape \(1, 4\)"),
        ("tests/Task-v0", r"its actions do not fit Box\(-1.0, 1.0, \(2,\)"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(env_id: str, message: str) -> None:
    class Two(_Task):
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

    with _registered(Two), pytest.raises(ValueError, match=message):
        play(Policy(env_id, {}, _record().actor), 1)


def test_other_discrete_actions_are_refused() -> None:
    actor = categorical_actor(observation_size=4, num_actions=3)
    with pytest.raises(ValueError, match=r"its actions do not fit Discrete\(2\)"):
        play(Policy("CartPole-v1", {}, actor), 1)
