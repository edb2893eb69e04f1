"""Box2D's episodes: each in a new world, recorded, and replayed bit for bit."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torchrl.envs import GymEnv

from amber_trl.envs import SimulatorState, make_env

TASKS = ("BipedalWalker-v3", "BipedalWalkerHardcore-v3", "LunarLander-v3")


def copies(env_id: str, num_envs: int = 1, **arguments: Any) -> tuple[Any, list[Any]]:
    env = make_env(env_id, num_envs, **arguments)
    return env, env._env.envs


def play(copy: Any, steps: int, seed: int) -> list[bytes]:
    """Observations of random actions, within an episode or into the next."""
    space, seen = copy.action_space, []
    space.seed(seed)
    for _ in range(steps):
        observation, _, terminated, truncated, _ = copy.step(space.sample())
        seen.append(observation.tobytes())
        if terminated or truncated:
            seen.append(copy.reset()[0].tobytes())
    return seen


@pytest.mark.parametrize("env_id", TASKS)
def test_an_episode_does_not_depend_on_those_before_it(env_id: str) -> None:
    _, (used,) = copies(env_id, seed=0)
    play(used, 200, seed=1)
    _, (new,) = copies(env_id, seed=0)
    assert used.reset(seed=5)[0].tobytes() == new.reset(seed=5)[0].tobytes()
    assert play(used, 100, seed=2) == play(new, 100, seed=2)


@pytest.mark.parametrize("env_id", TASKS)
def test_the_first_episode_is_gymnasiums(env_id: str) -> None:
    _, (ours,) = copies(env_id, seed=0)
    theirs = gym.make(env_id)
    assert ours.reset(seed=5)[0].tobytes() == theirs.reset(seed=5)[0].tobytes()
    seen = []
    for copy in (ours, theirs):
        copy.action_space.seed(3)
        seen.append([copy.step(copy.action_space.sample())[:2] for _ in range(30)])
    for (observation, reward), (same, as_well) in zip(*seen, strict=True):
        np.testing.assert_array_equal(observation, same)
        assert reward == as_well


@pytest.mark.parametrize(
    "options",
    [
        {"env_id": "BipedalWalker-v3"},
        {"env_id": "LunarLander-v3", "enable_wind": True},
        {"env_id": "LunarLander-v3", "continuous": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [0, 1, 50])
def test_a_loaded_episode_continues_bit_for_bit(options: dict[str, Any], steps: int) -> None:
    env, here = copies(num_envs=2, seed=0, **options)
    for copy in here:
        play(copy, 100, seed=4)
        copy.reset(seed=6) if steps == 1 else copy.reset()
        play(copy, steps, seed=5)
    other, there = copies(num_envs=2, seed=9, **options)
    loaded = SimulatorState(other)
    loaded.load_state_dict(SimulatorState(env).state_dict())
    assert loaded.inexact == ()
    for copy, same in zip(here, there, strict=True):
        assert play(copy, 120, seed=7) == play(same, 120, seed=7)


def test_actions_are_recorded_as_they_were() -> None:
    """Even if the caller reuses their memory."""
    env, (here,) = copies("BipedalWalker-v3", seed=0)
    action = np.ones(4, np.float32)
    for _ in range(10):
        here.step(action)
        action *= -0.9
    other, (there,) = copies("BipedalWalker-v3", seed=9)
    SimulatorState(other).load_state_dict(SimulatorState(env).state_dict())
    assert play(here, 30, seed=2) == play(there, 30, seed=2)


def test_a_replay_that_ends_elsewhere_is_named(caplog: pytest.LogCaptureFixture) -> None:
    env, (here,) = copies("BipedalWalker-v3", seed=0)
    play(here, 20, seed=1)
    state = SimulatorState(env).state_dict()
    own = state["groups"][1][-1]["own"]
    recorded = own["items"][own["keys"].index("actions")]["value"]
    recorded[:] = torch.flip(recorded, [0])
    loaded = SimulatorState(env)
    loaded.load_state_dict(state)
    assert "BipedalWalker's episode, played again" in caplog.text
    here.reset()
    assert any("ended differently" in reason for reason in loaded.inexact)


def test_without_the_record_a_box2d_world_is_named() -> None:
    reasons = SimulatorState(GymEnv("BipedalWalker-v3")).inexact
    assert any("BipedalWalker.world" in reason for reason in reasons)


def test_a_custom_box2d_task_is_named() -> None:
    lander: Any = type(copies("LunarLander-v3")[1][0].unwrapped)

    class Curriculum(lander):
        level = 0

    gym.register("amber_trl_test/Curriculum-v0", Curriculum)
    env = make_env("amber_trl_test/Curriculum-v0", 1, seed=0)
    del gym.registry["amber_trl_test/Curriculum-v0"]
    (reason,) = SimulatorState(env).inexact
    assert "Curriculum" in reason
