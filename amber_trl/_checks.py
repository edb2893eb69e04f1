"""Checks of arguments: integers, real numbers, and names of classes and functions."""

import importlib
import math
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any


def check_integer(name: str, value: object, *, low: int = 1) -> int:
    """Return ``value`` as an ``int`` if it is an integer of at least ``low``.

    NumPy integers are accepted; booleans are not.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: give an integer")
    number = operator.index(value)
    if number < low:
        raise ValueError(f"{name}={value!r} is out of range: give an integer of at least {low}")
    return number


def check_number(
    name: str, value: object, *, low: float = 0.0, above: float = -math.inf, high: float = math.inf
) -> float:
    """Return ``value`` as a ``float`` if it is a number in ``[low, high]`` and above ``above``.

    NumPy numbers are accepted; booleans are not. An infinite ``high`` includes infinity.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: give a number")
    number = float(value)
    if not (low <= number <= high and number > above):
        least = f"above {above:g}" if above >= low else f"of at least {low:g}"
        most = "" if math.isinf(high) else f" and at most {high:g}"
        raise ValueError(f"{name}={value!r} is out of range: give a number {least}{most}")
    return number


def with_fixed(owner: str, given: Mapping[str, Any], **fixed: Any) -> dict[str, Any]:
    """Add the arguments that a class fixes to those given, which must not contain any of them."""
    if clash := sorted(given.keys() & fixed.keys()):
        raise TypeError(f"{owner} has no argument {', '.join(clash)}: leave it out")
    return {**given, **fixed}


def import_named(argument: str, name: str) -> Callable[..., Any]:
    """Import the class or function that an option names as ``module:name``.

    Importing runs the module's code: the caller must confirm a name that comes from a file.

    Args:
        argument: name of the argument or option, for error messages.
        name: the ``module:name`` to import.

    Raises:
        ValueError: if the name does not have that form.
        ModuleNotFoundError: if the module is missing, or imports one that is.
        ImportError: if the module has no such name.
        TypeError: if the named object is not callable.

    Examples:
        >>> from amber_trl.runs import import_named
        >>> import_named("sampler", "amber_trl.data:AdaptiveMinibatchSampler")(8).frames_per_batch
        8
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"{argument}={name!r} is not of the form module:name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{argument}={name!r}: {error}; is it on PYTHONPATH?") from error
    if not hasattr(module, attribute):
        raise ImportError(f"{argument}={name!r}: {module_name} has no {attribute}")
    if not callable(found := getattr(module, attribute)):
        raise TypeError(f"{argument}={name!r} is {found!r:.80}: name a class or a function")
    return found
