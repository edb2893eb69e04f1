"""State that is not plain: named, and never an error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from torchrl.envs import Compose, GymWrapper, ParallelEnv, StepCounter, TransformedEnv

from amber_trl.envs import SimulatorState, make_env
from tests.envs.holder import Holder, holders, pass_on
from tests.envs.test_attributes import Phase

_MODEL = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><body><joint/><geom size='1'/></body></worldbody></mujoco>"
)


@dataclass
class Wind:
    """An object of a custom class."""

    strength: float = 0.1

    def __call__(self) -> float:
        return self.strength


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Wind, "Holder.value is a Wind"),
        (lambda: [1, Wind()], "Holder.value[1] is a Wind"),
        (lambda: {"a": {"b": Phase.UP}}, "Holder.value['a']['b'] is a Phase"),
        (lambda: {1, 2}, "Holder.value is a set"),
        (lambda: [len, 1], "Holder.value[0] is a builtin_function_or_method"),
        (lambda: np.array([len]), "Holder.value is an array of object"),
        (lambda: torch.zeros(1, requires_grad=True), "Holder.value is a Tensor"),
        (
            lambda: mujoco.MjData(_MODEL).qpos,
            "Holder.value is a view of memory that a PyCapsule owns",
        ),
    ],
)
def test_it_is_named_and_left_unchanged(make: Callable[[], Any], named: str) -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.value, target.value = make(), None
    (reason,) = SimulatorState(env).inexact
    assert named in reason
    assert pass_on(env, other).inexact == (reason,)
    assert target.value is None


def test_an_own_state_that_is_not_plain_is_named() -> None:
    class Own(Holder):
        def state_dict(self) -> dict[str, Any]:
            return {"wind": Wind()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("there is nothing to load")

    env, _ = holders(kind=Own)
    (reason,) = pass_on(env, env).inexact
    assert "Own.state_dict()['wind'] is a Wind" in reason


def test_arrays_that_show_the_memory_of_others_are_named() -> None:
    env, (holder,) = holders()
    holder.one, holder.other = np.zeros((2, 3))  # rows of one array share no memory
    assert SimulatorState(env).inexact == ()
    holder.whole = np.zeros(4)
    holder.left = holder.whole[:2]
    assert SimulatorState(env).inexact == ("Holder.left shares memory with Holder.whole",)


def test_state_that_does_not_fit_the_new_environment_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.phase, target.phase = Phase.UP, "up"
    (reason,) = pass_on(env, other).inexact
    assert "Holder.phase was UP" in reason
    assert reason in caplog.text
    assert target.phase == "up"


def _pendulum() -> GymWrapper:
    return make_env("Pendulum-v1", 1)


def test_environments_elsewhere_are_named() -> None:
    make = [lambda: gym.make("Pendulum-v1")] * 2
    away = GymWrapper(AsyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED))
    parallel = ParallelEnv(2, _pendulum)  # starts no processes until it is used
    transformed = TransformedEnv(_pendulum(), Compose(StepCounter()))
    for env, name in ((away, "Async"), (parallel, "Parallel"), (transformed, "Transformed")):
        (reason,) = pass_on(env, env).inexact
        assert name in reason
        env.close(raise_if_closed=False)
