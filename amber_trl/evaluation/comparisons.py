"""Which setups of a study are compared with which."""

from __future__ import annotations

from collections.abc import Mapping

from amber_trl.evaluation.setups import Setup


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
    found = [("amber", "ppo")]
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
