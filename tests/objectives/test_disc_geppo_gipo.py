"""The later losses: by hand, reduced to PPO, and with the ratios that replay causes."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor
from torchrl.data import LazyMemmapStorage
from torchrl.modules import IndependentNormal, ProbabilisticActor
from torchrl.objectives import PPOLoss

from amber_trl._compiler import why_not_compiled
from amber_trl.data import MultiBatchReplayBuffer
from amber_trl.modules import gaussian_actor
from amber_trl.objectives import AmberPPOLoss, DISCLoss, GePPOLoss, GIPOLoss
from amber_trl.training import UpdateStep
from amber_trl.transforms import ISStalenessFilter
from tests.objectives.problem import collect, networks, step

LOSSES = [DISCLoss, GePPOLoss, GIPOLoss]


def with_columns(frames: TensorDict) -> TensorDict:
    """The frames with every column that one of the losses reads."""
    noise = torch.randn(len(frames), generator=torch.Generator().manual_seed(1))
    frames["batch_age"] = torch.arange(len(frames)) % 2
    frames["proximal_log_prob"] = frames["action_log_prob"] + 0.1 * noise
    return frames


def at_ratios(
    actor: ProbabilisticActor, ratios: list[list[float]], advantages: list[float]
) -> TensorDict:
    """Frames whose action dimensions have these ratios, each action the actor's mean.

    There the log-density has the derivative -1 with respect to each dimension's log-deviation.
    """
    frames = with_columns(collect(actor, len(ratios)))
    log_ratio = torch.tensor(ratios, dtype=frames["loc"].dtype).log()
    with torch.no_grad():
        dist = actor.get_dist(frames)
        frames["action"] = frames["loc"] = dist.mean
        frames["scale"] = dist.stddev * log_ratio.exp()
        frames["action_log_prob"] = dist.log_prob(frames["action"]) - log_ratio.sum(-1)
    frames["advantage"] = torch.tensor(advantages, dtype=log_ratio.dtype).unsqueeze(-1)
    return frames


def gradient(loss: AmberPPOLoss, value: Tensor) -> list[float]:
    """The derivative of a loss with respect to each dimension's log-deviation."""
    (log_std,) = (p for name, p in loss.named_parameters() if "log_std" in name)
    (found,) = torch.autograd.grad(value, log_std, retain_graph=True)
    return found.tolist()


# W: 1/2 * 6/5, 6/5 * 11/10, 3/2 * 4/5, 1, of mean 4.12 / 4. Of the first dimension the second frame
# is clipped, of the second dimension the first and the third.
def test_disc_by_hand() -> None:
    actor, critic = networks(dtype=torch.float64)
    frames = at_ratios(actor, [[0.5, 1.5], [1.5, 1.1], [1.5, 0.5], [1, 1]], [1, 2, -1, 1])
    frames["batch_age"] = torch.tensor([0, 0, 1, 1])
    loss = DISCLoss(actor, critic, clip_epsilon=0.2, penalty_coeff=8, functional=False)
    emitted = loss(frames)
    penalty = (math.log(0.75) ** 2 + math.log(1.65) ** 2) / 4
    expected = {
        "loss_objective": -(0.6 + 2.64 - 1.2 + 1) / 4.12,
        "penalty": penalty,
        "loss_penalty": 8 * penalty,
        "clip_fraction": 3 / 8,
        "mean_ratio": 1,
        "max_ratio": 1.32 * 4 / 4.12,
        "capped_frames": 0,
    }
    for key, value in expected.items():
        assert emitted[key].item() == pytest.approx(value, rel=1e-6), key
    found = gradient(loss, emitted["loss_objective"])
    assert found == pytest.approx([(0.6 - 1.2 + 1) / 4.12, (2.64 + 1) / 4.12])
    slope = -8 * (math.log(0.75) + math.log(1.65)) / 2  # of alpha times the mean of x^2 / 2
    assert gradient(loss, emitted["loss_penalty"]) == pytest.approx([slope, slope])
    # The sign that decides is that of the standardised advantage: 1/4, 5/4, -7/4 and 1/4 over its deviation.
    frames["advantage"] += 5
    loss = DISCLoss(actor, critic, clip_epsilon=0.2, normalize_advantage=True)
    gain = (0.15 + 1.65 - 2.1 + 0.25) / 4.12 / math.sqrt(4.75 / 3)
    assert loss(frames)["loss_objective"].item() == pytest.approx(-gain)


