"""The grid: setups by name, the parts of the paper's study, and the runs that they come to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ppo_amber_mujoco import Config

from amber_trl.envs import TASKS

Protocol = Literal["default", "paper"]

LENGTHS = (2, 4, 6, 8)
"""Replay lengths of PPO-MBER in the paper."""
SETUPS: dict[str, dict[str, Any]] = {
    "ppo": {"setup": "ppo"},
    **{f"mber_l{length}": {"setup": "mber", "num_batches": length} for length in LENGTHS},
    "mber_episodic": {"setup": "mber", "num_batches": 2, "minibatches": "episodic"},
    "amber": {"setup": "amber"},
}
"""Options of the main recipe by the name of a setup, before any change to it."""
_DEFAULTS: dict[str, dict[str, float]] = {
    "ppo": {"clip_epsilon": 0.3, "learning_rate": 3e-4},
    "mber": {"clip_epsilon": 0.4, "learning_rate": 3e-4},
    "amber": {"clip_epsilon": 0.4, "learning_rate": 3e-4, "drop_factor": 0.25},
}
_CHANGES = {"clip": "clip_epsilon", "drop": "drop_factor", "lr": "learning_rate"}
_NUMBER = r"([0-9.]+(?:e-?[0-9]+)?|inf)"
_NAME = re.compile(rf"(\w+)(?:-clip{_NUMBER})?(?:-drop{_NUMBER})?(?:-lr{_NUMBER})?(-m64)?")
_FORM = "NAME[-clipEPSILON][-dropFACTOR][-lrRATE][-m64]"


def setup_options(name: str) -> dict[str, Any]:
    """Options of the main recipe that a setup stands for.

    A name is one of ``SETUPS``, then what differs from it, in this order: the clip range, the
    batch drop factor, the learning rate, and ``-m64`` for minibatches that stay at 64 frames.
    A setup has one name only: a change that changes nothing is refused.

    Args:
        name: such as ``amber-drop0.1`` or ``mber_l8-clip0.2-m64``.

    Raises:
        ValueError: if the name is none, or is not the setup's one name.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in SETUPS:
        raise ValueError(f"setup {name!r}: write it as {_FORM}, NAME being one of {list(SETUPS)}")
    options = dict(SETUPS[found[1]])
    defaults, proper = _DEFAULTS[options["setup"]], found[1]
    for (word, option), text in zip(_CHANGES.items(), found.groups()[1:4], strict=True):
        if text is not None and option not in defaults:
            raise ValueError(f"setup {name!r}: {found[1]} has no {option}; leave -{word} out")
        if text is not None and float(text) != defaults[option]:
            options[option] = float(text)
            proper += f"-{word}{float(text):g}"
    if found[5]:
        if options["setup"] == "ppo" or "minibatches" in options:
            raise ValueError(f"setup {name!r}: the minibatch of {found[1]} cannot stay at 64")
        options["scale_minibatch"] = False
        proper += "-m64"
    if name != proper:
        raise ValueError(f"setup {name!r} is {proper}: write it so, as each has one name only")
    return options


@dataclass(frozen=True)
class Part:
    """Some tasks times some setups, under one protocol."""

    protocol: Protocol
    tasks: tuple[str, ...]
    setups: tuple[str, ...]


def _sweep(names: Iterable[str], change: str, values: Sequence[float]) -> tuple[str, ...]:
    option = _CHANGES[change]
    return tuple(
        name if _DEFAULTS[SETUPS[name]["setup"]][option] == value else f"{name}-{change}{value:g}"
        for name in names
        for value in values
    )


_ALL = tuple(TASKS)
_HARDCORE = ("BipedalWalkerHardcore-v3",)
_MBER = tuple(f"mber_l{length}" for length in LENGTHS)
_SMALL_CLIP = _sweep(_MBER, "clip", [0.2])
PARTS: dict[str, Part] = {
    "main": Part("paper", _ALL, ("ppo", "amber")),
    "default": Part("default", _ALL, ("ppo", "amber")),
    "mber": Part("paper", _ALL, ("mber_l2",)),
    "episodic": Part(
        "paper", ("HalfCheetah-v5", "Pendulum-v1", "Swimmer-v5"), ("mber_l2", "mber_episodic")
    ),
    "minibatch": Part("paper", _HARDCORE, (*_SMALL_CLIP, *(f"{s}-m64" for s in _SMALL_CLIP))),
    "humanoid": Part(
        "paper", ("Humanoid-v5", "HumanoidStandup-v5"), ("ppo-lr4e-05", "amber-lr4e-05")
    ),
    "length": Part("paper", _ALL, _MBER),
    "drop": Part("paper", _ALL, _sweep(["amber"], "drop", [0.1, 0.15, 0.2, 0.25, 0.3])),
    "clip": Part("paper", _ALL, _sweep(["ppo", *_MBER], "clip", [0.2, 0.3, 0.4, 0.5, 0.6, 0.7])),
}
"""The paper's experiments, the ones that tell most first."""


@dataclass(frozen=True)
class Job:
    """One run: where it is in the study, and what the main recipe is to do."""

    name: str
    config: Config


def jobs(
    study: Path, parts: Iterable[Part], seeds: Sequence[int], common: dict[str, Any]
) -> list[Job]:
    """The runs of some parts, each once, seed by seed, so that a study cut short is balanced.

    Args:
        study: directory in which each has its own, ``PROTOCOL/ENV_ID/SETUP-seedSEED``.
        parts: in the order in which they are to be made.
        seeds: of every task and setup.
        common: options that all runs share.

    Raises:
        ValueError: if a setup is none, or there is no run at all.
    """
    found = {job.name: job for part in parts for job in _jobs(study, part, seeds, common)}
    if not found:
        raise ValueError("the grid is empty: name at least one part, task, setup and seed")
    return list(found.values())


def _jobs(study: Path, part: Part, seeds: Sequence[int], common: dict[str, Any]) -> Iterator[Job]:
    options = {name: setup_options(name) for name in part.setups}
    for seed in seeds:
        for task in part.tasks:
            for setup in part.setups:
                folder = task.replace("/", "-").replace(":", "-")
                name = f"{part.protocol}/{folder}/{setup}-seed{seed}"
                config = Config(env_id=task, protocol=part.protocol, seed=seed, **options[setup])
                yield Job(name, replace(config, run_dir=study / name, progress=False, **common))


def command_line(config: Config) -> list[str]:
    """The options with which the main recipe makes the same run by hand."""
    words = []
    for name, value in vars(config).items():
        option, default = name.replace("_", "-"), getattr(Config, name)
        if value != default:
            flag = f"--no-{option}" if value is False else f"--{option}"
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return words
