"""Names of classes and functions, from a command line."""

import math

import pytest

from amber_trl._checks import import_named


def test_a_name_is_imported() -> None:
    assert import_named("wrappers", "math:sqrt") is math.sqrt


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("sqrt", ValueError),
        ("math:", ValueError),
        (":sqrt", ValueError),
        ("no_such_module:sqrt", ModuleNotFoundError),
        ("math:sqr", ImportError),
        ("math:pi", TypeError),
    ],
)
def test_names_of_nothing_callable_are_refused_by_argument(name: str, error: type) -> None:
    with pytest.raises(error, match=f"wrappers='{name}'"):
        import_named("wrappers", name)