# Windows [4/5, 6/5], [9/5, 11/5], [9/5, 11/5], [0, 3/10]; only the last gives a gradient.
def test_geppo_by_hand() -> None:
    actor, critic = networks(dtype=torch.float64)
    frames = at_ratios(actor, [[1.5, 1], [2.5, 1], [1.5, 1], [0.05, 1]], [1, 1, -1, 1])
    center = torch.tensor([1, 2, 2, 0.1], dtype=torch.float64)
    frames["proximal_log_prob"] = frames["action_log_prob"] + center.log()
    loss = GePPOLoss(actor, critic, clip_epsilon=0.2, functional=False)
    emitted = loss(frames)
    assert emitted["loss_objective"].item() == pytest.approx(-(1.2 + 2.2 - 1.8 + 0.05) / 4)
    assert emitted["clip_fraction"].item() == 3 / 4
    assert emitted["total_variation"].item() == pytest.approx((0.5 + 0.5 + 0.5 + 0.05) / 4 / 2)
    assert gradient(loss, emitted["loss_objective"]) == pytest.approx([0.05 / 4, 0.05 / 4])


def test_gipo_by_hand() -> None:
    actor, critic = networks(dtype=torch.float64)
    ratios, advantages = [0.5, 2, 1, 1.5], [1.0, -1, 1, 2]
    frames = at_ratios(actor, [[ratio, 1] for ratio in ratios], advantages)
    loss = GIPOLoss(actor, critic, sigma=0.5, functional=False)
    emitted = loss(frames)
    trust = [math.exp(-2 * math.log(ratio) ** 2) for ratio in ratios]
    mean = sum(w * r * a for w, r, a in zip(trust, ratios, advantages, strict=True)) / 4
    assert emitted["loss_objective"].item() == pytest.approx(-mean)
    assert emitted["trust_weight"].item() == pytest.approx(sum(trust) / 4)
    assert gradient(loss, emitted["loss_objective"]) == pytest.approx([mean, mean])


