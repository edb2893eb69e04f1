"""The filter with every kind of actor, and with renamed keys."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    ActorValueOperator,
    IndependentNormal,
    LSTMModule,
    ProbabilisticActor,
    ValueOperator,
)

from amber_trl.functional import mean_abs_deviation
from amber_trl.transforms import ISStalenessFilter
from tests.transforms.problem import (
    ACTORS,
    Gaussian,
    Heads,
    collect,
    composite,
    drift,
    gaussian,
    make,
    make_actor,
    one_normal,
)

DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-12)]


def log_prob_frame_by_frame(actor: ProbabilisticActor, frames: TensorDict) -> Tensor:
    """The joint log-probability of each stored action, evaluated alone."""
    values = []
    for frame in frames.reshape(-1).split(1):
        dist = actor.get_dist(frame.select(*actor.in_keys))
        keys = actor.dist_sample_keys
        if len(keys) == 1:
            values.append(dist.log_prob(frame[keys[0]]).sum())
        else:
            heads = dist.log_prob(frame.select(*keys))
            values.append(sum(head.sum() for head in heads.values(True, True)))
    return torch.stack([torch.as_tensor(value) for value in values]).view(frames.shape).detach()


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_an_unchanged_actor_is_fresh(name: str, dtype: torch.dtype, tolerance: float) -> None:
    with make(name, dtype) as actor:
        ledger = ISStalenessFilter(actor, drop_factor=tolerance).measure(collect(actor, 2, 32))
        assert ledger["active"].all()
        assert ledger["importance_ratio"].dtype == dtype
        torch.testing.assert_close(
            ledger["importance_ratio"], torch.ones(2, dtype=dtype), rtol=tolerance, atol=0
        )


@pytest.mark.parametrize("name", ACTORS)
def test_a_changed_actor_is_measured_frame_by_frame(name: str) -> None:
    with make(name, torch.float64) as actor:
        frames = collect(actor, 2, 8)
        before = log_prob_frame_by_frame(actor, frames)
        drift(actor)
        expected = mean_abs_deviation(log_prob_frame_by_frame(actor, frames) - before)
        measured = ISStalenessFilter(actor, chunk_size=5).measure(frames)["staleness"]
        assert (expected > 1e-3).all()
        torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("head", ["composite", "composite_normal"])
def test_a_composite_log_probability_of_one_number(head: str) -> None:
    with set_composite_lp_aggregate(False):
        per_head = ACTORS[head]().double()
        separate = collect(per_head, 2, 8)
    with set_composite_lp_aggregate(True):
        joint = ACTORS[head]().double()
        joint.load_state_dict(per_head.state_dict())
        together = collect(joint, 2, 8)
        drift(joint)
        staleness = ISStalenessFilter(joint)
        measured = staleness.measure(together)["staleness"]
        assert "sample_log_prob" in staleness.in_keys
    with set_composite_lp_aggregate(False):
        drift(per_head)
        expected = ISStalenessFilter(per_head).measure(separate)["staleness"]
    assert (expected > 1e-3).all()
    torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-12)


def test_keys_default_to_the_actors() -> None:
    assert ISStalenessFilter(gaussian()).in_keys == ["observation", "action", "action_log_prob"]
    nested = ACTORS["nested"]()
    assert ISStalenessFilter(nested).in_keys == [
        ("agent", "observation"),
        ("agent", "action"),
        ("agent", "action_log_prob"),
    ]
    assert ISStalenessFilter(ACTORS["renamed"]()).in_keys == ["observation", "torque", "log_mu"]
    per_dimension = ISStalenessFilter(gaussian(), metric="per_dimension")
    assert per_dimension.in_keys[-2:] == ["loc", "scale"]


@pytest.mark.parametrize("metric", ["mean_abs_deviation", "per_dimension"])
def test_stored_keys_can_have_other_names(metric: Any) -> None:
    actor = gaussian().double()
    frames = collect(actor, 2, 8)
    drift(actor)
    expected = ISStalenessFilter(actor, metric=metric).measure(frames)["staleness"]
    renamed: TensorDict = frames.select("observation")
    names: dict[str, Any] = {
        "action": ("behaviour", "action"),
        "action_log_prob": ("behaviour", "log_prob"),
        "loc": "mu",
        "scale": ("behaviour", "sigma"),
    }
    for key, name in names.items():
        renamed[name] = frames[key]
    staleness = ISStalenessFilter(
        actor,
        metric=metric,
        action_key=("behaviour", "action"),
        log_prob_key=("behaviour", "log_prob"),
        loc_key="mu",
        scale_key=("behaviour", "sigma"),
    )
    assert torch.equal(staleness.measure(renamed)["staleness"], expected)
    assert {*staleness.in_keys} <= {*renamed.keys(True, True)}


@pytest.mark.parametrize("key", ["observation", "action", "action_log_prob"])
def test_a_missing_key_is_named(key: str) -> None:
    actor = gaussian()
    frames = collect(actor, 2, 8).exclude(key)
    with pytest.raises(KeyError, match=rf"\['{key}'\] missing.*action_log_prob"):
        ISStalenessFilter(actor).measure(frames)


@pytest.mark.parametrize(
    ("log_prob", "shown"),
    [
        (torch.zeros(2, 8, 2), r"\(2, 8, 2\)"),
        (torch.zeros(2, 8, dtype=torch.int64), "int64"),
        (torch.zeros(2, 8, dtype=torch.bool), "bool"),
    ],
)
def test_a_log_probability_of_another_kind_is_refused(log_prob: Tensor, shown: str) -> None:
    actor = gaussian()
    frames = collect(actor, 2, 8)
    frames["action_log_prob"] = log_prob
    with pytest.raises(ValueError, match=rf"action_log_prob.*{shown}.*16 frames"):
        ISStalenessFilter(actor).measure(frames)


def test_several_numbers_per_action_are_no_joint_probability() -> None:
    actor = one_normal(2)
    frames = collect(actor, 2, 8)
    with pytest.raises(ValueError, match=r"\(2, 8, 2\).*IndependentNormal"):
        ISStalenessFilter(actor).measure(frames)
    frames["action_log_prob"] = frames["action_log_prob"].sum(-1)
    with pytest.raises(ValueError, match=r"the actor's log-probability of shape \(16, 2\)"):
        ISStalenessFilter(actor).measure(frames)


class Team(nn.Module):
    """One policy for each of five agents, ``[frames, agents, dimensions]``."""

    def __init__(self) -> None:
        super().__init__()
        self.each = Gaussian()

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.each(observation)


class TeamHeads(Team):
    """Two such heads."""

    def forward(self, observation: Tensor) -> TensorDict:
        loc, scale = self.each(observation)
        heads = {"move": {"loc": loc, "scale": scale}, "turn": {"loc": loc + 1, "scale": scale}}
        return TensorDict(heads, observation.shape[:-2])


def team(heads: bool, **of_each: int) -> ProbabilisticActor:
    if not heads:
        return make_actor(Team(), IndependentNormal, ["loc", "scale"], distribution_kwargs=of_each)
    names = {"move": ("action", "move"), "turn": ("action", "turn")}
    return make_actor(
        TeamHeads(),
        CompositeDistribution,
        ["params"],
        distribution_kwargs={
            "distribution_map": dict.fromkeys(names, IndependentNormal),
            "name_map": names,
            "extra_kwargs": dict.fromkeys(names, of_each),
        },
        out_keys=[*names.values()],
    )


@pytest.mark.parametrize("heads", [False, True])
def test_log_probabilities_of_single_agents_are_refused_with_a_way_out(heads: bool) -> None:
    frames = TensorDict({"observation": torch.randn(2, 8, 5, 3)}, [2, 8])
    with set_composite_lp_aggregate(False):
        actor = team(heads)
        collected = actor(frames.clone()).detach()
        with pytest.raises(ValueError, match="event_dim"):
            ISStalenessFilter(actor).measure(collected)
        joint = team(heads, event_dim=2)
        collected = joint(frames.clone()).detach()
        assert (ISStalenessFilter(joint).measure(collected)["staleness"] < 1e-5).all()


def test_an_action_of_another_size_is_not_broadcast() -> None:
    actor = gaussian()
    frames = collect(actor, 2, 8)
    frames["action"] = frames["action"][..., :1]
    with pytest.raises(ValueError, match=r"action of shape \(1,\).*\(2,\)"):
        ISStalenessFilter(actor).measure(frames)


class Squashed(TransformedDistribution):
    """A distribution that is not normal, though its base is."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__(Normal(loc, scale), [TanhTransform()])


