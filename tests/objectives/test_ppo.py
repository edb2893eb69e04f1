"""The loss: TorchRL's own numbers, safe for frames of old policies."""

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import set_composite_lp_aggregate
from torch import Tensor
from torchrl.objectives import ClipPPOLoss, SoftUpdate

from amber_trl.objectives import AmberPPOLoss
from tests.objectives.problem import collect, networks, step
from tests.transforms.problem import ACTORS
from tests.transforms.problem import collect as collect_heads

STOCK: dict[str, Any] = {
    "clip_epsilon": 0.4,
    "entropy_bonus": False,
    "critic_coeff": 1.0,
    "loss_critic_type": "l2",
    "max_importance_ratio": 1e3,
}


def both(
    amber: dict[str, Any], stock: dict[str, Any], kind: str = "gaussian", **kwargs: Any
) -> tuple[AmberPPOLoss, ClipPPOLoss]:
    """This library's loss and TorchRL's, over equal networks."""
    ours = AmberPPOLoss(*networks(kind, **kwargs), **amber)
    return ours, ClipPPOLoss(*networks(kind, **kwargs), **(STOCK | stock))


def assert_same(ours: AmberPPOLoss, stock: ClipPPOLoss, frames: TensorDict) -> None:
    emitted, grads = step(ours, frames)
    expected, expected_grads = step(stock, frames)
    assert {*emitted.keys()} == {*expected.keys(), "capped_frames", "mean_abs_deviation"}
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(emitted[key], expected[key]), key
    assert grads.keys() == expected_grads.keys() != set()
    for name, grad in expected_grads.items():
        assert torch.equal(grads[name], grad), name


# Ratios 1/2, 3/2, 3/2, 11/10 and advantages 1, 1, -1, 2, clipped to [4/5, 6/5]:
# minima 1/2, 6/5, -3/2, 11/5, mean 3/5. Values 1/2 against 1/2, 3/2, -1/2, 5/2: squares 0, 1, 1, 4.
def test_by_hand() -> None:
    actor, critic = networks(dtype=torch.float64)
    frames = collect(actor, 4)
    ratios = torch.tensor([0.5, 1.5, 1.5, 1.1], dtype=torch.float64)
    with torch.no_grad():
        now = actor.get_dist(frames).log_prob(frames["action"])
        for parameter in critic.parameters():
            parameter.zero_()
        critic.module.layers[-1].bias.fill_(0.5)
    frames["action_log_prob"] = now - ratios.log()
    frames["advantage"] = torch.tensor([[1.0], [1], [-1], [2]], dtype=torch.float64)
    frames["value_target"] = torch.tensor([[0.5], [1.5], [-0.5], [2.5]], dtype=torch.float64)
    emitted = AmberPPOLoss(actor, critic, clip_epsilon=0.2, critic_coeff=2)(frames)
    expected = {
        "loss_objective": -0.6,
        "loss_critic": 2 * 6 / 4,
        "clip_fraction": 3 / 4,
        "kl_approx": -float(ratios.log().mean()),
        "ESS": 4.6**2 / (4 * 5.96),
        "max_ratio": 1.5,
        "mean_ratio": 1.15,
        "capped_frames": 0,
        "mean_abs_deviation": 0.4,
    }
    for key, value in expected.items():
        assert emitted[key].item() == pytest.approx(value, rel=1e-6), key


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "preset": ({}, {}),
    "modules": ({"functional": False}, {"functional": False}),
    "clip": ({"clip_epsilon": 0.1}, {"clip_epsilon": 0.1}),
    "clip_pair": ({"clip_epsilon": (0.2, 0.28)}, {"clip_epsilon": (0.2, 0.28)}),
    "entropy": ({"entropy_coeff": 0.01}, {"entropy_coeff": 0.01, "entropy_bonus": True}),
    "critic_coeff": ({"critic_coeff": 0.5}, {"critic_coeff": 0.5}),
    "critic_off": ({"critic_coeff": 0}, {"critic_coeff": 0}),
    "smooth": ({"loss_critic_type": "smooth_l1"}, {"loss_critic_type": "smooth_l1"}),
    "value_clip": ({"clip_value": 0.2}, {"clip_value": 0.2}),
    "normalised": ({"normalize_advantage": True}, {"normalize_advantage": True}),
    "none": ({"reduction": "none"}, {"reduction": "none"}),
    "sum": ({"reduction": "sum"}, {"reduction": "sum"}),
    "low_cap": ({"max_importance_ratio": 1.1}, {"max_importance_ratio": 1.1}),
    "no_cap": ({"max_importance_ratio": None}, {"max_importance_ratio": None}),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_stock_loss(name: str, dtype: torch.dtype) -> None:
    ours, stock = both(*SETTINGS[name], dtype=dtype)
    assert_same(ours, stock, collect(networks(dtype=dtype)[0]))


