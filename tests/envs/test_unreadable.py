"""State that cannot be read: named, whatever it is, and never an error."""

import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformReward

from amber_trl.envs import SimulatorState, make_env

ENV_ID = "amber_trl_test/Holder-v0"


class Holder(gym.Env[Any, Any]):
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


def held(kind: type[Any] = Holder, num_envs: int = 1) -> tuple[Any, Any]:
    del gym.registry[ENV_ID]
    gym.register(ENV_ID, kind)
    env = make_env(ENV_ID, num_envs, seed=0)
    return env, env._env.envs[0].unwrapped


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


class Counter:
    """A custom object, with attributes that change."""

    def __init__(self) -> None:
        self.calls = 0
        self.next: Any = None

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


def holding(value: Any) -> Callable[[], Any]:
    return lambda: value


def counting() -> Callable[[], int]:
    count = 0

    def more() -> int:
        nonlocal count
        count += 1
        return count

    return more


def counting_within() -> Callable[[], int]:
    count = 0

    def outer() -> int:
        def inner() -> None:
            nonlocal count
            count += 1

        inner()
        return count

    return outer


def with_default() -> Callable[..., Any]:
    def function(seen: Any = [0]) -> Any:  # noqa: B006
        return seen

    return function


def with_keyword() -> Callable[..., Any]:
    def function(*, seen: Any = {"n": 0}) -> Any:  # noqa: B006
        return seen

    return function


def with_attribute() -> Callable[..., Any]:
    def function() -> Any:
        return function

    vars(function)["calls"] = 0
    return function


def unfinished() -> Callable[..., Any]:
    later: Any

    def function() -> Any:
        return later

    if not callable(function):
        later = 1
    return function


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(2000):
        value = [value]
    return value


def chain() -> Counter:
    first = last = Counter()
    for _ in range(1500):
        last.next = Counter()
        last = last.next
    return first


def functions() -> Any:
    value: Any = holding(1)
    for _ in range(1500):
        value = holding(value)
    return holding((value, Counter()))


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nothing to see")


def pygames(name: str, *arguments: Any) -> Any:
    return getattr(pytest.importorskip("pygame"), name)(*arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: holding(np.random.default_rng(3)), "function that holds a numpy.*Generator"),
        (lambda: holding(np.random.RandomState(3)), "function that holds a numpy.*RandomState"),
        (lambda: holding(Counter()), "function that holds a .*Counter"),
        (lambda: holding((1, Counter())), "function that holds a .*Counter"),
        (lambda: holding(torch.zeros(1)), "function that holds a torch.Tensor"),
        (lambda: functools.partial(callable, Counter()), "function that holds a .*Counter"),
        (lambda: functools.partial(holding, value=Counter()), "function that holds a .*Counter"),
        (lambda: holding(holding(Counter())), "function that holds a .*Counter"),
        (lambda: Counter().__call__, "method of a .*Counter"),
        (counting, "writes its variable 'count'"),
        (counting_within, "writes its variable 'count'"),
        (with_default, "function that holds a builtins.list"),
        (with_keyword, "function that holds a builtins.dict"),
        (with_attribute, "function with the attribute 'calls'"),
        (unfinished, "function with a variable that has no value yet"),
        (functions, "function that holds a .*Counter"),
        (nested, "nested more than 64 deep"),
        (chain, "nested more than 64 deep"),
        (Hostile, "Holder.value cannot be read: RuntimeError: nothing to see"),
        (lambda: torch.zeros(1, requires_grad=True), "requires gradients"),
        (lambda: pygames("Vector2", 0, 0), "is a pygame.*Vector2"),
        (lambda: pygames("Rect", 0, 0, 1, 1), "is a pygame.*Rect"),
    ],
)
def test_it_is_named(make: Any, message: str) -> None:
    env, holder = held()
    holder.value = make()
    state = SimulatorState(env)
    (reason,) = state.inexact
    assert re.search(message, reason), reason
    assert through_file(state.state_dict())["inexact"] == [reason]
    state.load_state_dict(state.state_dict())


def test_methods_of_what_is_made_anew_are_named() -> None:
    env, holder = held()
    holder.history, holder.array = [], np.zeros(1)
    holder.push, holder.fill = holder.history.append, holder.array.fill
    assert SimulatorState(env).inexact == (
        "Holder.push is a method of a builtins.list, which was not read",
        "Holder.fill is a method of a numpy.ndarray, which was not read",
    )


def test_functions_may_hold_what_is_put_back_in_place() -> None:
    env, holder = held()
    holder.counter, holder.generator = Counter(), np.random.default_rng(0)
    holder.functions = [holding(v) for v in (holder, holder.counter, holder.generator, 1, "a", len)]
    assert SimulatorState(env).inexact == ()


def test_a_space_in_a_function_is_named_once_it_has_a_generator() -> None:
    env, holder = held()
    space = Box(0.0, 1.0)
    holder.value = holding(space)
    assert SimulatorState(env).inexact == ()
    space.sample()
    assert "holds a gymnasium.spaces.box.Box" in " ".join(SimulatorState(env).inexact)