@pytest.mark.parametrize("clip", [0.4, 0.1, 0.0, 1.0, (0.2, 0.28)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_geppo_of_new_frames_is_the_papers_loss(clip: Any, dtype: torch.dtype) -> None:
    frames = with_columns(collect(networks(dtype=dtype)[0], 64))
    frames["proximal_log_prob"] = frames["action_log_prob"].clone()
    expected, expected_grads = step(AmberPPOLoss(*networks(dtype=dtype), clip_epsilon=clip), frames)
    emitted, grads = step(GePPOLoss(*networks(dtype=dtype), clip_epsilon=clip), frames)
    del emitted["total_variation"]
    assert {*emitted.keys()} == {*expected.keys()}
    assert all(torch.equal(emitted[key], value) for key, value in expected.items())
    assert all(torch.equal(grads[name], grad) for name, grad in expected_grads.items())


@pytest.mark.parametrize("loss_type", LOSSES)
def test_before_the_first_update_every_loss_of_new_frames_is_ppos(
    loss_type: type[AmberPPOLoss],
) -> None:
    actor, critic = networks(dtype=torch.float64)
    frames = collect(actor, 64)
    with torch.no_grad():
        frames["action_log_prob"] = actor.log_prob(frames)
    frames["batch_age"] = torch.zeros(64, dtype=torch.int64)
    frames["proximal_log_prob"] = frames["action_log_prob"].clone()
    expected, expected_grads = step(AmberPPOLoss(actor, critic), frames)
    emitted, grads = step(loss_type(actor, critic), frames)
    for key in ("loss_objective", "loss_critic", "clip_fraction", "mean_ratio"):
        torch.testing.assert_close(emitted[key], expected[key], msg=key)
    for name, grad in expected_grads.items():
        torch.testing.assert_close(grads[name], grad, msg=name)
    own = {"penalty": 0, "total_variation": 0, "trust_weight": 1}
    found = [emitted[key].item() == value for key, value in own.items() if key in emitted.keys()]  # noqa: SIM118
    assert found == [True]


def test_disc_of_one_dimension_is_the_papers_loss_over_the_mean_weight() -> None:
    actor = gaussian_actor(3, 1)
    frames = with_columns(collect(actor, 64))
    log_ratio = torch.linspace(-1, 1, 64).unsqueeze(-1)
    with torch.no_grad():
        now = actor.get_dist(frames)
        frames["action"] = frames["loc"] = now.mean
        frames["scale"] = now.stddev * log_ratio.exp()
        frames["action_log_prob"] = now.log_prob(now.mean) - log_ratio.squeeze(-1)
    ratio, negative = log_ratio.exp(), frames["advantage"] < 0
    mean = torch.where(negative, ratio.clamp(min=0.8), ratio.clamp(max=1.2)).mean()
    settings: dict[str, Any] = {"clip_epsilon": 0.2, "critic_coeff": None}
    expected, expected_grads = step(AmberPPOLoss(actor, **settings), frames)
    emitted, grads = step(DISCLoss(actor, penalty_coeff=0, **settings), frames)
    torch.testing.assert_close(mean * emitted["loss_objective"], expected["loss_objective"])
    for name, grad in expected_grads.items():
        torch.testing.assert_close(mean * grads[name], grad)
    # A constant factor of all ratios leaves the normalised weights as they are.
    frames["scale"] *= 1 / ratio
    assert DISCLoss(actor, clip_epsilon=1.0, critic_coeff=None)(frames)["max_ratio"] == 1


@pytest.mark.parametrize("cap", [1e3, None])
def test_gipo_with_a_wide_gaussian_is_plain_importance_weighting(cap: float | None) -> None:
    frames = collect(networks()[0], 64)
    frames["action_log_prob"][3] -= 8
    stock = PPOLoss(
        *networks(),
        entropy_bonus=False,
        critic_coeff=1.0,
        loss_critic_type="l2",
        max_importance_ratio=cap,
    )
    expected, expected_grads = step(stock, frames)
    emitted, grads = step(GIPOLoss(*networks(), sigma=math.inf, max_importance_ratio=cap), frames)
    assert all(torch.equal(emitted[key], value) for key, value in expected.items())
    assert all(torch.equal(grads[name], grad) for name, grad in expected_grads.items())


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [0.2, 0.0])
def test_extreme_frames_leave_everything_finite(
    loss_type: type[AmberPPOLoss], dtype: torch.dtype, clip: float
) -> None:
    actor, critic = networks(dtype=dtype)
    cases = list(itertools.product((1000.0, -1000.0), (1000.0, 0.0, -1000.0), (1.0, 0.0, -1.0)))
    for rows in (cases, [(-1000.0, -1000.0, 1.0)] * 4, [(1000.0, 1000.0, -1.0)] * 4):
        frames = with_columns(collect(actor, len(rows)))
        change, center, advantage = torch.tensor(rows, dtype=dtype).unbind(-1)
        frames["action_log_prob"] -= change
        frames["proximal_log_prob"] = frames["action_log_prob"] + center
        frames["advantage"] = advantage.unsqueeze(-1)
        # Far enough from the action for a log-ratio of 1000 in a dimension, or narrow enough for -1000.
        frames["loc"][change > 0, 0] += 45
        frames["scale"] = frames["scale"].clone()
        frames["scale"][change < 0] *= 0.02
        loss = loss_type(actor, critic, functional=False)
        loss.clip_epsilon = clip
        emitted, grads = step(loss, frames)
        assert all(value.isfinite().all() for value in [*emitted.values(), *grads.values()])


@pytest.mark.parametrize("loss_type", LOSSES)
def test_compiled_updates_equal_eager_ones(loss_type: type[AmberPPOLoss]) -> None:
    if why_not_compiled("cpu"):
        pytest.skip("no compiler")
    frames = with_columns(collect(networks()[0], 64))
    frames["action_log_prob"][5] -= 1000
    found = []
    for compiled in (False, True):
        loss = loss_type(*networks(), functional=False)
        optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
        update = UpdateStep(loss, optimizer, compile=compiled)
        metrics = []
        for size in (64, 48):
            metrics.append(update(frames[:size]))
            if isinstance(loss, DISCLoss):
                loss.adapt_penalty(1.0)  # read at the next call
        found.append((TensorDict.stack(metrics), dict(loss.named_parameters())))
    (expected, weights), (emitted, compiled_weights) = found
    assert {*emitted.keys()} == {*expected.keys()}
    for key, value in expected.items():
        torch.testing.assert_close(emitted[key], value, rtol=1e-4, atol=1e-5, msg=key)
    for name, weight in weights.items():
        torch.testing.assert_close(compiled_weights[name], weight, rtol=1e-4, atol=1e-5, msg=name)


def test_keys_can_be_renamed() -> None:
    frames = with_columns(collect(networks()[0]))
    own: dict[type[AmberPPOLoss], list[str]] = {
        DISCLoss: ["batch_age", "loc", "scale"],
        GePPOLoss: ["proximal_log_prob"],
        GIPOLoss: [],
    }
    for loss_type, names in own.items():
        loss = loss_type(*networks())
        expected = loss(frames)
        names = [*names, "action", "action_log_prob", "advantage", "value_target"]
        roles = {name: name.replace("action_log", "sample_log") for name in names}
        renamed = frames.select("observation")
        for name in names:
            renamed["old", name] = frames[name]
        loss.set_keys(**{roles[name]: ("old", name) for name in names})
        assert all(torch.equal(value, expected[key]) for key, value in loss(renamed).items())
    with pytest.raises(KeyError, match="age_key='batch_age'"):
        DISCLoss(*networks())(frames.exclude("batch_age"))
    with pytest.raises(KeyError, match="proximal_log_prob_key='proximal_log_prob'"):
        GePPOLoss(*networks())(frames.exclude("proximal_log_prob"))


class _Folded(torch.nn.Module):
    """A network's two outputs in another shape."""

    def __init__(self, network: torch.nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.shape = network, shape

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        return tuple(value.unflatten(-1, self.shape) for value in self.network(observation))


@pytest.mark.parametrize("shape", [(2, 3), (1, 2), (16, 2)])
def test_disc_clips_each_dimension_of_actions_of_any_shape(shape: tuple[int, int]) -> None:
    size = math.prod(shape)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2 * size), NormalParamExtractor())
    flat, folded = (
        ProbabilisticActor(
            TensorDictModule(module, ["observation"], ["loc", "scale"]),
            ["loc", "scale"],
            distribution_class=IndependentNormal,
            distribution_kwargs={"event_dim": event_dim},
            return_log_prob=True,
        )
        for module, event_dim in ((network, 1), (_Folded(network, shape), 2))
    )
    frames = with_columns(collect(flat))
    frames["scale"] = 1.5 * frames["scale"]  # so that each dimension has a ratio of its own
    others = frames.clone()
    for key in ("action", "loc", "scale"):
        others[key] = frames[key].unflatten(-1, shape)
    found, expected = (
        DISCLoss(actor, critic_coeff=None)(columns)
        for actor, columns in ((folded, others), (flat, frames))
    )
    torch.testing.assert_close(found.detach().to_dict(), expected.detach().to_dict())


