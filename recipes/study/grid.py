"""The study as a table: its parts, the setups by name, and the resulting runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from comparators import acer, trpo
from comparators.common import ComparatorConfig, settle
from ppo_amber_config import Config, EffectiveConfig, resolve

from amber_trl.envs import TASKS
from study.setups import NUMBERS, WORDS, Setup

Protocol = Literal["default", "paper"]


@dataclass(frozen=True)
class Part:
    """A question, and the runs that answer it: each setup on each task with each seed."""

    question: str
    setups: tuple[str, ...]
    tasks: tuple[str, ...] = tuple(TASKS)
    seeds: tuple[int, ...] = (0, 1, 2)
    protocol: Protocol = "paper"


_FIVE = (0, 1, 2, 3, 4)
_REPLAYED = ("Pendulum-v1", "Swimmer-v5", "HalfCheetah-v5")
_HUMANOIDS = ("Humanoid-v5", "HumanoidStandup-v5")
_FIXED_CLIP = tuple(f"mber_l{length}_clip0.2" for length in (2, 4, 6, 8))
_SMALL_STEP = ("ppo_lr4e-5", "amber_lr4e-5")
_USUAL = (
    *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v4"),
    *("Swimmer-v5", "BipedalWalker-v3", "Pendulum-v1"),
)
_SCREENED = ("HalfCheetah-v5", "Walker2d-v4", "Hopper-v5", "Swimmer-v5")
_CHANGES = (
    *("_perdim_drop0.1", "_disc", "_geppo_clip0.2", "_sigma0.3_gipo", "_recomputed"),
    *("_gaev", "_gaev_criticall", "_use3", "_use3_geppo_clip0.2"),
)
_SWEPT = ("Pendulum-v1", "HalfCheetah-v5")
_CLIPS = tuple(f"{method}_clip{clip}" for clip in (0.2, 0.4, 0.6) for method in ("ppo", "amber"))

PARTS: dict[str, Part] = {
    "main": Part("Does AMBER beat PPO?", ("ppo", "amber"), seeds=_FIVE),
    "control": Part("Is it only the wider clip range?", ("ppo_clip0.4",), seeds=_FIVE),
    "episodic": Part(
        "Contiguous minibatches or uniform ones?", ("mber_l2", "mber_l2_episodic"), _REPLAYED, _FIVE
    ),
    "minibatch": Part(
        "Minibatches of 64 frames or 64 L?",
        ("ppo_clip0.2", *(name for setup in _FIXED_CLIP for name in (setup, f"{setup}_m64"))),
        ("BipedalWalkerHardcore-v3",),
    ),
    "mber": Part("Do two batches, never dropped, help?", ("mber_l2",)),
    "length": Part("Do more batches help?", ("mber_l4", "mber_l6", "mber_l8"), _REPLAYED),
    "step": Part("Does a small step size let old batches in?", _SMALL_STEP, _HUMANOIDS),
    "default": Part(
        "What do eight environments change?", ("ppo", "amber"), _USUAL, protocol="default"
    ),
    "clip": Part("Which clip range?", _CLIPS, _SWEPT),
    "drop": Part("Which drop factor?", ("amber_drop0.1", "amber_drop0.3"), _SWEPT),
    "drop_per_clip": Part(  # 0.625 in both, as in the default
        "Does the drop factor count relative to the clip range?",
        ("amber_clip0.2_drop0.125", "amber_clip0.6_drop0.375"),
        _SWEPT,
    ),
    "age": Part(
        "How stale do batches become, and how many are used?",
        ("mber_l8", "amber_drop0.1", "amber_drop0.3"),
        ("Pendulum-v1", "BipedalWalkerHardcore-v3", "Humanoid-v5"),
    ),
    "trpo": Part("How does TRPO do?", ("trpo",), seeds=(0, 1)),
    "acer": Part("How does ACER do?", ("acer",), _USUAL, (0, 1)),
    "screen_n": Part(
        "Fewer new frames and more batches per iteration?",
        ("ppo_n512", "ppo_n1024", "ppo", "amber_n512_l32", "amber_n1024_l16", "amber"),
        _SCREENED,
        (100, 101),
    ),
    "screen_one": Part("What does one change bring?", _CHANGES, _SCREENED, (100, 101)),
    "authors": Part(
        "What do DISC and GePPO reach as published?",
        ("disc_scaled", "geppo_scaled"),
        _SCREENED,
        (100, 101),
    ),
}
"""The parts, most worthwhile first. A setup that starts with ``_`` is a change of the base setup, which
is an option of the study."""

PAPER: dict[str, tuple[str, ...]] = {
    "Figure 2": ("minibatch",),
    "Figures 3 and 5": ("age",),
    "Figure 4": ("episodic",),
    "Figure 6, Tables 3 and 4": ("main", "mber", "length"),
    "Figure 7": ("trpo", "acer"),
    "Figure 8": ("step",),
    "Tables 5 to 8, in part": ("clip", "drop"),
}
"""The parts that repeat what the paper's figures and tables of results show."""

