import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from ranges import Range, check_fields


@dataclass(frozen=True, kw_only=True)
class _Config:
    name: str = "x"
    gamma: Annotated[float, Range(0, 1)] = 0.5
    rate: Annotated[float, Range(0, above=True)] = 1.0
    drop: Annotated[float | None, Range(0, infinite=True)] = None
    sizes: Annotated[tuple[int, ...], Range(1)] = (1, 2)
    mode: Literal["a", "b"] = "a"
    kind: Literal["c", "d"] | None = None


@dataclass(frozen=True, kw_only=True)
class _Narrower(_Config):
    gamma: float = 0.5


def test_values_in_range_pass() -> None:
    check_fields(_Config())
    check_fields(_Config(gamma=0, rate=1e300, drop=math.inf, sizes=(), mode="b", kind="d"))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("gamma", -0.1, "in [0, 1]"),
        ("gamma", 1.1, "in [0, 1]"),
        ("gamma", math.nan, "in [0, 1]"),
        ("rate", 0.0, "in (0, inf)"),
        ("rate", math.inf, "in (0, inf)"),
        ("drop", -1.0, "in [0, inf]"),
        ("drop", math.nan, "in [0, inf]"),
        ("sizes", (4, 0), "in [1, inf)"),
        ("mode", "z", "one of ['a', 'b']"),
        ("kind", "z", "one of ['c', 'd']"),
    ],
)
def test_values_out_of_range_raise_with_name_value_and_rule(
    field: str, value: object, rule: str
) -> None:
    with pytest.raises(ValueError, match=r"choose") as raised:
        check_fields(_Config(**{field: value}))  # type: ignore[arg-type]
    message = str(raised.value)
    assert message.startswith(f"{field}=")
    assert str(value) in message
    assert message.endswith(rule)


def test_the_base_class_ranges_hold_in_a_subclass() -> None:
    with pytest.raises(ValueError, match="gamma=2"):
        check_fields(_Narrower(gamma=2))


@dataclass(frozen=True, kw_only=True)
class _Deep:
    one: Annotated[float, Range(0, 1)] | None = None
    several: tuple[Annotated[int, Range(1)], ...] = ()
    names: tuple[Literal["a", "b"], ...] = ()


def test_a_rule_counts_however_deep_it_stands() -> None:
    check_fields(_Deep(one=0.5, several=(1, 2), names=("a",)))
    for field, value in {"one": 5.0, "several": (1, 0), "names": ("a", "c")}.items():
        with pytest.raises(ValueError, match=field):
            check_fields(_Deep(**{field: value}))  # type: ignore[arg-type]
