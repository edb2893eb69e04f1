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

_LENGTHS = {"ppo": (1,), "mber": (2, 4, 6, 8), "amber": (8,)}
"""The methods of the paper, and the numbers of batches with which its tables have them."""
OWN = (
    *("num_batches", "clip_epsilon", "drop_factor", "scale_minibatch", "minibatches"),
    "learning_rate",
)
"""What the paper varies: in the name of one of its methods, the first comes first, the others last."""
_SWEPT = {"num_batches", "clip_epsilon", "drop_factor"}
_CONTROL = "ppo_clip0.4"
"""PPO with AMBER's clip range, to which AMBER reduces while only the newest batch is in use."""


@dataclass(frozen=True)
class Setup:
    """An algorithm, with the options in which it differs from the main recipe's defaults.

    Args:
        method: the configuration's ``setup``, such as ``ppo``, ``mber`` or ``amber``.
        changed: those options and their values, in the order of a name. For other recipes, these are the
            options that differ between runs.
    """

    method: str
    changed: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], differing: Iterable[str] = ()) -> Setup:
        """The setup of a run, from the contents of its ``config.json``.

        ``differing`` are options to name besides ``NUMBERS`` and ``WORDS``, since the runs differ in them.

        Raises:
            ValueError: if a run of another recipe has the name of one of the main recipe's setups.
        """
        method, usual = config.get("setup", "unnamed"), defaults(config)
        if not usual and method in _SETUPS:
            raise ValueError(
                f"setup={method!r} without protocol, so it is of another recipe: rename it"
            )
        said = [*NUMBERS, *WORDS, *differing] if usual else [*differing]
        last = OWN[1:] if method in _LENGTHS else ()
        others = (name for name in said if name not in last)
        names = ["frames_per_batch", "num_batches", *others, *last]
        values = {name: config.get(name, usual.get(name)) for name in names if name in said}
        if values.get("drop_factor") is not None:
            values["drop_factor"] = float(values["drop_factor"])
        always = {"num_batches"} if method == "mber" else set()
        changed = {n: v for n, v in values.items() if v != usual.get(n) or n in always}
        return cls(method, tuple(changed.items()))

    def __getitem__(self, option: str) -> Any:
        """The value of an option; None if it is the default of a method that is not the paper's."""
        usual = _defaults(self.method, "paper", False) if self.method in _LENGTHS else {}
        return dict(self.changed).get(option, usual.get(option))

    def without(self, *options: str) -> Setup:
        """The setup with some options at their defaults."""
        return Setup(self.method, tuple(one for one in self.changed if one[0] not in options))

    @property
    def options(self) -> set[str]:
        """Names of the options that are changed."""
        return {option for option, _ in self.changed}

    @property
    def name(self) -> str:
        """The method and what differs from its default, such as ``amber_drop0.1``."""
        said = ((n, v) for n, v in self.changed if v is not None or n not in NUMBERS)
        return "_".join([self.method, *(_word(*one) for one in said)])

    @property
    def paper_family(self) -> str | None:
        """Its column in the paper's tables of average normalised scores; None if it has none."""
        if self["num_batches"] not in _LENGTHS.get(self.method, ()) or self.options - _SWEPT:
            return None
        return f"mber_l{self['num_batches']}" if self.method == "mber" else self.method

    @property
    def paper_name(self) -> str | None:
        """Its column in the paper's tables of scores by task; None if it has none."""
        return self.paper_family if self == self.default else None

    @property
    def default(self) -> Setup:
        """The setup of this method and number of batches with everything else at its default."""
        return self.without(*self.options - {"num_batches"})

    @property
    def ablated_from(self) -> Setup | None:
        """The setup that this one is an ablation of, with scaled and uniform minibatches."""
        whole = self.without("scale_minibatch", "minibatches")
        return None if whole == self or self.method not in _LENGTHS else whole

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts setups as tables show them: ppo, mber by length, amber, then others; defaults first."""
        place = [*_LENGTHS, self.method].index(self.method)
        count = self["num_batches"] if self.method in _LENGTHS else 1
        return place, self.method, count, self != self.default, self.name


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
    try:
        follows = _defaults(setup, protocol, config.get("smoke", False), tuple(said.items()))
    except ValueError:  # allowed only together with options that a name leaves out
        follows = usual
    return {**follows, **{name: usual[name] for name in named}}


@cache
def _defaults(
    setup: Any, protocol: Any, smoke: bool, said: tuple[tuple[str, Any], ...] = ()
) -> dict[str, Any]:
    config: Any = Config(setup=setup, protocol=protocol, smoke=smoke)
    options = asdict(resolve(replace(config, **dict(said))))
    return dict(json.loads(json.dumps(options, default=str)))


def main_setups(setups: Mapping[str, Setup]) -> list[str]:
    """The setups of the main comparison: ppo and amber, or all setups if one of them is missing."""
    return ["ppo", "amber"] if setups.keys() >= {"ppo", "amber"} else list(setups)


def pairs(setups: Mapping[str, Setup]) -> list[tuple[str, str]]:
    """Pairs of setups; a page compares the first of each pair with the second.

    A setup is compared with its method's default, with each setup that lacks one of its changes, and with
    ppo under the same changes. If the paper does not have it, it is also compared with ppo.
    """
    found = [("amber", "ppo"), ("amber", _CONTROL), (_CONTROL, "ppo")]
    found += [("amber", "trpo"), ("amber", "acer")]  # the comparators of the paper's appendix
    for name, setup in setups.items():
        if (whole := setup.ablated_from) is not None:
            found.append((whole.name, name))
            continue
        if setup.method == "mber" and setup == setup.default:
            found += [(name, "ppo"), ("amber", name)]
        fewer = [setup.without(option) for option, _ in setup.changed]
        in_ppo = Setup("ppo", setup.without("num_batches").changed)
        found += [(name, other.name) for other in (Setup(setup.method), *fewer, in_ppo)]
        if setup.method not in _LENGTHS or setup.options - {*OWN}:
            found.append((name, "ppo"))
    there = (pair for pair in dict.fromkeys(found) if setups.keys() >= {*pair})
    return [(one, other) for one, other in there if one != other]


def by_minibatch(setups: Mapping[str, Setup]) -> dict[str, list[str]]:
    """Setups whose minibatches stay at 64 frames, and the same with 64 per batch, each after their ppo.

    Keyed by the size, such as ``64 frames``; empty if no setup has minibatches of 64 frames.
    """
    kept = {name: setup for name, setup in setups.items() if setup["scale_minibatch"] is False}
    scaled = [setup.without("scale_minibatch") for setup in kept.values()]
    ppo = dict.fromkeys(Setup("ppo", setup.without("num_batches").changed).name for setup in scaled)
    found = {"64 frames": [*ppo, *kept], "64 frames per batch": [*ppo, *(s.name for s in scaled)]}
    return {words: [n for n in names if n in setups] for words, names in found.items() if kept}


def swept(
    names: Sequence[str], setups: Mapping[str, Setup], parameter: str
) -> dict[str, list[str]]:
    """Setups that differ only in ``clip_epsilon`` or ``drop_factor``, in order of that option.

    They are keyed by their family's name in the paper's tables; families of one are left out.
    """
    families: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: setups[name][parameter] or 0.0):
        family = setups[name].paper_family
        if family and setups[name].without(parameter) == setups[name].default:
            families.setdefault(family, []).append(name)
    return {family: found for family, found in families.items() if len(found) > 1}


def _word(option: str, value: Any) -> str:
    """The part of a name for an option that is not at its default."""
    if option == "learning_rate":
        value = np.format_float_scientific(value, trim="-", exp_digits=1)
    if option in NUMBERS:
        return f"{NUMBERS[option]}{value}".removesuffix(".0")
    words = WORDS.get(option, {})
    return words[value] if words and value in words else f"{option}={value}"
