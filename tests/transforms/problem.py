"""Actors of every kind, and frames that they collected, for the tests of the staleness filter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torchrl.modules import (
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    TanhNormal,
    TruncatedNormal,
)

OBSERVATION_SIZE, ACTION_SIZE = 3, 2


class Gaussian(nn.Module):
    """Mean from one layer, standard deviation from a parameter."""

    def __init__(self, action_size: int = ACTION_SIZE) -> None:
        super().__init__()
        self.mean = nn.Linear(OBSERVATION_SIZE, action_size)
        self.log_std = nn.Parameter(torch.full((action_size,), -0.5))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.mean(observation)
        return loc, self.log_std.exp().expand_as(loc)


class Heads(nn.Module):
    """Parameters of two heads: a Gaussian one and a categorical one."""

    def __init__(self) -> None:
        super().__init__()
        self.gaussian = Gaussian()
        self.logits = nn.Linear(OBSERVATION_SIZE, 4)

    def forward(self, observation: Tensor) -> TensorDict:
        loc, scale = self.gaussian(observation)
        heads = {"move": {"loc": loc, "scale": scale}, "grip": {"logits": self.logits(observation)}}
        return TensorDict(heads, observation.shape[:-1])


def make_actor(
    network: nn.Module,
    distribution: Any,
    parameters: list[Any],
    *,
    in_keys: list[Any] | None = None,
    **kwargs: Any,
) -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(network, in_keys or ["observation"], parameters),
        in_keys=parameters,
        distribution_class=distribution,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
        **kwargs,
    )


def gaussian(action_size: int = ACTION_SIZE, **kwargs: Any) -> ProbabilisticActor:
    return make_actor(Gaussian(action_size), IndependentNormal, ["loc", "scale"], **kwargs)


def composite(head: Any = IndependentNormal) -> ProbabilisticActor:
    return make_actor(
        Heads(),
        CompositeDistribution,
        ["params"],
        distribution_kwargs={
            "distribution_map": {"move": head, "grip": Categorical},
            "name_map": {"move": ("action", "move"), "grip": ("action", "grip")},
        },
        out_keys=[("action", "move"), ("action", "grip")],
    )


def one_normal(action_size: int = 1) -> ProbabilisticActor:
    return make_actor(Gaussian(action_size), Normal, ["loc", "scale"])


def linear(distribution: Any, size: int = 4) -> ProbabilisticActor:
    return make_actor(nn.Linear(OBSERVATION_SIZE, size), distribution, ["logits"])


ACTORS: dict[str, Callable[[], ProbabilisticActor]] = {
    "gaussian": gaussian,
    "one_normal": one_normal,
    "tanh_normal": lambda: make_actor(Gaussian(), TanhNormal, ["loc", "scale"]),
    "truncated_normal": lambda: make_actor(Gaussian(), TruncatedNormal, ["loc", "scale"]),
    "categorical": lambda: linear(Categorical),
    "one_hot": lambda: linear(OneHotCategorical),
    "composite": composite,
    "composite_normal": lambda: composite(Normal),
    "nested": lambda: gaussian(in_keys=[("agent", "observation")], out_keys=[("agent", "action")]),
    "renamed": lambda: gaussian(out_keys=["torque"], log_prob_key="log_mu"),
}


@contextmanager
def make(name: str, dtype: torch.dtype = torch.float32) -> Iterator[ProbabilisticActor]:
    """An actor; a composite one has a log-probability entry per head."""
    with set_composite_lp_aggregate(False):
        yield ACTORS[name]().to(dtype)


def collect(actor: ProbabilisticActor, *shape: int, seed: int = 0) -> TensorDict:
    """Frames ``[*shape]`` with observations, actions and their log-probabilities."""
    dtype = next(actor.parameters()).dtype
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(*shape, OBSERVATION_SIZE, generator=generator, dtype=dtype)
    frames = TensorDict({actor.in_keys[0]: observation}, shape)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        collected: TensorDict = actor(frames)
    return collected


def drift(actor: nn.Module, size: float = 0.1) -> None:
    """Move every parameter, as updates would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in actor.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(size * noise.to(parameter))


def set_ratios(frames: TensorDict, ratios: Tensor) -> TensorDict:
    """The frames as if collected by a policy relative to which the current one has these ratios."""
    frames = frames.clone()
    frames["action_log_prob"] = frames["action_log_prob"] - ratios.to(frames["observation"]).log()
    return frames