@pytest.mark.parametrize("kind", ["categorical", "one_hot"])
def test_it_is_the_stock_loss_for_discrete_actions(kind: str) -> None:
    ours, stock = both(
        {"entropy_coeff": 0.02}, {"entropy_coeff": 0.02, "entropy_bonus": True}, kind
    )
    assert_same(ours, stock, collect(networks(kind)[0]))


def test_it_is_the_stock_loss_for_composite_actions() -> None:
    coefficients = {("action", "move_entropy"): 0.01, ("action", "grip_entropy"): 0.02}
    with set_composite_lp_aggregate(False):
        actor = ACTORS["composite"]()
        frames = collect_heads(actor, 16)
        frames["advantage"] = frames["value_target"] = torch.randn(16, 1)
        frames["action", "grip_log_prob"][3] -= 1000
        critic = networks()[1]
        ours = AmberPPOLoss(actor, critic, entropy_coeff=coefficients)
        stock = ClipPPOLoss(actor, critic, **(STOCK | {"entropy_bonus": True}), entropy_coeff=coefficients)  # fmt: skip
        emitted, expected = ours(frames), stock(frames)
    for key in ("loss_objective", "loss_critic", "loss_entropy"):
        assert torch.equal(emitted[key], expected[key])
    assert emitted["capped_frames"] == 1


def test_it_is_the_stock_loss_with_a_delayed_actor() -> None:
    ours, stock = both({"delay_actor": True}, {"delay_actor": True})
    frames = collect(networks()[0])
    for loss in (ours, stock):
        target = SoftUpdate(loss, eps=0.5)
        step(loss, frames)
        torch.optim.SGD(loss.parameters(), lr=0.5).step()
        target.step()
    assert_same(ours, stock, frames)


def test_the_cap_changes_no_bit_below_it() -> None:
    ours, uncapped = both({}, {"max_importance_ratio": None})
    actor = networks()[0]
    frames = collect(actor)
    with torch.no_grad():
        now = actor.get_dist(frames).log_prob(frames["action"])
    frames["action_log_prob"][0] = now[0] - math.log(999)
    assert_same(ours, uncapped, frames)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("functional", [True, False])
def test_an_overflowing_frame(dtype: torch.dtype, advantage: float, functional: bool) -> None:
    ours, stock = both(
        {"functional": functional}, {"functional": functional, "max_importance_ratio": None}, dtype=dtype
    )  # fmt: skip
    frames = collect(networks(dtype=dtype)[0])
    frames["action_log_prob"][5] -= 1000
    frames["advantage"][5] = advantage
    emitted, grads = step(ours, frames)
    assert all(value.isfinite().all() for value in [*emitted.values(), *grads.values()])
    assert emitted["capped_frames"] == 1
    _, grads = step(stock, frames)
    assert not all(grad.isfinite().all() for grad in grads.values())


