"""What environments of one's own may hold: read and set to the bit, or named."""

import enum
import functools
import random
import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from torchrl.envs import Compose, GymWrapper, ParallelEnv, StepCounter, TransformedEnv

from amber_trl.envs import SimulatorState, make_env

ENV_ID = "amber_trl_test/Holder-v0"


class Phase(enum.Enum):
    UP = 1
    DOWN = 2


class Wind:
    """An object with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)
        self.strength = np.float32(0.1)
        self.gust = self.generator.normal


class Holder(gym.Env[Any, Any]):
    """An environment; tests give its copies more attributes."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action: Any) -> Any:
        return self.np_random.normal(size=2), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def _holder() -> Iterator[None]:
    gym.register(ENV_ID, Holder)
    yield
    del gym.registry[ENV_ID]


def holders(num_envs: int = 1) -> tuple[GymWrapper, list[Any]]:
    env = make_env(ENV_ID, num_envs, seed=0)
    return env, [copy.unwrapped for copy in env._env.envs]


def moved(value: Any, fresh: Any = None) -> Any:
    """An attribute read from one environment and set in another, which has ``fresh``."""
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.value = value
    if fresh is not None:
        target.value = fresh
    state = SimulatorState(env)
    assert state.inexact == ()
    SimulatorState(other).load_state_dict(state.state_dict())
    return target.value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        2**100,
        0.1,
        float("inf"),
        "text",
        np.float32(0.1),
        np.float64(0.1),
        np.int16(-3),
        np.bool_(True),
        [1, [2.0, "three"], ()],
        (1, (2, None)),
        {"a": 1, 2: [3]},
        OrderedDict(b=1, a=2),
        deque([1, 2], maxlen=3),
    ],
    ids=repr,
)
def test_plain_values_keep_value_and_type(value: Any) -> None:
    got = moved(value)
    assert got == value
    assert type(got) is type(value)
    assert repr(got) == repr(value)
    if isinstance(value, list | dict | deque):
        assert got is not value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        np.array(0.5, np.float32),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["ab", "c"]),
        np.array([np.nan, -0.0]),
        np.array(["2020-01-01"], "M8[D]"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_keep_their_bytes(array: Any) -> None:
    got = moved(array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()
    assert got.flags.c_contiguous == array.flags.c_contiguous
    assert got.flags.writeable
    assert not np.shares_memory(got, array)


def test_tensors_are_copied() -> None:
    value = torch.randn(3, dtype=torch.float64)
    got = moved(value)
    assert torch.equal(got, value)
    assert got.data_ptr() != value.data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: np.random.Generator(np.random.PCG64(seed)),
        lambda seed: np.random.Generator(np.random.MT19937(seed)),
        lambda seed: np.random.Generator(np.random.Philox(seed)),
        lambda seed: np.random.Generator(np.random.SFC64(seed)),
        np.random.RandomState,
        random.Random,
    ],
    ids=["PCG64", "MT19937", "Philox", "SFC64", "RandomState", "Random"],
)
@pytest.mark.parametrize("there", [True, False])
def test_generators_go_on(make: Any, there: bool) -> None:
    def draw(generator: Any) -> list[float]:
        normal = getattr(generator, "normal", None) or generator.gauss
        return [normal(0.0, 1.0) for _ in range(3)]

    value = make(1)
    draw(value)
    current = make(2) if there else None
    got = moved(value, current)
    assert got is not value
    assert got is current or not there
    assert draw(got) == draw(value)


def test_enumerations_functions_and_objects_are_those_of_the_new_environment() -> None:
    wind = Wind()
    wind.strength = np.float32(0.7)
    expected = np.random.default_rng(0).normal(size=4)
    wind.gust(size=2)
    fresh = Wind()
    got = moved(
        [Phase.DOWN, np.clip, functools.partial(np.add, 1)],
        [Phase.UP, np.clip, functools.partial(np.add, 1)],
    )
    assert got[0] is Phase.DOWN
    assert moved(wind, fresh) is fresh
    assert fresh.strength == np.float32(0.7)
    np.testing.assert_array_equal(fresh.gust(size=2), expected[2:])


def test_what_is_shared_stays_shared() -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.one = [np.zeros(2)]
    holder.other = holder.one
    holder.array = holder.one[0]
    holder.one.append(holder.one)
    SimulatorState(other).load_state_dict(SimulatorState(env).state_dict())
    assert target.one is target.other
    assert target.array is target.one[0]
    assert target.one[1] is target.one


def test_a_generator_shared_between_copies_stays_shared() -> None:
    (env, copies), (other, targets) = holders(2), holders(2)
    for group in (copies, targets):
        group[0].shared = group[1].shared = np.random.default_rng(3)
    copies[0].shared.normal()
    SimulatorState(other).load_state_dict(SimulatorState(env).state_dict())
    assert targets[0].shared is targets[1].shared
    assert targets[1].shared.normal() == copies[1].shared.normal()