def test_a_stored_mean_that_is_missing_is_named_and_nothing_is_left() -> None:
    loss = DISCLoss(*networks())
    frames = with_columns(collect(loss.actor_network, 8)).exclude("loc")
    with pytest.raises(KeyError, match=r"\['loc'\] missing, which DISCLoss reads: keep .*keys="):
        loss(frames)
    copy.deepcopy(loss)


def test_inapplicable_arguments_are_refused() -> None:
    for loss_type in LOSSES:
        with pytest.raises(TypeError, match="has no argument delay_actor"):
            loss_type(*networks(), delay_actor=True)
    with pytest.raises(TypeError, match="GIPOLoss has no argument clip_epsilon"):
        GIPOLoss(*networks(), clip_epsilon=0.2)
    with pytest.raises(ValueError, match="sigma"):
        GIPOLoss(*networks(), sigma=0)
    with pytest.raises(ValueError, match="penalty_coeff"):
        DISCLoss(*networks(), penalty_coeff=65)
    frames = with_columns(collect(networks("categorical")[0]))
    with pytest.raises(ValueError, match="DISCLoss needs a Gaussian actor"):
        DISCLoss(*networks("categorical"))(frames)


def test_the_penalty_adapts_within_its_bounds_and_is_saved() -> None:
    loss = DISCLoss(*networks())
    kept = [loss.adapt_penalty(value) for value in (1.49e-3, 1e-3 / 1.49)]
    assert kept == [1, 1]
    assert [loss.adapt_penalty(torch.tensor([0.0, 1.0])) for _ in range(8)][-3:] == [64, 64, 64]
    other = DISCLoss(*networks())
    other.load_state_dict(loss.state_dict())
    assert other.adapt_penalty(1e-3) == 64
    assert [loss.adapt_penalty(1e-4) for _ in range(17)][-3:] == [2**-9, 2**-10, 2**-10]
    assert DISCLoss(*networks(), penalty_coeff=0).adapt_penalty(1.0) == 0


