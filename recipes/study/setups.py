"""The setups of the study, their names, and the pairs that a page compares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np
from ppo_amber_config import Config, resolve

NUMBERS: Mapping[str, str] = {
    "frames_per_batch": "n",
    "num_batches": "l",
    "clip_epsilon": "clip",
    "drop_factor": "drop",
    "learning_rate": "lr",
    "sigma": "sigma",
    "batches_in_use": "use",
    "ess_in_use": "ess",
}
"""Options of the main recipe that a setup's name sets with a word and a value."""
WORDS: Mapping[str, Mapping[Any, str]] = {
    "staleness_metric": {"per_dimension": "perdim"},
    "scale_minibatch": {False: "m64"},
    "minibatches": {"episodic": "episodic", "stratified": "stratified"},
    "loss": {name: name for name in ("disc", "geppo", "gipo")},
    "advantages": {"recomputed": "recomputed", "vtrace": "vtrace", "gae-v": "gaev"},
    "critic_on": {"all": "criticall"},
    "reward_scaling": {True: "scaled"},
}
"""Options that it sets with one word per value."""

_CLIP_EPSILON = {"ppo": 0.3, "mber": 0.4, "amber": 0.4}
_NUM_BATCHES = {"ppo": 1, "amber": 8}
_DROP_FACTOR = 0.25
_LEARNING_RATE = 3e-4
OWN = (
    *("num_batches", "clip_epsilon", "drop_factor", "scale_minibatch", "minibatches"),
    "learning_rate",
)
"""Options with their own field in a Setup, in the order of a name."""
_CONTROL = "ppo_clip0.4"
"""PPO with AMBER's clip range, to which AMBER reduces while only the newest batch is in use."""


@dataclass(frozen=True)
class Setup:
    """An algorithm, with the parameters that the study varies.

    Args:
        method: ``ppo``, ``mber`` or ``amber``.
        num_batches: ``L``, number of batches kept.
        clip_epsilon: clip range at the start of training.
        drop_factor: staleness above which a batch is not used, at the start; only ``amber`` has one.
        scale_minibatch: whether minibatches grow with the batches in use.
        minibatches: ``uniform`` or ``episodic``.
        learning_rate: step size at the start.
        others: other options in the name, with their values. Those of ``NUMBERS`` and ``WORDS`` are
            named if they are not the recipe's defaults, and any option that differs between runs is
            named. All options of the setups of other recipes are among them.
    """

    method: str
    num_batches: int = 1
    clip_epsilon: float | None = None
    drop_factor: float | None = None
    scale_minibatch: bool = True
    minibatches: str = "uniform"
    learning_rate: float = _LEARNING_RATE
    others: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], differing: Iterable[str] = ()) -> Setup:
        """The setup of a run, from the contents of its ``config.json``.

        Args:
            config: those contents.
            differing: options in which the runs to compare differ.

        Raises:
            KeyError: if a field is missing.
            ValueError: if a run of another recipe has the name of one of the main recipe's setups.
        """
        method, usual = config.get("setup", "unnamed"), defaults(config)
        if not usual and method in _SETUPS:
            raise ValueError(
                f"setup={method!r} without protocol, so it is of another recipe: rename it"
            )
        known = method in _CLIP_EPSILON
        said = [*NUMBERS, *WORDS, *differing] if usual else differing
        values = {name: config.get(name, usual.get(name)) for name in dict.fromkeys(said)}
        others = tuple(
            (name, value)
            for name, value in values.items()
            if not (known and name in OWN)
            and value != usual.get(name)
            and not (value is None and name in NUMBERS)  # another option decides it
        )
        if not known:
            return cls(method, others=others)
        own = {name: config[name] for name in OWN}
        if own["drop_factor"] is not None:
            own["drop_factor"] = float(own["drop_factor"])
        return cls(method, **own, others=others)

    @property
    def name(self) -> str:
        """The method and what differs from its default, such as ``amber_drop0.1``."""
        said, own = dict(self.others), {}
        if self.method in _CLIP_EPSILON:
            usual = {name: getattr(self.default, name) for name in OWN}
            usual["num_batches"] = _NUM_BATCHES.get(self.method)
            own = {name: getattr(self, name) for name in OWN}
            own = {name: v for name, v in own.items() if v is not None and v != usual[name]}
        order = dict.fromkeys(["frames_per_batch", "num_batches", *said, *own])
        words = (_word(name, (said | own)[name]) for name in order if name in said | own)
        return "_".join([self.method, *words])

    @property
    def paper_family(self) -> str | None:
        """Its column in the paper's tables of average normalised scores; None if it has none."""
        plain = Setup(self.method, self.num_batches, self.clip_epsilon, self.drop_factor)
        lengths = {"ppo": (1,), "mber": (2, 4, 6, 8), "amber": (8,)}
        if self != plain or self.num_batches not in lengths.get(self.method, ()):
            return None
        return f"mber_l{self.num_batches}" if self.method == "mber" else self.method

    @property
    def paper_name(self) -> str | None:
        """Its column in the paper's tables of scores by task; None if it has none."""
        return self.paper_family if self == self.default else None

    @property
    def default(self) -> Setup:
        """The setup of this method and number of batches with everything else at its default."""
        drop_factor = _DROP_FACTOR if self.method == "amber" else None
        return Setup(self.method, self.num_batches, _CLIP_EPSILON.get(self.method), drop_factor)

    @property
    def ablated_from(self) -> Setup | None:
        """The setup that this one is an ablation of, with scaled and uniform minibatches."""
        whole = replace(self, scale_minibatch=True, minibatches="uniform")
        return None if whole == self else whole

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts setups as tables show them: ppo, mber by length, amber, then others; defaults first."""
        place = [*_CLIP_EPSILON, self.method].index(self.method)
        return place, self.method, self.num_batches, self != self.default, self.name


_HINTS = get_type_hints(Config)
_SETUPS, _PROTOCOLS = get_args(_HINTS["setup"]), get_args(_HINTS["protocol"])


def defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The main recipe's options under a run's setup and protocol; empty for other recipes.

    Options that ``NUMBERS`` and ``WORDS`` do not name get the values implied by the others, such as
    the bound of a drop factor that is chosen.
    """
    setup, protocol = config.get("setup"), config.get("protocol")
    if setup not in _SETUPS or protocol not in _PROTOCOLS:
        return {}
    usual = _defaults(setup, protocol, config.get("smoke", False))
    names = {*NUMBERS, *WORDS} - {"sigma"}  # whose default follows from the loss
    named = {name: config.get(name, usual[name]) for name in names}
    said = {name: value for name, value in named.items() if value not in (None, usual[name])}
    if not said:
        return usual
    said = {name: float("inf") if value == "inf" else value for name, value in said.items()}
    follows = _defaults(setup, protocol, config.get("smoke", False), tuple(said.items()))
    return {**follows, **{name: usual[name] for name in named}}


