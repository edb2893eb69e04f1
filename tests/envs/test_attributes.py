"""What custom environments may store, and get back bit for bit."""

import enum
import functools
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from amber_trl.envs import SimulatorState
from tests.envs.holder import Holder, holders, moved, pass_on

NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    NUMBERS | st.floats(width=32, allow_nan=False).map(np.float32),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=3))
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=10,
)


class Phase(enum.Enum):
    UP = 1
    DOWN = 2


@settings(max_examples=60, deadline=None)
@given(value=VALUES)
def test_plain_values_keep_value_and_type(value: Any) -> None:
    got = moved(value)
    assert got == value
    assert repr(got) == repr(value)  # types, signs of zeros, a deque's length
    assert got is not value or not isinstance(value, list | dict | deque)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        np.array(0.5, np.float32),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array([np.nan, -0.0], np.float16),
        np.array([2**64 - 1], np.uint64),
        np.array([["S", "FH"]]),
        np.array([b"S", b"FH"]),
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


def test_a_state_shares_no_memory() -> None:
    env, (holder,) = holders()
    holder.array, holder.tensor = np.zeros(2), torch.zeros(2)
    state = SimulatorState(env)
    saved = state.state_dict()
    for _ in range(2):
        holder.array += 1
        holder.tensor += 1
        state.load_state_dict(saved)
        assert holder.array.tolist() == holder.tensor.tolist() == [0, 0]


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
def test_generators_continue(make: Any, there: bool) -> None:
    def draw(generator: Any) -> list[float]:
        normal = getattr(generator, "normal", None) or generator.gauss
        return [normal(0.0, 1.0) for _ in range(3)]

    value = make(1)
    draw(value)
    current = make(2) if there else None
    got = moved(value, current)
    assert (got is current) == there  # set in place, so that functions that hold it continue too
    assert draw(got) == draw(value)


def test_enumerations_and_functions_come_from_the_new_environment() -> None:
    assert moved(Phase.DOWN, Phase.UP) is Phase.DOWN
    for configuration in (np.clip, [np.add, len], functools.partial(np.add, 1), Phase, random):
        assert moved(configuration, configuration) is configuration


def test_shared_values_stay_shared() -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    holder.one = [np.zeros(2)]
    holder.other, holder.array = holder.one, holder.one[0]
    assert pass_on(env, other).inexact == ()
    assert target.one is target.other
    assert target.array is target.one[0]


def test_a_generator_shared_between_copies_stays_shared() -> None:
    (env, copies), (other, targets) = holders(2), holders(2)
    for group in (copies, targets):
        group[0].shared = group[1].shared = np.random.default_rng(3)
    copies[0].shared.normal()
    pass_on(env, other)
    assert targets[0].shared is targets[1].shared
    assert targets[1].shared.normal() == copies[1].shared.normal()


def test_spaces_within_spaces_continue() -> None:
    (env, (holder,)), (other, (target,)) = holders(), holders()
    for one in (holder, target):
        one.space = Dict({"a": Box(0.0, 1.0), "b": Dict({"c": Discrete(1000)})})
    holder.space.seed(5)
    pass_on(env, other)
    for _ in range(3):
        assert repr(target.space.sample()) == repr(holder.space.sample())


def test_attributes_that_only_the_new_environment_has_are_removed() -> None:
    (env, _), (other, (target,)) = holders(), holders()
    target.bonus = 1.0
    pass_on(env, other)
    assert not hasattr(target, "bonus")


def test_an_environment_may_save_itself() -> None:
    class Own(Holder):
        inexact = ("the weather is not saved",)

        def __init__(self) -> None:
            self.hidden = [iter([]), {1: np.zeros(2)}]

        def state_dict(self) -> dict[str, Any]:
            return {"hidden": self.hidden[1], "rng": self.np_random}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.hidden[1], self._np_random = state["hidden"], state["rng"]

    (env, (holder,)), (other, (target,)) = holders(kind=Own), holders(kind=Own)
    holder.hidden[1][1] += 7
    holder.np_random.normal()
    assert pass_on(env, other).inexact == ("the weather is not saved",)
    assert target.hidden[1][1].tolist() == [7, 7]
    assert target.np_random.normal() == holder.np_random.normal()