def test_what_adapts_needs_a_finite_metric() -> None:
    actor, critic = networks()
    for given in (TensorDict({"penalty": torch.ones(3)}), torch.tensor([]), math.nan):
        with pytest.raises(ValueError, match="penalty=nan"):
            DISCLoss(actor, critic).adapt_penalty(given)
    with pytest.raises(ValueError, match="total_variation=nan"):
        GePPOLoss(actor, critic).adapt_learning_rate({"lr": 1e-3}, torch.tensor([]))


def test_geppos_step_size_follows_how_far_the_policy_moved() -> None:
    loss, group = GePPOLoss(*networks(), clip_epsilon=0.2), {"lr": 1.0}  # 0.05 to 0.1 is right
    sizes = [loss.adapt_learning_rate(group, tv) for tv in (0.07, torch.tensor([0.1, 0.2]), 0.04)]
    assert sizes == pytest.approx([1, 1 / 1.03, 1])
    assert group["lr"] == sizes[-1]


@pytest.mark.parametrize("storage", [None, LazyMemmapStorage])
def test_minibatches_carry_age_and_proximal_log_probability(storage: Any) -> None:
    actor = networks()[0]
    staleness = ISStalenessFilter(actor, math.inf, proximal_log_prob_key="proximal_log_prob")
    replay = MultiBatchReplayBuffer(
        2,
        8,
        8,
        staleness=staleness,
        keys=["observation", "action", "action_log_prob"],
        age_key="batch_age",
        storage=storage and storage(16),
    )
    for iteration in range(3):
        replay.extend(collect(actor, 8, seed=iteration))
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.add_(0.1)
        replay.refresh()
        stored = replay.storage[:]
        age = [[0] * 8, [1] * 8 + [0] * 8, [0] * 8 + [1] * 8][iteration]
        assert stored["batch_age"].tolist() == age
        dist = actor.get_dist(stored.select("observation"))
        now = dist.log_prob(stored["action"]).detach()
        for minibatch in replay:
            assert torch.equal(minibatch["batch_age"], stored["batch_age"][minibatch["index"]])
            found = minibatch["proximal_log_prob"]
            torch.testing.assert_close(found, now[minibatch["index"]])
