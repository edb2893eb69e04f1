"""Simulators continue bit for bit: for every task, in this process and another, however stepped."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from gymnasium.wrappers import (
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RescaleAction,
    StickyAction,
    TimeAwareObservation,
)
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase, GymEnv

from amber_trl.envs import TASKS, SimulatorState, make_env
from tests.envs.collecting import Collecting, assert_same_bits
from tests.envs.holder import pass_on

ROOT = Path(__file__).parents[2]
OTHERS = ("Reacher-v4", "CartPole-v1", "LunarLander-v3")

pytestmark = pytest.mark.filterwarnings("ignore:.*Reacher-v4 is out of date:DeprecationWarning")


def step(env: EnvBase, td: TensorDictBase, frames: int, seed: int = 3) -> list[TensorDictBase]:
    """Steps and resets as TorchRL does; the last element is the final one."""
    generator = torch.Generator().manual_seed(seed)
    passed = []
    for _ in range(frames):
        action = 3 * torch.rand(env.action_spec.shape, generator=generator) - 1.5
        if not env.action_spec.dtype.is_floating_point:
            action = (action > 0).long()
        frame, td = env.step_and_maybe_reset(td.set("action", action))
        passed.append(frame)
    return [*passed, td]


@pytest.mark.parametrize("env_id", [*TASKS, *OTHERS])
def test_continues_bit_for_bit(env_id: str) -> None:
    first = Collecting(env_id, num_envs=2, seed=0)
    first.batches(1)
    saved = first.save()
    expected = first.batches(2)
    assert first.simulators.inexact == ()
    second = Collecting(env_id, num_envs=2, seed=9)
    second.batches(1)
    second.load(saved)
    assert second.simulators.inexact == ()
    assert_same_bits(expected, second.batches(2))
    assert sum(int(batch["next", "done"].sum()) for batch in expected) > 2


def test_continues_in_another_process(tmp_path: Path) -> None:
    program = """
import sys, torch
from pathlib import Path
from tests.envs.collecting import Collecting
torch.set_num_threads(1)
folder = Path(sys.argv[1])
for env_id in ("Humanoid-v5", "BipedalWalker-v3", "Pendulum-v1"):
    there = Collecting(env_id, 2, seed=9)
    there.load((folder / f"{env_id}.saved").read_bytes())
    assert there.simulators.inexact == ()
    torch.save([b.to_dict() for b in there.batches(2)], folder / f"{env_id}.after")
"""
    expected = {}
    for env_id in ("Humanoid-v5", "BipedalWalker-v3", "Pendulum-v1"):
        here = Collecting(env_id, 2, seed=0)
        here.batches(1)
        (tmp_path / f"{env_id}.saved").write_bytes(here.save())
        expected[env_id] = here.batches(2)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for env_id, batches in expected.items():
        after = torch.load(tmp_path / f"{env_id}.after", weights_only=True)
        assert_same_bits(batches, [TensorDict(b, batches[0].batch_size) for b in after])


@pytest.mark.parametrize("env_id", ["Reacher-v4", "BipedalWalker-v3", "CartPole-v1"])
def test_continues_when_torchrl_steps_it(env_id: str) -> None:
    """Its partial resets read the vector environment's own buffers."""
    env, other = (make_env(env_id, 3, seed=seed, max_episode_steps=30) for seed in (0, 9))
    here = step(env, env.reset(), 40)[-1]
    other.reset()
    pass_on(env, other)
    assert_same_bits(step(env, here.clone(), 70), step(other, here.clone(), 70))


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Humanoid-v5", "FrozenLake-v1"])
def test_continues_for_a_single_environment_of_torchrl(env_id: str) -> None:
    env, other = (GymEnv(env_id, categorical_action_encoding=True) for _ in range(2))
    env.set_seed(0)
    here = step(env, env.reset(), 30)[-1]
    other.reset()
    assert pass_on(env, other).inexact == ()
    assert_same_bits(step(env, here.clone(), 30), step(other, here.clone(), 30))