def test_an_environment_may_save_itself() -> None:
    class Own(Holder):
        hidden: list[Any]

        def state_dict(self) -> dict[str, Any]:
            return {"hidden": self.hidden[0]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.hidden = [state["hidden"]]

        inexact = ("the weather is not saved",)

    del gym.registry[ENV_ID]
    gym.register(ENV_ID, Own)
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.hidden, target.hidden = [7, iter([])], [8]
    state = SimulatorState(env)
    assert state.inexact == ("the weather is not saved",)
    SimulatorState(other).load_state_dict(state.state_dict())
    assert target.hidden == [7]


class Slots:
    __slots__ = ("inside",)


class ArrayOwner(list[int]):
    pass


def counting(calls: list[int]) -> Any:
    return lambda: calls.append(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iter([1]), "Holder.value is a builtins.list_iterator, which cannot be read"),
        (lambda: {1, 2}, "Holder.value is a builtins.set"),
        (Slots, "Holder.value is a .*Slots"),
        (ArrayOwner, "Holder.value is a .*ArrayOwner"),
        (lambda: [1, Wind()], r"Holder.value\[1\] is a .*Wind inside a container"),
        (lambda: {"a": iter([])}, r"Holder.value\['a'\] is a builtins.list_iterator"),
        (lambda: {(1, 2): 3}, "Holder.value has keys that are neither"),
        (lambda: np.array([None]), "Holder.value is a numpy.ndarray of objects"),
        (lambda: np.frombuffer(bytearray(8)), "Holder.value shows memory of a builtins.memoryview"),
        (lambda: counting([]), "is a function that holds a builtins.list"),
        (
            lambda: functools.partial(print, {}),
            "Holder.value is a function that holds a builtins.dict",
        ),
        (lambda: np.random.default_rng(0).normal, "is a method of a numpy.random.*not read"),
        (lambda: np.arange(4.0)[None].view(np.recarray), "Holder.value is a numpy.*recarray"),
    ],
)
def test_what_cannot_be_read_is_named(make: Any, message: str) -> None:
    (env, (holder,)), (other, _) = holders(), holders()
    holder.value = make()
    state = SimulatorState(env)
    (reason,) = state.inexact
    assert re.search(message, reason), reason
    saved = state.state_dict()
    assert saved["inexact"] == [reason]
    loaded = SimulatorState(other)
    loaded.load_state_dict(saved)
    assert reason in loaded.inexact


def test_arrays_that_show_the_same_memory_are_named() -> None:
    env, (holder,) = holders()
    holder.whole = np.zeros(4)
    holder.left, holder.right = holder.whole[:2].view(), np.zeros(4)[2:]
    assert SimulatorState(env).inexact == ("Holder.left shows the memory of Holder.whole",)


def test_rows_of_one_array_are_no_problem() -> None:
    env, (holder,) = holders()
    holder.one, holder.other = np.zeros((2, 3))
    holder.three, holder.four = np.zeros((3, 2)).T
    holder.five = torch.zeros(2).numpy()
    assert SimulatorState(env).inexact == ()


def test_what_does_not_fit_the_new_environment_is_named(caplog: pytest.LogCaptureFixture) -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.wind, target.wind = Wind(), None
    holder.phase, target.phase = Phase.UP, "up"
    holder.rule, target.rule = np.clip, np.add
    assert SimulatorState(env).inexact == ()
    loaded = SimulatorState(other)
    loaded.load_state_dict(SimulatorState(env).state_dict())
    text = " ".join(loaded.inexact)
    for part in ("wind was a", "phase was a UP", "rule was a numpy.clip"):
        assert part in text
        assert part in caplog.text
    assert (target.wind, target.phase, target.rule) == (None, "up", np.add)


def _pendulum() -> GymWrapper:
    return make_env("Pendulum-v1", 1)


def test_environments_elsewhere_are_named() -> None:
    def make() -> Any:
        return gym.make("Pendulum-v1")

    vector = AsyncVectorEnv([make, make], autoreset_mode=AutoresetMode.DISABLED)
    away = GymWrapper(vector)
    parallel = ParallelEnv(2, _pendulum)  # without processes, until it is used
    transformed = TransformedEnv(_pendulum(), Compose(StepCounter()))
    try:
        for env, reason in (
            (away, "the copies of AsyncVectorEnv run in other processes"),
            (parallel, "ParallelEnv is not over Gymnasium in this process"),
            (transformed, "the state of Compose is not read"),
        ):
            state = SimulatorState(env)
            assert state.inexact == (reason,)
            state.load_state_dict(state.state_dict())
    finally:
        for env in (away, parallel, transformed):
            env.close(raise_if_closed=False)
