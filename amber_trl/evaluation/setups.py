"""What was compared: the setups of a study, named from the configurations of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_CLIP_EPSILON = {"ppo": 0.3, "mber": 0.4, "amber": 0.4}
_NUM_BATCHES = {"ppo": 1, "amber": 8}
_DROP_FACTOR = 0.25
_LEARNING_RATE = 3e-4


@dataclass(frozen=True)
class Setup:
    """An algorithm and those of its parameters that a study varies.

    Args:
        method: ``ppo``, ``mber`` or ``amber``.
        num_batches: ``L``, batches kept.
        clip_epsilon: clip range at the start of training.
        drop_factor: staleness beyond which a batch is not used, at the start; None but for
            ``amber``.
        scale_minibatch: whether minibatches grow with the batches in use.
        minibatches: ``uniform`` or ``episodic``.
        learning_rate: step size at the start.

    Examples:
        >>> from amber_trl.evaluation import Setup
        >>> Setup("mber", num_batches=2, clip_epsilon=0.2, scale_minibatch=False).name
        'mber_l2_clip0.2_m64'
    """

    method: str
    num_batches: int
    clip_epsilon: float
    drop_factor: float | None = None
    scale_minibatch: bool = True
    minibatches: str = "uniform"
    learning_rate: float = _LEARNING_RATE

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Setup:
        """The setup of a run.

        Args:
            config: contents of its ``config.json``.

        Raises:
            KeyError: if a field is missing.
            ValueError: if the method is not known, drops no batch and has a drop factor, or drops
                some and has none.
        """
        if config["setup"] not in _CLIP_EPSILON:
            raise ValueError(f"setup={config['setup']!r} is none of {list(_CLIP_EPSILON)}")
        drop = config["drop_factor"]
        if drop is not None and config["setup"] != "amber":
            raise ValueError(f"drop_factor={drop} with setup={config['setup']!r}, which drops none")
        if drop is None and config["setup"] == "amber":
            raise ValueError('drop_factor=null with setup="amber", which has one; "inf" drops none')
        return cls(
            config["setup"],
            config["num_batches"],
            config["clip_epsilon"],
            None if drop is None else float(drop),
            config["scale_minibatch"],
            config["minibatches"],
            config["learning_rate"],
        )

    @property
    def name(self) -> str:
        """The method and what differs from its default, such as ``amber_drop0.1``."""
        parts = [self.method]
        if self.num_batches != _NUM_BATCHES.get(self.method):
            parts.append(f"l{self.num_batches}")
        if self.clip_epsilon != _CLIP_EPSILON[self.method]:
            parts.append(f"clip{_short(self.clip_epsilon)}")
        if self.drop_factor not in (None, _DROP_FACTOR):
            parts.append(f"drop{_short(self.drop_factor)}")
        if not self.scale_minibatch:
            parts.append("m64")
        if self.minibatches != "uniform":
            parts.append(self.minibatches)
        if self.learning_rate != _LEARNING_RATE:
            parts.append(f"lr{_scientific(self.learning_rate)}")
        return "_".join(parts)

    @property
    def paper_family(self) -> str | None:
        """Its column in the paper's tables of average normalised scores; None if it has none."""
        plain = Setup(self.method, self.num_batches, self.clip_epsilon, self.drop_factor)
        lengths = {"ppo": (1,), "mber": (2, 4, 6, 8), "amber": (8,)}
        if self != plain or self.num_batches not in lengths[self.method]:
            return None
        return f"mber_l{self.num_batches}" if self.method == "mber" else self.method

    @property
    def paper_name(self) -> str | None:
        """Its column in the paper's tables of scores by task; None if it has none."""
        return self.paper_family if self.is_default else None

    @property
    def default(self) -> Setup:
        """The setup of this method and number of batches, all else at its defaults."""
        drop_factor = _DROP_FACTOR if self.method == "amber" else None
        return Setup(self.method, self.num_batches, _CLIP_EPSILON[self.method], drop_factor)

    @property
    def is_default(self) -> bool:
        """Whether only the number of batches may differ from the method's defaults."""
        return self == self.default

    @property
    def ablated_from(self) -> Setup | None:
        """The setup that it is an ablation of: with scaled and uniform minibatches."""
        whole = replace(self, scale_minibatch=True, minibatches="uniform")
        return None if whole == self else whole

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts setups as tables show them: ppo, mber by length, amber; defaults first."""
        return (
            list(_CLIP_EPSILON).index(self.method),
            self.num_batches,
            not self.is_default,
            self.name,
        )


def _scientific(value: float) -> str:
    digits, _, exponent = np.format_float_scientific(value).partition("e")
    return f"{_short(float(digits))}e{int(exponent)}"


def _short(value: float) -> str:
    """As short as it can be without being another number's."""
    return str(value).removesuffix(".0")