@pytest.mark.parametrize(
    "make_one",
    [
        ACTORS["tanh_normal"],
        ACTORS["truncated_normal"],
        lambda: make_actor(Gaussian(1), Squashed, ["loc", "scale"]),
    ],
)
def test_per_dimension_refuses_other_distributions(make_one: Any) -> None:
    actor = make_one()
    with pytest.raises(ValueError, match="per_dimension"):
        ISStalenessFilter(actor, metric="per_dimension").measure(collect(actor, 8))


def test_per_dimension_by_hand() -> None:
    # Current N(0, 1), behaviour N(1, 1) and N(0, 1/2), action (1/2, 1):
    # log-ratios 0 and (-1/2) - (-2 + log 2) = 3/2 - log 2.
    class Standard(nn.Module):
        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros_like(observation), torch.ones_like(observation)

    expected = (0 + torch.tensor(1.5).exp() / 2 - 1) / 2
    frames = TensorDict(
        {
            "observation": torch.zeros(1, 2),
            "action": torch.tensor([[0.5, 1.0]]),
            "action_log_prob": torch.zeros(1),
            "loc": torch.tensor([[1.0, 0.0]]),
            "scale": torch.tensor([[1.0, 0.5]]),
        },
        [1],
    )
    actor = make_actor(
        Standard(), lambda loc, scale: Independent(Normal(loc, scale), 1), ["loc", "scale"]
    )
    measured = ISStalenessFilter(actor, metric="per_dimension").measure(frames)["staleness"]
    torch.testing.assert_close(measured, expected.view(1))


