"""The tasks, what reaches the environment and what is recorded, seeds, and clear refusals."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from gymnasium.wrappers import DtypeObservation, FlattenObservation
from tensordict import TensorDict
from torchrl.envs import GymWrapper, check_env_specs

from amber_trl.envs import TASKS, SyncGymWrapper, _mujoco, make_env

UNIT = Box(-1.0, 1.0, (2,))


class Probe(gym.Env[Any, Any]):
    """Keeps the last action; an episode ends after three steps."""

    def __init__(
        self, observation_space: Space[Any] = UNIT, action_space: Space[Any] = UNIT
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.last_action: Any = None
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.last_action = action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 3, False, {}


@pytest.fixture(autouse=True)
def _probe() -> Iterator[None]:
    gym.register("amber_trl_test/Probe-v0", Probe)
    yield
    del gym.registry["amber_trl_test/Probe-v0"]


def make_probe(**arguments: Any) -> GymWrapper:
    return make_env("amber_trl_test/Probe-v0", 2, **arguments)


def rollout(env: GymWrapper, steps: int = 30) -> TensorDict:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return env.rollout(steps, break_when_any_done=False)


@pytest.mark.parametrize("env_id", TASKS)
def test_every_task_runs_and_repeats_from_its_seed(env_id: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        env = make_env(env_id, 2, seed=seed)
        runs.append(rollout(env))
        env.close()
    first, again, other = (run["observation"] for run in runs)
    assert torch.equal(first, again)
    assert torch.equal(runs[0]["next", "reward"], runs[1]["next", "reward"])
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("env_id", [*TASKS, "MountainCarContinuous-v0", "LunarLanderContinuous-v3"])
def test_tasks_limit_out_of_range_actions_themselves(env_id: str) -> None:
    """The motion is that of the clipped action, so no task needs additional clipping."""
    bound = make_env(env_id, 1).action_spec.space.high
    after = []
    for action in (3 * bound, bound):
        env = make_env(env_id, 1, seed=0, clip_actions=False)
        td = env.reset()
        for _ in range(4):
            td = env.step(td.set("action", action))["next"]
            if td["done"].any():
                break
        after.append(td["observation"])
        env.close()
    assert torch.equal(*after)


def test_control_cost_is_that_of_the_unclipped_action() -> None:
    costs = []
    for scale in (1.0, 3.0):
        env = make_env("HalfCheetah-v5", 1, seed=0)
        step = env.step(env.reset().set("action", torch.full((1, 6), scale)))
        costs.append(step["next", "reward"].item())
        env.close()
    # 0.1 * 6 * (9 - 1) more control cost for the same motion.
    assert costs[0] - costs[1] == pytest.approx(4.8, abs=1e-4)


@pytest.mark.parametrize(("clip", "reaches"), [(None, 1.0), (True, 1.0), (False, 3.0)])
def test_only_the_environment_gets_the_clipped_action(clip: bool | None, reaches: float) -> None:
    env = make_probe(clip_actions=clip)
    action = torch.tensor([[3.0, -0.5]] * 2)
    td = env.step(env.reset().set("action", action.clone()))
    assert torch.equal(td["action"], action)
    seen = env._env.envs[0].unwrapped.last_action
    np.testing.assert_array_equal(seen, np.array([reaches, -0.5], dtype=np.float32))
    assert torch.equal(env.action_spec.space.high, torch.ones(2, 2))


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5", "CartPole-v1"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_specs(env_id: str, num_envs: int) -> None:
    env = make_env(env_id, num_envs)
    check_env_specs(env)
    single = gym.make(env_id)
    assert env.batch_size == (num_envs,)
    assert isinstance(env, SyncGymWrapper)
    observation = env.reset()["observation"].numpy()
    assert observation.shape == (num_envs, *single.observation_space.shape)
    assert observation.dtype == single.observation_space.dtype
    if env_id == "HalfCheetah-v5":  # observations are the environment's own
        np.testing.assert_array_equal(observation[0], env._env.envs[0].unwrapped._get_obs())


def test_discrete_actions_count_from_zero() -> None:
    env = make_probe(action_space=Discrete(3, start=5))
    env.step(env.reset().set("action", torch.tensor([0, 2])))
    assert [copy.unwrapped.last_action for copy in env._env.envs] == [5, 7]
    assert env.action_spec.space.n == 3


def test_each_copy_is_reset_on_its_own() -> None:
    td = rollout(make_env("CartPole-v1", 4, seed=0), 80)
    assert td["action"].dtype == torch.int64
    done = td["next", "done"][:, :-1, 0]
    continues = (td["next", "observation"][:, :-1] == td["observation"][:, 1:]).all(-1)
    assert torch.equal(continues, ~done)
    assert len({int(n) for n in done.sum(1)}) > 1


def test_seeds_of_copies_differ_and_neighbouring_runs_share_none() -> None:
    starts = [make_env("Pendulum-v1", 4, seed=s).reset()["observation"] for s in range(4)]
    rows = {tuple(row) for start in starts for row in start.tolist()}
    assert len(rows) == 16


def test_only_without_a_seed_is_torchs_global_generator_used() -> None:
    def start(seed: int | None) -> Any:
        return make_env("Pendulum-v1", 2, seed=seed).reset()["observation"]

    torch.manual_seed(1)
    first, _, second = start(None), start(1), start(None)
    torch.manual_seed(1)
    assert torch.equal(start(None), first)
    assert torch.equal(start(None), second)
    assert not torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_partial_resets_with_tensors_on_cuda() -> None:
    td = rollout(make_env("CartPole-v1", 4, seed=0, device="cuda"), 80)
    assert td.device is not None
    assert td.device.type == "cuda"
    assert td["next", "done"].any()


@pytest.mark.parametrize(
    ("env_id", "way_out"),
    [
        ("Pendlum-v1", "'Pendulum-v1'"),
        ("halfcheetah-v5", "'HalfCheetah-v5'"),
        ("HalfCheetah-v1", "paper.*'HalfCheetah-v5'"),
        ("nowhere/Qqqqqq-v0", "pprint_registry"),
    ],
)
def test_unknown_ids(env_id: str, way_out: str) -> None:
    with pytest.raises(ValueError, match=rf"env_id='{env_id}'.*{way_out}"):
        make_env(env_id)


def test_simulators_that_are_missing_and_one_that_warns_on_import() -> None:
    program = """
