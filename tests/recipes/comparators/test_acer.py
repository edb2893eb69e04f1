"""ACER: its equations against numbers worked out by hand, then its recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run_recipe
from comparators import acer
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import IndependentNormal

from amber_trl.errors import NonFiniteDataError
from amber_trl.evaluation import read_run
from amber_trl.modules import ObservationNormalizer, gaussian_actor
from amber_trl.runs import load_policy
from tests.runs.left import read_tables, stopping

pytest.importorskip("stable_baselines3")


def segment(reward: list[float], ends: dict[int, str]) -> TensorDict:
    """Frames with these rewards, of which some end an episode: terminated or truncated."""
    frames = range(len(reward))
    flags = {
        "reward": torch.tensor(reward),
        "done": torch.tensor([frame in ends for frame in frames]),
        "terminated": torch.tensor([ends.get(frame) == "terminated" for frame in frames]),
    }
    next_ = {name: value[:, None] for name, value in flags.items()}
    return TensorDict({"next": TensorDict(next_, [len(reward)])}, [len(reward)])


def test_retrace_of_a_worked_example() -> None:
    """The second frame terminates, the fourth is truncated, the fifth ends the segment."""
    frames = segment([1, 2, 3, 4, 5], {1: "terminated", 3: "truncated"})
    next_value, q = torch.tensor([10.0, 20, 30, 40, 50]), torch.tensor([1.0, 1, 2, 3, 4])
    trace = torch.tensor([1, 0.5, 1, 0.25, 1])
    found = acer.corrected_return(frames, next_value, q, trace, 0.5)
    # From the end: 5 + 50 / 2; 4 + 40 / 2; 3 + ((24 - 3) / 4 + 30) / 2; 2; 1 + ((2 - 1) / 2 + 10) / 2
    assert found.tolist() == pytest.approx([6.25, 2, 20.625, 24, 30])
    found = acer.corrected_return(frames, next_value, q, torch.ones(5), 0.5)
    assert found.tolist() == pytest.approx([6.5, 2, 28.5, 24, 30])


def test_weights_are_truncated_and_the_rest_is_made_up_for() -> None:
    truncated, correction = acer.truncated_weights(
        torch.tensor([0.5, 7]), torch.tensor([4.0, 10]), c=5
    )
    assert truncated.tolist() == [0.5, 5]
    assert correction.tolist() == [0, 0.5]
    # (7): over any discrete policies, both terms together are the mean over the current one.
    behaviour, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.2, 0.7])
    ratio, what = policy / behaviour, torch.tensor([1.0, -2, 5])
    truncated, correction = acer.truncated_weights(ratio, ratio, c=2)
    both = behaviour * truncated * what + policy * correction * what
    assert both.sum() == pytest.approx((policy * what).sum().item())


@pytest.mark.parametrize("ratio", [0.0, torch.inf])
def test_a_ratio_that_overflows_or_vanishes_has_weights(ratio: float) -> None:
    truncated, correction = acer.truncated_weights(torch.tensor(ratio), torch.tensor(ratio), c=5)
    assert (truncated.item(), correction.item()) == ((5, 1) if ratio else (0, 0))


def test_gradients_of_the_gaussian() -> None:
    loc, scale = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0]])
    action = torch.tensor([[5.0, 1.0]])
    # (a - loc) / scale^2, then ((a - loc)^2 / scale^2 - 1) / scale
    assert acer.score(loc, scale, action).tolist() == [[1, 1, 1.5, 0]]
    average = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 2.0]])
    k = acer.divergence_gradient(loc, scale, *average)
    # (loc - loc_a) / scale^2, then 1 / scale - (scale_a^2 + (loc - loc_a)^2) / scale^3
    assert k.tolist() == [[0.25, 0, 0.25, -3]]
    loc.requires_grad_()
    scale.requires_grad_()
    policy = IndependentNormal(loc, scale)
    for value, ours in (
        (policy.log_prob(action), acer.score(loc, scale, action)),
        (torch.distributions.kl_divergence(IndependentNormal(*average), policy), k),
    ):
        theirs = torch.autograd.grad(value.sum(), (loc, scale))
        torch.testing.assert_close(torch.cat(theirs, -1), ours)


def test_the_trust_region_projects_onto_its_constraint() -> None:
    def project(gradient: list[float], k: list[float]) -> Tensor:
        return acer.trust_region(torch.tensor([gradient]), torch.tensor([k]), delta=1.0)

    assert project([3, 4], [1, 0]).tolist() == [[1, 4]]  # excess (3 - 1) / 1
    assert project([0.5, 4], [1, 0]).tolist() == [[0.5, 4]]  # within it
    assert project([3, 4], [0, 0]).tolist() == [[3, 4]]  # where the average is the policy
    torch.manual_seed(0)
    gradient, k, others = 3 * torch.randn(50, 4), torch.randn(50, 4), torch.randn(50, 4)
    found = acer.trust_region(gradient, k, 0.1)
    bound = (k * gradient).sum(-1)
    assert (bound > 0.1).sum() > 5
    torch.testing.assert_close((k * found).sum(-1), bound.clamp_max(0.1), rtol=0, atol=1e-5)
    allowed = (k * others).sum(-1) <= 0.1
    distances = ((gradient - z).norm(dim=-1)[allowed] for z in (found, others))
    assert torch.le(*distances).all()


def build(**options: Any) -> tuple[acer.ACERLoss, acer.Config]:
    torch.manual_seed(0)
    normalizer = ObservationNormalizer(3)
    config = acer.Config(**options)
    critic = acer.DuellingNetwork(3, 1, normalizer)
    actor = gaussian_actor(3, 1, normalizer=normalizer)
    return acer.ACERLoss(actor.module[0].module, critic, config), config


def test_the_duelling_network_agrees_with_its_value() -> None:
    loss, _ = build()
    state, policy = torch.randn(1, 3), IndependentNormal(torch.zeros(1, 1), torch.ones(1, 1))
    samples = policy.sample((20_000,))
    value, q = loss.critic(state, samples, samples)
    assert q.mean().item() == pytest.approx(value.item(), abs=1e-4)
    assert q.std() > 0.05
    estimates = torch.cat(
        [loss.critic(state, policy.sample((1,)), policy.sample((5,)))[1] for _ in range(2000)]
    )
    error = estimates.std() / len(estimates) ** 0.5
    assert (estimates.mean() - value).abs() < 4 * error
    assert estimates.std() > 1.05 * q.std()  # five samples instead of all


def test_the_update_of_a_segment_of_two_frames() -> None:
    """With a critic of 0, only rewards count: Q = (1 + 2 / 2, 2) for ret and opc."""
    loss, _ = build(gamma=0.5, delta=1e9)
    for parameter in loss.critic.parameters():
        parameter.data.zero_()
    frames = segment([1.0, 2.0], {1: "terminated"})
    frames["observation"] = frames["next", "observation"] = torch.zeros(2, 3)
    frames["action"] = torch.tensor([[3.0], [-1.0]])
    frames["loc"], frames["scale"] = torch.zeros(2, 1), torch.ones(2, 1)  # the actor's at 0
    frames["action_log_prob"] = IndependentNormal(frames["loc"], frames["scale"]).log_prob(
        frames["action"]
    )
    found = loss(frames)
    assert (found["loss_q"], found["loss_value"]) == (2, 2)
    found["loss_actor"].backward()
    phi: Any = loss.phi
    # Minus the mean of Q (a - loc) / scale^2, and of Q ((a - loc)^2 - 1), on a scale of 1.
    assert phi.network.layers[-1].bias.grad.item() == pytest.approx(-(2 * 3 + 2 * -1) / 2)
    assert phi.log_std.grad.item() == pytest.approx(-(2 * 8 + 2 * 0) / 2)


def test_the_average_policy_follows_slowly_and_shares_the_statistics() -> None:
    loss, _ = build(alpha=0.75)
    phi: Any = loss.phi
    average: Any = loss.average_phi
    assert average.network.normalizer is phi.network.normalizer
    phi.log_std.data.fill_(4.0)
    loss.follow()
    assert average.log_std.item() == 1.0
    assert not any(parameter.requires_grad for parameter in average.parameters())


def train(run_dir: Path, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"env_id": "Pendulum-v1", "total_frames": 400, "progress": False}
    return acer.learn(*acer.open_run(acer.Config(run_dir=run_dir, **given | options)))


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    assert train(whole)["exactness"] == "exact"
    with stopping(200):
        stopped = train(run_dir)
    assert (stopped["stopped_by"], stopped["frames"] < 400) == ("SIGTERM", True)
    monkeypatch.setattr("sys.argv", ["acer.py", "--resume", str(run_dir)])
    assert run_recipe(acer.Config, acer.__doc__, acer.open_run, acer.learn) == 0
    assert read_tables(run_dir) == read_tables(whole)
    assert read_run(whole).iterations["loss_q"].max() < 10  # 1000 if rewards were not scaled
    said = json.loads((run_dir / "config.json").read_text())
    assert said.items() >= {"setup": "acer", "protocol": "paper", "time_limits": "terminal"}.items()
    assert load_policy(run_dir / "policy.pt").env_id == "Pendulum-v1"


def test_an_iteration_may_replay_nothing(tmp_path: Path) -> None:
    assert train(tmp_path, total_frames=100, replay_ratio=1e-9, log_interval=1)["frames"] == 100
    header, *rows = (tmp_path / "iterations.csv").read_text().splitlines()
    assert "loss_actor" in header
    assert [row.split(",")[1] for row in rows] == ["0", "0"]


def test_it_stops_when_nothing_can_be_learnt(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteDataError):
        train(tmp_path / "run", env_id="tests.recipes.faulty:Broken-v0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-id", "CartPole-v1"], "discrete actions"),
        (["--delta", "0"], "delta=0"),
        (["--env-id", "Pendulum-v9"], "Pendulum-v9"),
        (["--init-from", "nowhere"], "nowhere"),
    ],
)
def test_errors_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["acer.py", "--run-dir", str(tmp_path / "run"), *words])
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        run_recipe(acer.Config, acer.__doc__, acer.open_run, acer.learn)
    assert not (tmp_path / "run").exists()
