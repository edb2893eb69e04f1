"""The state of a collection: the collector and the simulators together."""

from collections.abc import Mapping
from typing import Any

from torchrl.collectors import BaseCollector
from torchrl.envs import EnvBase

from amber_trl.collectors.gym_collector import GymCollector
from amber_trl.envs import SimulatorState


class CollectionState:
    """Saves the state of a collection, so that its next batch is the same after loading.

    A collector's own state has counters, but no simulator state. This class saves both, and then
    also restores the running episodes. If that is impossible, :attr:`inexact` says why; loading then
    restores what was saved, such as generators and running statistics, and starts new episodes.

    Args:
        collector: the collector; exact with :class:`~amber_trl.collectors.GymCollector`.
        env: the environment that it collects from.

    Examples:
        >>> import torch
        >>> from amber_trl.collectors import GymCollector
        >>> from amber_trl.envs import make_env
        >>> from amber_trl.modules import gaussian_actor
        >>> from amber_trl.collectors import CollectionState
        >>> actor = gaussian_actor(observation_size=3, action_size=1)
        >>> def begin():
        ...     env = make_env("Pendulum-v1", num_envs=2, seed=0)
        ...     collector = GymCollector(env, actor, frames_per_batch=64)
        ...     return collector, CollectionState(collector, env)
        >>> (first, its_state), (second, other_state) = begin(), begin()
        >>> _ = first.rollout()
        >>> other_state.load_state_dict(its_state.state_dict())
        >>> generator = torch.random.get_rng_state()
        >>> batch = first.rollout()
        >>> torch.random.set_rng_state(generator)
        >>> torch.equal(batch["next", "reward"], second.rollout()["next", "reward"])
        True
    """

    def __init__(self, collector: BaseCollector, env: EnvBase) -> None:
        self._collector, self._env = collector, env
        self._simulators = SimulatorState(env)
        self.continues = True
        """Whether the last load restored the running episodes."""

    @property
    def inexact(self) -> tuple[str, ...]:
        """Why running episodes cannot be restored, as far as is known; empty if they can."""
        reasons = () if self._env.is_closed else self._simulators.inexact
        if isinstance(self._collector, GymCollector):
            return reasons
        name = type(self._collector).__name__
        return (*reasons, f"{name} does not expose its running episodes; GymCollector does")

    def state_dict(self) -> dict[str, Any]:
        """The collector's state and, unless the environment is closed, the simulators'."""
        simulators = None if self._env.is_closed else self._simulators.state_dict()
        return {"collector": dict(self._collector.state_dict()), "simulators": simulators}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`, including the running episodes if possible."""
        simulators = state["simulators"]
        if simulators is not None:
            self._simulators.load_state_dict(simulators)
        self.continues = simulators is not None and not self.inexact
        if self.continues:
            self._collector.load_state_dict(state["collector"], restore_carrier=True)
        else:
            self._collector.load_state_dict(state["collector"])
            self._collector.reset()
