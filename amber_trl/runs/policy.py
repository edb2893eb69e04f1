"""What is needed to play a trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict.nn import TensorDictModuleBase

from amber_trl.modules import ObservationNormalizer


class PolicyRecord:
    """An actor's weights, with what rebuilds the actor and its environment.

    It is what a run's ``policy.pt`` holds, and a part of every checkpoint.

    Args:
        env_id: Gymnasium id that the actor was trained on.
        arguments: arguments of :func:`~amber_trl.modules.gaussian_actor` or
            :func:`~amber_trl.modules.categorical_actor`, without the normaliser; plain values.
        actor: the actor.

    Raises:
        ValueError: if a normaliser in the actor is not as its defaults make it, since none other
            is rebuilt.

    Examples:
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.runs import PolicyRecord
        >>> arguments = {"observation_size": 3, "action_size": 1}
        >>> record = PolicyRecord("Pendulum-v1", arguments, gaussian_actor(**arguments))
        >>> sorted(record.state_dict())
        ['actor', 'arguments', 'env_id']
    """

    def __init__(
        self, env_id: str, arguments: Mapping[str, Any], actor: TensorDictModuleBase
    ) -> None:
        _check_normalizers(actor)
        self.env_id, self.arguments, self.actor = env_id, dict(arguments), actor

    def state_dict(self) -> dict[str, Any]:
        """The environment's id, the arguments, and the actor's weights."""
        return {
            "env_id": self.env_id,
            "arguments": dict(self.arguments),
            "actor": dict(self.actor.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the weights.

        Args:
            state: what :meth:`state_dict` returned.

        Raises:
            ValueError: if they are of another task or of another network.
        """
        for name in ("env_id", "arguments"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"policy of {name}={state[name]!r} given where {getattr(self, name)!r} is used"
                )
        self.actor.load_state_dict(state["actor"])


def _check_normalizers(actor: TensorDictModuleBase) -> None:
    for module in actor.modules():
        if not isinstance(module, ObservationNormalizer):
            continue
        default = ObservationNormalizer(module.size)
        for name in ("clip", "min_variance", "dtype"):
            if (value := getattr(module, name)) != getattr(default, name):
                raise ValueError(
                    f"the actor's ObservationNormalizer has {name}={value}, and load_policy would "
                    f"rebuild it with {getattr(default, name)}: use the default, or save the "
                    "actor's own state_dict"
                )