import sys, warnings
sys.modules["mujoco"] = sys.modules["Box2D"] = None
from amber_trl.envs import make_env
for env_id in ("Hopper-v5", "BipedalWalker-v3"):
    try:
        make_env(env_id)
    except ImportError as error:
        sys.stdout.write(f"{error}\\n")
del sys.modules["Box2D"]
warnings.simplefilter("error", DeprecationWarning)
make_env("BipedalWalker-v3", 1).close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    of_mujoco, of_box2d = done.stdout.splitlines()
    assert "Hopper-v5" in of_mujoco
    assert 'pip install "gymnasium[mujoco]"' in of_mujoco
    assert "BipedalWalker-v3" in of_box2d
    assert 'pip install "gymnasium[box2d]"' in of_box2d


def test_an_id_may_name_its_module() -> None:
    make_env("gymnasium.envs:Pendulum-v1", 1).close()
    with pytest.raises(ImportError, match="no_such_module"):
        make_env("no_such_module:Pendulum-v1", 1)


def test_the_wrappers_that_the_refusal_names_open_other_spaces() -> None:
    def to_float(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return DtypeObservation(env, np.float32)

    space = Dict({"cell": Discrete(4), "door": Discrete(2)})
    env = make_probe(observation_space=space, wrappers=[FlattenObservation, to_float])
    observation = env.reset(env.reset())["observation"]  # from a TensorDict that was stepped, too
    assert observation.shape == (2, 6)
    assert observation.dtype == torch.float32


def test_wrappers_may_be_named_and_go_around_in_order() -> None:
    space = Dict({"a": UNIT, "b": UNIT})
    names = ["gymnasium.wrappers:FlattenObservation", "gymnasium.wrappers:NormalizeReward"]
    env = make_probe(observation_space=space, wrappers=names)
    assert env.reset()["observation"].shape == (2, 4)
    assert "NormalizeReward<FlattenObservation<" in str(env._env.envs[0])


@pytest.mark.parametrize(
    ("wrapper", "error", "way_out"),
    [
        ("FlattenObservation", ValueError, "module:name"),
        ("gymnasium.wrappers:TimeLimit", TypeError, "TimeLimit .*function of your own"),
        (str, TypeError, "str returns"),
    ],
)
def test_wrappers_that_do_not_fit(wrapper: Any, error: type[Exception], way_out: str) -> None:
    with pytest.raises(error, match=rf"wrappers.*{way_out}"):
        make_env("Pendulum-v1", 1, wrappers=[wrapper])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"no_such_option": 1}, TypeError), ({"xml_file": "nowhere.xml"}, ValueError)],
)
def test_arguments_that_the_environment_refuses(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="env_kwargs=") as refused:
        make_env("InvertedPendulum-v5", 1, **arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("observation_space", Dict({"a": UNIT})),
        ("observation_space", Discrete(4)),
        ("observation_space", Box(0, 255, (128,), np.uint8)),
        ("observation_space", Box(-1.0, 1.0, ())),
        ("action_space", Dict({"a": UNIT})),
        ("action_space", MultiDiscrete([2, 3])),
        ("action_space", Box(-1.0, 1.0, (2, 2))),
        ("action_space", Box(-4, 4, (2,), np.int64)),
    ],
    ids=str,
)
def test_unsupported_spaces(name: str, space: Space[Any]) -> None:
    with pytest.raises(TypeError, match=rf"{name.replace('_', ' ')} .*wrappers=.*--wrappers"):
        make_probe(**{name: space})


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"num_envs": 0}, ValueError, "num_envs=0"),
        ({"num_envs": 2.0}, TypeError, "num_envs"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"env_id": 3}, TypeError, "env_id"),
        ({"clip_actions": True, "env_id": "CartPole-v1"}, ValueError, "clip_actions"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        make_env(**({"env_id": "Pendulum-v1"} | arguments))


def test_mujoco_warns_of_a_model_once_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    _mujoco.log_once.cache_clear()
    for _ in range(2):
        make_env("HalfCheetah-v5", 3).close()
    assert [message.count("settotalmass") for message in caplog.messages] == [1]
    assert list(tmp_path.iterdir()) == []


def test_other_deprecated_ids_still_warn() -> None:
    with pytest.warns(DeprecationWarning, match="Reacher-v4 is out of date"):
        make_env("Reacher-v4", 1).close()
