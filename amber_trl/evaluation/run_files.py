"""The files of a run directory: each is read here, and refused where it is not as a run left it."""

from __future__ import annotations

import gzip
import io
import json
import reprlib
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

_WAY_OUT = "make the run anew, or remove it"


class RunError(ValueError):
    """A run, or a set of runs, cannot be evaluated; the message names the run.

    Examples:
        >>> from amber_trl.evaluation import RunError
        >>> issubclass(RunError, ValueError)
        True
    """


class UnfinishedRunError(RunError):
    """A run has not ended, was ended before its time, or has no score yet.

    Examples:
        >>> from amber_trl.evaluation import RunError, UnfinishedRunError
        >>> issubclass(UnfinishedRunError, RunError)
        True
    """


def read_config(run: Path) -> dict[str, Any]:
    """What ``config.json`` holds, with every field that a study needs.

    Args:
        run: the run directory.

    Raises:
        UnfinishedRunError: if it is not there.
        RunError: if it cannot be read, or lacks a field, or one is not what it should be.
    """
    return _checked(run / "config.json", _CONFIG)


def read_summary(run: Path) -> dict[str, Any]:
    """What ``summary.json`` holds, as :func:`read_config` reads ``config.json``."""
    return _checked(run / "summary.json", _SUMMARY)


def read_versions(run: Path) -> dict[str, str]:
    """What ``versions.json`` holds: text, by the names of packages."""
    file = run / "versions.json"
    if not file.exists():
        raise RunError(f"{file} is missing, which a run writes when it starts; {_WAY_OUT}")
    versions = _read_json(file)
    _check(file, versions, dict.fromkeys([*_VERSIONS, *versions], _TEXT))
    return versions


def table_file(run: Path, name: str) -> Path:
    """The file of a table, plain or compressed.

    Args:
        run: the run directory.
        name: ``episodes`` or ``iterations``.

    Raises:
        RunError: if there is none, or both are there.
    """
    files = [file for end in ("csv", "csv.gz") if (file := run / f"{name}.{end}").exists()]
    if len(files) == 1:
        return files[0]
    if files:
        raise RunError(f"{run} has both {name}.csv and {name}.csv.gz: remove one of the two")
    raise RunError(f"{run} has neither {name}.csv nor {name}.csv.gz; {_WAY_OUT}")


def read_table(file: Path, types: Mapping[str, Any]) -> pd.DataFrame:
    """A table of numbers.

    Args:
        file: as :func:`table_file` finds it.
        types: of the columns that must be there, by name.

    Raises:
        RunError: if it cannot be read, is cut off, lacks one of those columns, or holds anything
            else than numbers.
    """
    try:
        contents = file.read_bytes()
        if file.suffix == ".gz":
            contents = gzip.decompress(contents)
        table = pd.read_csv(io.BytesIO(contents), dtype=dict(types))
    except (OSError, EOFError, ValueError, OverflowError, zlib.error) as error:
        raise RunError(f"{file}: cut off or damaged ({error}); {_WAY_OUT}") from error
    if not contents.endswith(b"\n"):
        raise RunError(f"{file}: cut off or damaged (its last row has no end); {_WAY_OUT}")
    if lacking := [column for column in types if column not in table]:
        raise RunError(f"{file}: no column {lacking}; {_WAY_OUT}")
    others = list(table.select_dtypes(exclude="number"))
    if others and len(table):
        raise RunError(f"{file}: columns {others} hold something else than numbers; {_WAY_OUT}")
    return table


_Rule = tuple[str, Callable[[Any], bool]]


def _whole(low: int) -> _Rule:
    return f"a whole number of at least {low}", lambda value: type(value) is int and value >= low


def _choice(*words: str) -> _Rule:
    return f"one of {list(words)}", lambda value: value in words


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _at_least(low: float) -> _Rule:
    return f"a finite number of at least {low}", lambda value: _is_number(value) and value >= low


_TEXT: _Rule = "text", lambda value: isinstance(value, str) and value != ""
_TASK: _Rule = (
    "printable text without |, which would break a table",
    lambda value: (
        isinstance(value, str) and value.isprintable() and value != "" and "|" not in value
    ),
)
_BOOL: _Rule = "true or false", lambda value: isinstance(value, bool)
_POSITIVE: _Rule = "a finite number above 0", lambda value: _is_number(value) and value > 0
_SCORE: _Rule = "a finite number, or null", lambda value: value is None or _is_number(value)

_CONFIG = {
    "env_id": _TASK,
    "setup": _choice("ppo", "mber", "amber"),
    "protocol": _choice("default", "paper"),
    "seed": _whole(0),
    "total_frames": _whole(1),
    "num_envs": _whole(1),
    "time_limits": _choice("bootstrap", "terminal"),
    "frames_per_batch": _whole(1),
    "num_batches": _whole(1),
    "drop_factor": (
        'a finite number of at least 0, "inf" or null',
        lambda value: value in (None, "inf") or (_is_number(value) and value >= 0),
    ),
    "staleness_metric": _TEXT,
    "epochs": _whole(1),
    "minibatch_size": _whole(1),
    "scale_minibatch": _BOOL,
    "minibatches": _choice("uniform", "episodic"),
    "learning_rate": _POSITIVE,
    "clip_epsilon": _POSITIVE,
    "gamma": _at_least(0),
    "gae_lambda": _at_least(0),
    "normalize_advantage": _choice("batch", "minibatch", "none"),
    "critic_coeff": _at_least(0),
    "entropy_coeff": _at_least(0),
    "max_grad_norm": (
        "a finite number above 0, or null",
        lambda value: value is None or (_is_number(value) and value > 0),
    ),
    "hidden_sizes": (
        "a list of whole numbers of at least 1",
        lambda value: isinstance(value, list) and all(type(n) is int and n > 0 for n in value),
    ),
}
# What every run needs; of the simulators a run has what is installed.
_VERSIONS = ("python", "amber_trl", "torch", "torchrl", "tensordict", "gymnasium", "numpy")
_SUMMARY = {
    "final_score": _SCORE,
    "speed_score": _SCORE,
    "frames": _whole(0),
    "episodes": _whole(0),
    "seconds": _at_least(0),
    "interrupted": _BOOL,
    "versions": ("an object", lambda value: isinstance(value, dict)),
}


def _checked(file: Path, rules: Mapping[str, _Rule]) -> dict[str, Any]:
    contents = _read_json(file)
    _check(file, contents, rules)
    return contents


def _check(file: Path, contents: Mapping[str, Any], rules: Mapping[str, _Rule]) -> None:
    if lacking := [name for name in rules if name not in contents]:
        raise RunError(f"{file} lacks {lacking}, which the main recipe writes; {_WAY_OUT}")
    for name, (words, fits) in rules.items():
        if not fits(contents[name]):
            value = reprlib.repr(contents[name])
            raise RunError(f"{file}: {name}={value}: it must be {words}; {_WAY_OUT}")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        contents = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise UnfinishedRunError(
            f"{file.parent}: no {file.name}, so the run has not ended, or was killed; finish it, "
            "or remove it"
        ) from error
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error.strerror}): see to that") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file} is no JSON ({error}); {_WAY_OUT}") from error
    if not isinstance(contents, dict):
        raise RunError(f"{file} holds no object; {_WAY_OUT}")
    return contents