def test_anything_but_an_actor_is_refused() -> None:
    critic = ValueOperator(nn.Linear(3, 1), ["observation"])
    for module in (critic, nn.Linear(3, 2), None):
        with pytest.raises(TypeError, match=r"no get_dist.*ProbabilisticActor"):
            ISStalenessFilter(module)


def test_the_policy_of_a_shared_network() -> None:
    common = ValueOperator(nn.Linear(3, 3), ["pixels"], ["observation"])
    both = ActorValueOperator(common, gaussian(), ValueOperator(nn.Linear(3, 1), ["observation"]))
    policy = both.get_policy_operator()
    frames = collect(policy, 2, 8)
    staleness = ISStalenessFilter(policy)
    assert staleness.in_keys[0] == "pixels"
    assert (staleness.measure(frames)["staleness"] < 1e-5).all()


def sequence(*in_keys_of_second: str) -> ProbabilisticTensorDictSequential:
    """Two samples in a row; the second may depend on the first."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(Gaussian(3), ["observation"], ["latent_loc", "latent_scale"]),
        ProbabilisticTensorDictModule(
            {"loc": "latent_loc", "scale": "latent_scale"},
            ["latent"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
        TensorDictModule(Gaussian(), [*in_keys_of_second], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"],
            ["action"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )


def test_independent_samples_in_a_row() -> None:
    actor = sequence("observation")
    frames = collect(actor, 2, 8)
    generator = torch.get_rng_state()
    with set_exploration_type(ExplorationType.RANDOM):
        assert (ISStalenessFilter(actor).measure(frames)["staleness"] < 1e-5).all()
    assert torch.equal(torch.get_rng_state(), generator)


def test_an_actor_that_reads_its_own_sample_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads \['latent'\].*samples itself"):
        ISStalenessFilter(sequence("latent"))


def test_a_recurrent_actor_is_refused() -> None:
    memory = LSTMModule(input_size=3, hidden_size=3, in_key="pixels", out_key="observation")
    actor = ProbabilisticTensorDictSequential(memory, *gaussian().module)
    with pytest.raises(ValueError, match=r"recurrent.*recurrent_state_c.*feed-forward"):
        ISStalenessFilter(actor)


def test_the_parts_of_a_composite_action_are_all_needed() -> None:
    with set_composite_lp_aggregate(False):
        actor = composite()
        frames = collect(actor, 2, 8)
        del frames["action", "grip_log_prob"]
        with pytest.raises(KeyError, match="grip_log_prob"):
            ISStalenessFilter(actor).measure(frames)


class _Entries(nn.Module):
    """The outputs of ``Heads``, as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads()

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        heads = self.heads(observation)
        return heads["move", "loc"], heads["move", "scale"], heads["grip", "logits"]


def test_an_actor_that_writes_entries_of_what_its_distribution_reads() -> None:
    entries = [("params", "move", "loc"), ("params", "move", "scale"), ("params", "grip", "logits")]
    whole, torn = composite(), composite()
    network = _Entries()
    network.heads = whole.module[0].module
    torn.module[0] = TensorDictModule(network, ["observation"], entries)
    torn = ProbabilisticTensorDictSequential(*torn.module)
    assert "params" in torn.in_keys
    frames = collect(whole, 2, 5)
    drift(whole)
    expected = ISStalenessFilter(whole).measure(frames)
    staleness = ISStalenessFilter(torn)
    assert "params" not in staleness.in_keys
    assert torch.equal(staleness.measure(frames)["staleness"], expected["staleness"])
    assert expected["staleness"].min() > 0


@pytest.mark.parametrize("key", ["loc", "scale"])
def test_moments_of_another_size_are_refused(key: str) -> None:
    actor = gaussian()
    frames = collect(actor, 2, 5)
    frames[key] = frames[key][..., :1].clone()
    with pytest.raises(ValueError, match=rf"'{key}' of shape \(10, 1\) for actions of shape"):
        ISStalenessFilter(actor, metric="per_dimension").measure(frames)