def test_arrays_in_functions_are_set() -> None:
    (env, holder), (other, target) = held(), held()
    holder.value, target.value = holding(np.array([1.0, 2.0])), holding(np.zeros(2))
    assert SimulatorState(env).inexact == ()
    kept = target.value()
    SimulatorState(other).load_state_dict(through_file(SimulatorState(env).state_dict()))
    assert target.value() is kept
    assert kept.tolist() == [1.0, 2.0]
    holder.array = holder.value()
    assert SimulatorState(env).inexact == ("Holder.value shows the memory of Holder.array",)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (holding(1), holding(2), "other instructions or constants"),
        ([lambda: 1], [lambda: 2], "other instructions or constants"),
        (functools.partial(np.add, 1), functools.partial(np.add, 2), "other instructions"),
        (holding(np.zeros(2)), holding(np.zeros(3)), "another array"),
    ],
)
def test_functions_of_one_name_are_told_apart(one: Any, other: Any, message: str) -> None:
    (env, holder), (there, target) = held(), held()
    holder.value, target.value = one, other
    loaded = SimulatorState(there)
    loaded.load_state_dict(SimulatorState(env).state_dict())
    (reason,) = loaded.inexact
    assert message in reason


def test_tensors_that_share_memory_are_named() -> None:
    env, holder = held()
    holder.array = np.zeros(2)
    holder.tensor = torch.from_numpy(holder.array)
    assert "shows the memory of" in " ".join(SimulatorState(env).inexact)
    holder.array = None
    holder.rows = [*torch.zeros(2, 3)]
    assert SimulatorState(env).inexact == ()
    holder.half = holder.rows[0][:2]
    assert "shows the memory of" in " ".join(SimulatorState(env).inexact)


def test_a_list_with_the_environment_in_it_is_named() -> None:
    env, holder = held()
    holder.value = [holder, 1]
    assert SimulatorState(env).inexact == ("Holder.value is a builtins.list that holds a " + NAME,)


NAME = f"{Holder.__module__}.Holder"


def test_metadata_and_like_names_are_read_where_they_are_state() -> None:
    (env, holder), (other, target) = held(), held()
    holder.metadata = {"render_modes": [], "level": 3}
    holder.value, target.value = Counter(), Counter()
    holder.value.metadata = holder._saved_kwargs = holder.value._ezpickle_args = 5
    assert SimulatorState(env).inexact == ()
    SimulatorState(other).load_state_dict(through_file(SimulatorState(env).state_dict()))
    assert target.metadata == holder.metadata
    assert (target._saved_kwargs, target.value.metadata, target.value._ezpickle_args) == (5, 5, 5)


class Own(Holder):
    """Saves itself, as NumPy's and Python's objects."""

    more: Any = 1

    def state_dict(self) -> dict[str, Any]:
        return {"x": np.arange(3), "rng": self.np_random.bit_generator.state, "more": self.more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.x = state["x"]
        self.np_random.bit_generator.state = state["rng"]
        self.more = state["more"]


def test_arrays_in_an_environments_own_state_are_saved() -> None:
    (env, holder), (other, target) = held(Own), held(Own)
    holder.more = {1: [np.float32(2.0), torch.ones(1)], "a": None}
    holder.np_random.normal()
    assert SimulatorState(env).inexact == ()
    SimulatorState(other).load_state_dict(through_file(SimulatorState(env).state_dict()))
    assert target.x.tolist() == [0, 1, 2]
    assert repr(target.more) == repr(holder.more)
    assert target.np_random.normal() == holder.np_random.normal()


@pytest.mark.parametrize(
    "value",
    [len, Counter(), {1}, Box(0, 1), [{"a": print}]],
    ids=["function", "object", "set", "space", "nested function"],
)
def test_what_cannot_be_saved_of_an_own_state_is_named(value: Any) -> None:
    env, holder = held(Own)
    holder.more = value
    state = SimulatorState(env)
    (reason,) = state.inexact
    assert "Own.state_dict()['more']" in reason
    state.load_state_dict(through_file(state.state_dict()))
    assert any("KeyError('more')" in reason for reason in state.inexact)


def test_errors_of_an_environment_are_named() -> None:
    class Broken(Own):
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("not today")

        @property
        def inexact(self) -> tuple[str, ...]:
            raise RuntimeError("nor tomorrow")

    env, _ = held(Broken)
    text = " ".join(SimulatorState(env).inexact)
    assert "not today" in text
    assert "nor tomorrow" in text


def test_a_reward_with_noise_of_its_own_is_named() -> None:
    generator = np.random.default_rng(0)

    def noisy(env: Any) -> Any:
        return TransformReward(env, lambda reward: reward + generator.normal())

    (reason,) = SimulatorState(make_env("Pendulum-v1", wrappers=[noisy])).inexact
    assert re.search("TransformReward.func is a function that holds a numpy.*Generator", reason)


def test_a_box2d_task_of_ones_own_is_named() -> None:
    lander: Any = type(make_env("LunarLander-v3")._env.envs[0].unwrapped)

    class Curriculum(lander):
        level = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.level += 1
            return super().reset(seed=seed, options=options)

    env, _ = held(Curriculum)
    (reason,) = SimulatorState(env).inexact
    assert "<Curriculum outlives an episode" in reason


def test_an_attribute_that_a_box2d_task_was_given_is_named() -> None:
    env, other = make_env("LunarLander-v3", seed=0), make_env("LunarLander-v3", seed=0)
    env._env.envs[0].unwrapped.wind_power = 3.0
    loaded = SimulatorState(other)
    loaded.load_state_dict(SimulatorState(env).state_dict())
    assert "ended elsewhere" in " ".join(loaded.inexact)


def test_a_closed_environment_can_be_saved_and_goes_on_in_another() -> None:
    env, other = make_env("Pendulum-v1", seed=0), make_env("Pendulum-v1", seed=1)
    env.close()
    loaded = SimulatorState(other)
    loaded.load_state_dict(SimulatorState(env).state_dict())
    assert loaded.inexact == ()
    theirs, ours = (e._env.envs[0].unwrapped.state for e in (env, other))
    np.testing.assert_array_equal(theirs, ours)
