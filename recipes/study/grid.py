"""The grid: setups by name, the parts of the paper's study, and the runs that they come to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ppo_amber_config import Config, resolve

from amber_trl.envs import TASKS
from study.setups import Setup

Protocol = Literal["default", "paper"]

_NUMBERS: dict[str, tuple[str, type[int] | type[float]]] = {
    "l": ("num_batches", int),
    "clip": ("clip_epsilon", float),
    "drop": ("drop_factor", float),
    "lr": ("learning_rate", float),
}
_WORDS: dict[str, tuple[str, Any]] = {
    "m64": ("scale_minibatch", False),
    "episodic": ("minibatches", "episodic"),
}


def setup_options(name: str) -> dict[str, Any]:
    """Options of the main recipe that a setup stands for.

    Args:
        name: ``ppo``, ``mber`` or ``amber``, then what it changes, each after an underscore: ``l``,
            ``clip``, ``drop`` or ``lr`` and the number, ``m64``, ``episodic``.

    Raises:
        ValueError: if the name is none.

    Examples:
        >>> setup_options("mber_l8_clip0.2_m64")
        {'setup': 'mber', 'num_batches': 8, 'clip_epsilon': 0.2, 'scale_minibatch': False}
    """
    method, *changes = name.split("_")
    options: dict[str, Any] = {"setup": method}
    for change in changes:
        try:
            if change in _WORDS:
                option, value = _WORDS[change]
            else:
                word, number = re.split(r"(?=\d|inf$)", change, maxsplit=1)
                option, kind = _NUMBERS[word]
                value = kind(number)
        except (KeyError, ValueError):
            raise ValueError(
                f"setup {name!r}: {change!r} is no change to one; write ppo, mber or amber, and "
                "after it _l8, _clip0.2, _drop0.1, _lr4e-5, _m64 or _episodic"
            ) from None
        if option in options:
            raise ValueError(f"setup {name!r} gives {option} twice: leave out one of the two")
        options[option] = value
    return options


@dataclass(frozen=True)
class Part:
    """Some tasks times some setups, under one protocol."""

    protocol: Protocol
    tasks: tuple[str, ...]
    setups: tuple[str, ...]


_ALL = tuple(TASKS)
_MBER = ("mber_l2", "mber_l4", "mber_l6", "mber_l8")
_CLIPS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_DROPS = (0.1, 0.15, 0.2, 0.25, 0.3)
_HARDCORE = ("BipedalWalkerHardcore-v3",)
_UNIFORM_AND_EPISODIC = ("HalfCheetah-v5", "Pendulum-v1", "Swimmer-v5")
_HUMANOIDS = ("Humanoid-v5", "HumanoidStandup-v5")
_FIXED = tuple(f"{setup}_clip0.2{m}" for setup in _MBER for m in ("", "_m64"))
_CLIPPED = tuple(f"{setup}_clip{clip}" for setup in ("ppo", *_MBER) for clip in _CLIPS)
_DROPPED = tuple(f"amber_drop{drop}" for drop in _DROPS)
PARTS: dict[str, Part] = {
    "main": Part("paper", _ALL, ("ppo", "amber")),
    "control": Part("paper", _ALL, ("ppo_clip0.4",)),
    "default": Part("default", _ALL, ("ppo", "amber")),
    "mber": Part("paper", _ALL, ("mber_l2",)),
    "episodic": Part("paper", _UNIFORM_AND_EPISODIC, ("mber_l2", "mber_l2_episodic")),
    "minibatch": Part("paper", _HARDCORE, _FIXED),
    "humanoid": Part("paper", _HUMANOIDS, ("ppo_lr4e-5", "amber_lr4e-5")),
    "length": Part("paper", _ALL, _MBER),
    "drop": Part("paper", _ALL, _DROPPED),
    "clip": Part("paper", _ALL, _CLIPPED),
}
"""The paper's experiments, those first that tell most."""


@dataclass(frozen=True)
class Job:
    """One run: its directory in the study, and what the main recipe is to do."""

    name: str
    config: Config
    total_frames: int

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        assert self.config.run_dir is not None
        return self.config.run_dir


def jobs(
    study: Path, parts: Iterable[Part], seeds: Sequence[int], common: dict[str, Any]
) -> list[Job]:
    """The runs of some parts, each once, and part by part seed by seed, to be even if cut short.

    Args:
        study: directory in which each has its own, ``PROTOCOL/ENV_ID/SETUP-seedSEED``, SETUP being
            the name that :class:`study.setups.Setup` gives it.
        parts: in the order in which they are to be made.
        seeds: of every task and setup.
        common: options that all runs share.

    Raises:
        ValueError: if a setup is none, or options contradict each other.
    """
    found: dict[str, Job] = {}
    for part in parts:
        for job in _jobs(study, part, seeds, common):
            found.setdefault(job.name, job)
    return list(found.values())


def _jobs(study: Path, part: Part, seeds: Sequence[int], common: dict[str, Any]) -> Iterator[Job]:
    options = {name: setup_options(name) for name in part.setups}
    for seed in seeds:
        for task in part.tasks:
            folder = task.replace("/", "-").replace(":", "-")
            for setup in part.setups:
                given = {**options[setup], **common, "progress": False}
                config = Config(env_id=task, protocol=part.protocol, seed=seed, **given)
                try:
                    effective = resolve(config)
                except ValueError as error:
                    raise ValueError(f"setup {setup!r}: {error}") from error
                proper = Setup.from_config(asdict(effective)).name
                name = f"{part.protocol}/{folder}/{proper}-seed{seed}"
                config = replace(config, run_dir=study / name)
                yield Job(name, config, effective.total_frames)


def command_line(config: Config) -> str:
    """The command that makes the same run by hand."""
    words = ["python", "recipes/ppo_amber_mujoco.py"]
    for name, value in vars(config).items():
        if value != getattr(Config, name):
            option = name.replace("_", "-")
            flag = f"--no-{option}" if value is False else f"--{option}"
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    return shlex.join(words)