@cache
def _defaults(
    setup: Any, protocol: Any, smoke: bool, said: tuple[tuple[str, Any], ...] = ()
) -> dict[str, Any]:
    config: Any = Config(setup=setup, protocol=protocol, smoke=smoke)
    options = asdict(resolve(replace(config, **dict(said))))
    return dict(json.loads(json.dumps(options, default=str)))


def main_setups(setups: Mapping[str, Setup]) -> list[str]:
    """The setups of the main comparison: ppo and amber, or all setups if neither is there."""
    return [name for name in ("ppo", "amber") if name in setups] or list(setups)


def pairs(setups: Mapping[str, Setup]) -> list[tuple[str, str]]:
    """Pairs of setups; a page compares the first of each pair with the second."""
    found = [("amber", "ppo"), ("amber", _CONTROL), (_CONTROL, "ppo")]
    found += [("amber", "trpo"), ("amber", "acer")]  # the comparators of the paper's appendix
    for name, setup in setups.items():
        if setup.method == "mber" and setup == setup.default:
            found += [(name, "ppo"), ("amber", name)]
        elif setup.paper_family in ("ppo", "amber") and setup != setup.default:
            found.append((name, setup.method))  # another clip range or drop factor
        if (whole := setup.ablated_from) is not None:
            found.append((whole.name, name))
        if setup.others:
            found.append((name, replace(setup, others=()).name))
        if setup.learning_rate != setup.default.learning_rate:
            if setup.method == "amber":
                found.append((name, name.replace("amber", "ppo", 1)))
            found.append((name, setup.default.name))
    return [pair for pair in dict.fromkeys(found) if setups.keys() >= {*pair}]


def swept(
    names: Sequence[str], setups: Mapping[str, Setup], parameter: str
) -> dict[str, list[str]]:
    """Setups that differ only in ``clip_epsilon`` or ``drop_factor``, in order of that option.

    They are keyed by their family's name in the paper's tables; families of one are left out.
    """
    families: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: getattr(setups[name], parameter) or 0.0):
        default = setups[name].default
        changed: dict[str, Any] = {parameter: getattr(default, parameter)}
        family = setups[name].paper_family
        if family and replace(setups[name], **changed) == default:
            families.setdefault(family, []).append(name)
    return {family: found for family, found in families.items() if len(found) > 1}


def _word(option: str, value: Any) -> str:
    """The part of a name for an option that is not at its default."""
    if option in NUMBERS:
        write = _scientific if option == "learning_rate" else _short
        return f"{NUMBERS[option]}{write(value)}"
    words = WORDS.get(option, {})
    return words[value] if words and value in words else f"{option}={value}"


def _scientific(value: float) -> str:
    digits, _, exponent = np.format_float_scientific(value).partition("e")
    return f"{_short(float(digits))}e{int(exponent)}"


def _short(value: float | None) -> str:
    """The shortest text that no other number has."""
    return str(value).removesuffix(".0")