@pytest.mark.parametrize(
    "wrappers",
    [
        [NormalizeObservation, NormalizeReward],
        [lambda env: DelayObservation(env, 3)],
        [lambda env: StickyAction(env, 0.4)],
        [TimeAwareObservation],
        [lambda env: FrameStackObservation(env, 3), FlattenObservation],
        [lambda env: RescaleAction(env, np.float32(-1), np.float32(1))],
    ],
    ids=["Normalize", "Delay", "Sticky", "TimeAware", "FrameStack", "Rescale"],
)
def test_wrappers_continue_too(wrappers: list[Any]) -> None:
    env, other = (make_env("Pendulum-v1", 2, seed=s, wrappers=wrappers) for s in (0, 9))
    here = step(env, env.reset(), 30)[-1]
    assert pass_on(env, other).inexact == ()
    assert_same_bits(step(env, here.clone(), 180), step(other, here.clone(), 180))


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "BipedalWalker-v3"])
def test_samples_of_the_spaces_continue(env_id: str) -> None:
    env, other = (make_env(env_id, 2, seed=s) for s in (0, 9))
    spaces = [copy.action_space for copy in env._env.envs]
    others = [copy.action_space for copy in other._env.envs]
    for space in [*spaces, others[1]]:
        space.sample()
    pass_on(env, other)
    for space, same in zip(spaces, others, strict=True):
        np.testing.assert_array_equal(space.sample(), same.sample())


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Hopper-v5", "BipedalWalker-v3"])
def test_reading_changes_nothing_and_shares_nothing(env_id: str) -> None:
    def frames(read: bool) -> tuple[list[TensorDictBase], Any, Any]:
        env = make_env(env_id, 2, seed=0)
        here = step(env, env.reset(), 20)[-1]
        state = SimulatorState(env).state_dict() if read else {}
        return step(env, here, 20), state, env

    generators = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    passed, state, env = frames(read=True)
    assert torch.equal(generators[0], torch.random.get_rng_state())
    assert np.array_equal(generators[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert_same_bits(passed, frames(read=False)[0])
    # The state is that of frame 20 still, also after a load.
    for _ in range(2):
        SimulatorState(env).load_state_dict(state)
        assert_same_bits(passed[:-1], step(env, passed[0].exclude("next"), 20)[:-1])


@pytest.mark.parametrize(
    "options",
    [
        {"num_envs": 3},
        {"env_id": "CartPole-v1"},
        {"wrappers": [FlattenObservation]},
        {"max_episode_steps": -1},
    ],
    ids=str,
)
def test_another_environment_is_refused(options: dict[str, Any]) -> None:
    env = make_env("Pendulum-v1", 2)
    state = SimulatorState(env).state_dict()
    arguments: dict[str, Any] = {"env_id": "Pendulum-v1", "num_envs": 2}
    other = make_env(**(arguments | options))
    with pytest.raises(ValueError, match=f"saved .*{next(iter(options))}"):
        SimulatorState(other).load_state_dict(state)


def test_unreadable_mujoco_data_are_refused() -> None:
    env = make_env("Hopper-v5", 1)
    state = SimulatorState(env).state_dict()
    data = state["groups"][1][-1]["attributes"]["data"]
    data["bytes"] = data["bytes"][:-5]
    with pytest.raises(ValueError, match=rf"MuJoCo {mujoco.__version__} cannot read"):
        SimulatorState(env).load_state_dict(state)


def test_another_mujoco_model_is_named(caplog: pytest.LogCaptureFixture) -> None:
    env, other = make_env("Hopper-v5", 2, seed=0), make_env("Hopper-v5", 2, seed=0)
    env._env.envs[1].unwrapped.model.body_mass[1] *= 1.1
    (reason,) = pass_on(env, other).inexact
    assert "a different MuJoCo model" in reason
    assert reason in caplog.text