@pytest.mark.parametrize(
    ("log_ratios", "capped"),
    [([], 0), ([-1000.0], 0), ([6.9], 0), ([6.92], 1), ([89.0, 1000, -1000, 6.92], 3)],
)
def test_capped_frames_are_counted(log_ratios: list[float], capped: int) -> None:
    actor, critic = networks()
    frames = collect(actor)
    with torch.no_grad():
        now = actor.get_dist(frames).log_prob(frames["action"])
    frames["action_log_prob"] = now.clone()
    frames["action_log_prob"][: len(log_ratios)] -= torch.tensor(log_ratios)
    for reduction in ("mean", "sum", "none"):
        emitted = AmberPPOLoss(actor, critic, reduction=reduction)(frames)
        assert emitted["capped_frames"].item() == capped
        assert emitted["capped_frames"].shape == ()
        assert not emitted["capped_frames"].requires_grad
    assert AmberPPOLoss(actor, critic, max_importance_ratio=None)(frames)["capped_frames"] == 0
    assert AmberPPOLoss(actor, critic, max_importance_ratio=1e-9)(frames)["capped_frames"] == (
        16 - log_ratios.count(-1000)
    )


def test_capped_frames_of_a_delayed_actor_are_those_of_the_behaviour() -> None:
    # Clipping acts on the ratio to the delayed actor, the cap on the ratio to the behaviour.
    actor, critic = networks()
    frames = collect(actor)
    frames["action_log_prob"][:2] -= 1000
    loss = AmberPPOLoss(actor, critic, delay_actor=True)
    SoftUpdate(loss, eps=0.9)
    emitted, grads = step(loss, frames)
    assert emitted["capped_frames"] == 2
    assert emitted["max_ratio"].item() == pytest.approx(1e3, rel=1e-4)
    # Two of sixteen frames are at the cap, the rest near 1.
    assert emitted["mean_abs_deviation"].item() == pytest.approx(2 * 999 / 16, abs=1)
    assert all(grad.isfinite().all() for grad in grads.values())


def test_the_clip_range_anneals_by_assignment() -> None:
    frames = collect(networks()[0])
    for start in (0.4, 1):  # an integer is annealed too
        loss = AmberPPOLoss(*networks(), clip_epsilon=start)
        for value in (0.25, 0.1, 0.0):
            loss.clip_epsilon = value
            ours, grads = step(loss, frames)
            stock, expected = step(ClipPPOLoss(*networks(), **(STOCK | {"clip_epsilon": value})), frames)  # fmt: skip
            assert torch.equal(ours["loss_objective"], stock["loss_objective"])
            assert all(torch.equal(grad, grads[name]) for name, grad in expected.items())
    loss = AmberPPOLoss(*networks(), clip_epsilon=(0.2, 0.3))
    loss.clip_epsilon_low, loss.clip_epsilon_high = 0.05, 0.1
    stock, _ = step(ClipPPOLoss(*networks(), **(STOCK | {"clip_epsilon": (0.05, 0.1)})), frames)
    assert torch.equal(loss(frames)["loss_objective"], stock["loss_objective"])
    with pytest.raises(AttributeError, match="clip_epsilon"):
        loss.clip_epsilon = 0.1


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan])
def test_a_clip_range_is_between_0_and_1(wrong: float) -> None:
    with pytest.raises(ValueError, match="clip_epsilon"):
        AmberPPOLoss(*networks(), clip_epsilon=wrong)


def test_the_entropy_bonus() -> None:
    frames = collect(networks()[0])
    without = AmberPPOLoss(*networks())(frames)
    assert not {"loss_entropy", "entropy"} & {*without.keys()}
    emitted = AmberPPOLoss(*networks(), entropy_coeff=0.01)(frames)
    # A Gaussian of two dimensions and deviation 1: 2 (1/2 log(2 pi) + 1/2).
    entropy = math.log(2 * math.pi) + 1
    assert emitted["entropy"].item() == pytest.approx(entropy, rel=1e-6)
    assert emitted["loss_entropy"].item() == pytest.approx(-0.01 * entropy, rel=1e-6)


def test_a_call_leaves_nothing_behind() -> None:
    actor, critic = networks()
    loss, frames = AmberPPOLoss(actor, critic), collect(actor)
    stored = frames.clone()
    loss(frames)
    assert (frames == stored).all()
    assert {*frames.keys()} == {*stored.keys()}
    assert not [name for name, value in vars(loss).items() if isinstance(value, Tensor)]
