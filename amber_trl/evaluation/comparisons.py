"""Which setups of a study are compared with which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from amber_trl.evaluation.setups import Setup

_CONTROL = "ppo_clip0.4"
"""PPO with AMBER's clip range: what AMBER is wherever it uses the newest batch alone."""


def main_setups(setups: Mapping[str, Setup]) -> list[str]:
    """The setups of the main comparison: ppo and amber, or all where neither is there."""
    return [name for name in ("ppo", "amber") if name in setups] or list(setups)


def pairs(setups: Mapping[str, Setup]) -> list[tuple[str, str]]:
    """Two setups each, of which the first is to be compared with the second.

    Examples:
        >>> from amber_trl.evaluation import Setup
        >>> from amber_trl.evaluation.comparisons import pairs
        >>> uniform = Setup("mber", 2, 0.4)
        >>> setups = [Setup("ppo", 1, 0.3), uniform, Setup("mber", 2, 0.4, minibatches="episodic")]
        >>> pairs({setup.name: setup for setup in setups})
        [('mber_l2', 'ppo'), ('mber_l2', 'mber_l2_episodic')]
    """
    found = [("amber", "ppo"), ("amber", _CONTROL), (_CONTROL, "ppo")]
    for name, setup in setups.items():
        if setup.method == "mber" and setup.is_default:
            found.append((name, "ppo"))
        if (whole := setup.ablated_from) is not None:
            found.append((whole.name, name))
        if setup.learning_rate != setup.default.learning_rate:
            if setup.method == "amber":
                found.append((name, name.replace("amber", "ppo", 1)))
            found.append((name, setup.default.name))
    return [(one, other) for one, other in found if one in setups and other in setups]


def swept(
    names: Sequence[str], setups: Mapping[str, Setup], parameter: str
) -> dict[str, list[str]]:
    """Setups that differ in one parameter alone, by the name that the paper's tables give them.

    Args:
        names: setups to choose from.
        setups: the setups by name.
        parameter: ``clip_epsilon`` or ``drop_factor``.

    Returns:
        The names in the order of the parameter, by family; families of one are left out.

    Examples:
        >>> from amber_trl.evaluation import Setup
        >>> from amber_trl.evaluation.comparisons import swept
        >>> setups = {s.name: s for s in (Setup("ppo", 1, 0.3), Setup("ppo", 1, 0.2))}
        >>> swept(list(setups), setups, "clip_epsilon")
        {'ppo': ['ppo_clip0.2', 'ppo']}
    """
    families: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: getattr(setups[name], parameter) or 0.0):
        default = setups[name].default
        changed: dict[str, Any] = {parameter: getattr(default, parameter)}
        family = setups[name].paper_family
        if family and replace(setups[name], **changed) == default:
            families.setdefault(family, []).append(name)
    return {family: found for family, found in families.items() if len(found) > 1}