_NUMBERS = {word: option for option, word in NUMBERS.items()}
_WORDS = {word: (option, value) for option, own in WORDS.items() for value, word in own.items()}
_COMPARATORS: dict[str, type[ComparatorConfig]] = {"trpo": trpo.Config, "acer": acer.Config}
_INTEGERS = ("frames_per_batch", "num_batches", "batches_in_use")


def changed(part: Part, base: str) -> Part:
    """The part with each setup that starts with ``_`` applied to the setup ``base``."""
    names = tuple(f"{base}{name}" if name.startswith("_") else name for name in part.setups)
    return replace(part, setups=names)


def setup_options(name: str) -> dict[str, Any]:
    """The main recipe's options that a setup's name stands for.

    After the method come its changes, each after an underscore: a word of
    :data:`study.setups.NUMBERS` with its number, or one of :data:`study.setups.WORDS`.

    Raises:
        ValueError: if a change is unknown or an option is given twice.
    """
    method, *changes = name.split("_")
    options: dict[str, Any] = {"setup": method}
    for change in changes:
        try:
            if change in _WORDS:
                option, value = _WORDS[change]
            else:
                word, number = re.split(r"(?=\d|inf$)", change, maxsplit=1)
                option = _NUMBERS[word]
                value = int(number) if option in _INTEGERS else float(number)
        except (KeyError, ValueError):
            raise ValueError(
                f"setup {name!r}: unknown change {change!r}; write a setup such as amber, followed by "
                "any of _n1024, _l8, _clip0.2, _drop0.1, _lr4e-5, _sigma0.3, _use3, _ess3, "
                f"{', '.join('_' + word for word in _WORDS)}"
            ) from None
        if option in options:
            raise ValueError(f"setup {name!r} gives {option} twice: leave out one of the two")
        options[option] = value
    return options


@dataclass(frozen=True)
class Job:
    """One run: its name, directory, recipe and options."""

    name: str
    run_dir: Path
    options: dict[str, Any]
    comparator: str | None = None
    """The comparator whose recipe makes the run; None is the main recipe."""

    @property
    def recipe(self) -> str:
        """The recipe's file, from the root of the project."""
        where = "ppo_amber_mujoco" if self.comparator is None else f"comparators/{self.comparator}"
        return f"recipes/{where}.py"

    @property
    def config(self) -> EffectiveConfig | ComparatorConfig:
        """The resolved options."""
        if self.comparator is None:
            return resolve(Config(**self.options, run_dir=self.run_dir))
        config = _COMPARATORS[self.comparator](**self.options, run_dir=self.run_dir)
        return settle(config, self.comparator)


def jobs(study: Path, part: Part, shared: Mapping[str, Any]) -> list[Job]:
    """The runs of a part, seed by seed, so that all setups have equally many if time runs out.

    Each has its own directory, ``PROTOCOL/ENV_ID/SETUP-seedSEED``, where SETUP is the name that
    :class:`study.setups.Setup` gives the configuration, however the part spells it. ``shared`` are
    further options for all runs; comparators are not compiled.

    Raises:
        ValueError: if a setup's name is wrong or its options contradict each other.
    """
    return [
        _job(study, part.protocol, task, setup, seed, shared)
        for seed in part.seeds
        for task in part.tasks
        for setup in part.setups
    ]


def _job(
    study: Path, protocol: Protocol, task: str, setup: str, seed: int, shared: Mapping[str, Any]
) -> Job:
    options: dict[str, Any] = {"env_id": task, "protocol": protocol, "seed": seed}
    comparator = setup if setup in _COMPARATORS else None
    if comparator is None:
        options |= setup_options(setup) | dict(shared)
    elif options.pop("protocol") == "paper":
        options |= {option: value for option, value in shared.items() if option != "compile"}
    else:
        raise ValueError(f"protocol={protocol!r} with setup {setup!r}, which has the paper's only")
    try:
        config = Job("", study, options, comparator).config
    except ValueError as error:
        raise ValueError(f"setup {setup!r}: {error}") from error
    folder = task.replace("/", "-").replace(":", "-")
    known = Setup.from_config({"setup": comparator, **asdict(config)})
    name = f"{protocol}/{folder}/{known.name}-seed{seed}"
    return Job(name, study / name, options, comparator)
