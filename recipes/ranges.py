"""Ranges beside the fields of a recipe's configuration."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """Where a number, or each number of a tuple, may lie; for ``typing.Annotated``.

    Attributes:
        low: smallest value, allowed unless ``above`` is set.
        high: largest value, allowed; infinity is in range only if ``infinite`` is set.
        above: whether ``low`` itself is out of range.
        infinite: whether infinity is in range.
    """

    low: float
    high: float = math.inf
    above: bool = False
    infinite: bool = False

    def __contains__(self, value: float) -> bool:
        if math.isinf(value) and not self.infinite:
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        end = "]" if self.infinite or math.isfinite(self.high) else ")"
        return f"in {'(' if self.above else '['}{self.low}, {self.high}{end}"


def check_fields(config: Any) -> None:
    """Refuses a configuration with a field outside its annotated range.

    A field annotated ``Annotated[float, Range(0, 1)]`` must be in the range, one annotated
    ``Literal[...]`` must be one of the choices. ``None`` is not checked. Annotations of base
    classes count too.

    Raises:
        ValueError: if a field does not fit; the message names the first one, its value and the rule.
    """
    for base in reversed(type(config).__mro__[:-1]):
        for name, hint in get_type_hints(base, include_extras=True).items():
            value = getattr(config, name)
            if value is not None:
                _check_field(name, value, hint)


def _check_field(name: str, value: Any, hint: Any) -> None:
    items = value if isinstance(value, tuple | list) else (value,)
    if isinstance(hint, Range):
        if any(item not in hint for item in items):
            raise ValueError(f"{name}={value}: choose a value {hint}")
    elif get_origin(hint) is Literal:
        if any(item not in get_args(hint) for item in items):
            raise ValueError(f"{name}={value!r}: choose one of {list(get_args(hint))}")
    else:  # a Range may be nested in a union or a tuple
        for part in get_args(hint):
            _check_field(name, value, part)
