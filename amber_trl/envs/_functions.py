"""What functions carry along, and whether one is like another."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from amber_trl.envs import _codecs as codecs

CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    np.ufunc,
    type(np.clip),  # NumPy's own functions
)
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


@dataclass
class Function:
    """A function or class, and all that it and those inside it hold.

    Args:
        value: a function, method, class, module or ``functools.partial``.
    """

    value: Any
    arrays: list[codecs.Array] = field(default_factory=list, init=False)
    """Arrays that it holds, in the order in which they are found."""
    objects: list[tuple[str, Any]] = field(default_factory=list, init=False)
    """What else it holds that may change, and how."""
    problems: list[str] = field(default_factory=list, init=False)
    """What it keeps where it cannot be read."""

    def __post_init__(self) -> None:
        self._known = hashlib.sha256()
        self._waiting: list[tuple[str, Any]] = [("", self.value)]
        seen: dict[int, tuple[int, Any]] = {}
        while self._waiting:
            relation, value = self._waiting.pop()
            if _is_constant(value):
                self._tell(type(value).__name__, value.name if isinstance(value, Enum) else value)
            elif id(value) in seen:
                self._tell("again", seen[id(value)][0])
            else:
                seen[id(value)] = len(seen), value
                self._look(relation, value)

    @property
    def name(self) -> str:
        """Its module and name."""
        return _name(self.value)

    @property
    def digest(self) -> str:
        """Of its instructions and of the constants that it holds."""
        return self._known.hexdigest()

    def _tell(self, *what: Any) -> None:
        self._known.update(repr(what).encode())

    def _look(self, relation: str, value: Any) -> None:
        if isinstance(value, CODE):
            self._tell(_name(value))
            self._waiting += self._held(value)
        elif type(value) in (tuple, frozenset):
            items = value if type(value) is tuple else sorted(value, key=repr)
            self._tell(type(value).__name__, len(items))
            self._waiting += [(relation, item) for item in items]
        elif codecs.is_readable_array(value) and not relation.startswith("a method"):
            self.arrays.append(value)
        else:
            self.objects.append((relation, value))

    def _held(self, code: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(code, types.MethodType | types.BuiltinFunctionType):
            yield "a method of", code.__self__
        if isinstance(code, types.MethodType):
            if type(code.__func__).__module__.startswith("_cython"):
                self._tell(_name(code.__func__))
            else:
                yield "a method made of", code.__func__
        relation = "a function that holds"
        if isinstance(code, functools.partial):
            for value in (code.func, *code.args, tuple(code.keywords), *code.keywords.values()):
                yield relation, value
        if isinstance(code, types.FunctionType):
            self._tell(*_instructions(code.__code__))
            for cell in code.__closure__ or ():
                yield from self._contents(cell)
            keywords = code.__kwdefaults__ or {}
            for value in (code.__defaults__, tuple(keywords), *keywords.values()):
                yield relation, value
            for name in sorted(_written(code.__code__, set(code.__code__.co_freevars))):
                self.problems.append(f"a function that writes its variable {name!r}")
        if isinstance(code, types.FunctionType | functools.partial):
            for name, value in vars(code).items():
                if isinstance(value, CODE):
                    yield relation, value
                else:
                    self.problems.append(f"a function with the attribute {name!r}")

    def _contents(self, cell: Any) -> Iterator[tuple[str, Any]]:
        try:
            yield "a function that holds", cell.cell_contents
        except ValueError:
            self.problems.append("a function with a variable that has no value yet")


def _is_constant(value: Any) -> bool:
    if isinstance(value, np.generic):
        return value.dtype.kind in "biufcSUmM"
    return type(value) in _CONSTANTS or isinstance(value, Enum)


def _name(code: Any) -> str:
    if isinstance(code, functools.partial):
        return f"partial of {_name(code.func)}"
    name = getattr(code, "__qualname__", None) or getattr(code, "__name__", type(code).__name__)
    return f"{getattr(code, '__module__', None)}.{name}"


def _instructions(code: types.CodeType) -> Iterator[Any]:
    yield code.co_code
    yield code.co_names
    yield from _in_order(code.co_consts)


def _in_order(constants: Iterable[Any]) -> Iterator[Any]:
    for constant in constants:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
        else:
            yield sorted(map(repr, constant)) if type(constant) is frozenset else constant


def _written(code: types.CodeType, names: set[str]) -> set[str]:
    """Which of those variables of outer functions the code, or one within it, writes."""
    found = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in names
    }
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= _written(inner, names.intersection(inner.co_freevars))
    return found
