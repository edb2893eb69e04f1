"""Checks of arguments that are numbers: one for integers, one for real numbers."""

import math
import operator
from numbers import Real


def check_integer(name: str, value: object, *, low: int = 1) -> int:
    """Return ``value`` as an ``int`` if it is an integer of at least ``low``.

    NumPy's integers count as integers, booleans do not.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below ``low``.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: give an integer")
    try:
        number = operator.index(value)
    except TypeError as error:  # such as a tensor of several numbers
        raise TypeError(f"{name}={value!r} is not an integer: give one") from error
    if number < low:
        raise ValueError(f"{name}={value!r} is out of range: give an integer of at least {low}")
    return number


def check_number(
    name: str, value: object, *, low: float = 0.0, above: float = -math.inf, high: float = math.inf
) -> float:
    """Return ``value`` as a ``float`` if it is a number in ``[low, high]`` and above ``above``.

    NumPy's numbers count as numbers, booleans do not. An infinite ``high`` includes infinity.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is NaN or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: give a number")
    number = float(value)
    if not (low <= number <= high and number > above):
        least = f"above {above:g}" if above >= low else f"of at least {low:g}"
        most = "" if math.isinf(high) else f" and at most {high:g}"
        raise ValueError(f"{name}={value!r} is out of range: give a number {least}{most}")
    return number
