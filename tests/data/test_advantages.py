"""Advantages that a buffer recomputes: by hand, against TorchRL's GAE, and in a loop."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.objectives.value import GAE

from amber_trl.collectors import GymCollector
from amber_trl.data import MultiBatchReplayBuffer, RecomputedAdvantages
from amber_trl.envs import make_env
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.transforms import ISStalenessFilter
from tests.data.frames import make_filter

KEYS = ("advantage", "value_target")


def _critic() -> TensorDictModule:
    """``V(s) = s``."""
    return TensorDictModule(torch.nn.Identity(), ["observation"], ["state_value"])


def _column(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)[..., None]


def _two_environments() -> TensorDict:
    """The first terminates after its second frame, the second is truncated there; both are cut."""
    done = _column([0, 1, 0, 0], [0, 1, 0, 0]).bool()
    ratio = _column([0.5, 2.0, 0.5, 0.25], [4.0, 0.5, 0.25, 0.5])
    observation = _column([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    return TensorDict(
        {
            "observation": observation,
            "action_log_prob": -ratio.log().squeeze(-1),
            "proximal_log_prob": torch.zeros(2, 4),
            "next": {
                "observation": _column([2.0, 100.0, 4.0, 6.0], [2.0, 10.0, 4.0, 8.0]),
                "reward": _column([1.0, 3.0, 3.0, 4.0], [1.0, 3.0, 3.0, 4.0]),
                "done": done,
                "terminated": done & (torch.arange(2) == 0)[:, None, None],
            },
        },
        [2, 4],
    )


# With gamma = lambda = 1/2; delta is 1, 1, 2, 3 and 1, 6, 2, 4.
BY_HAND = {
    # A_t = delta_t + A_{t+1} / 4, within episodes
    "gae": ([1.25, 1.0, 2.75, 3.0], [2.5, 6.0, 3.0, 4.0]),
    # A_t = delta_t + c_{t+1} A_{t+1} / 4, c being 1/2, 1, 1/2, 1/4 and 1, 1/2, 1/4, 1/2
    "gae-v": ([1.25, 1.0, 2.1875, 3.0], [1.75, 6.0, 2.5, 4.0]),
    # A_t = delta_t + x_{t+1} / 2, with x_t = c_t (delta_t + x_{t+1} / 4)
    "vtrace": ([1.5, 1.0, 2.375, 3.0], [2.5, 6.0, 3.0, 4.0]),
}
TRACED = ([1.625, 3.0, 4.09375, 4.75], [2.75, 5.0, 3.625, 6.0])  # V + c A of GAE-V, V + x
TARGETS = {"gae": ([2.25, 3.0, 5.75, 7.0], [3.5, 8.0, 6.0, 8.0]), "gae-v": TRACED, "vtrace": TRACED}


@pytest.mark.parametrize("estimator", BY_HAND)
@pytest.mark.parametrize(("chunk_size", "scale"), [(4096, 1.0), (3, 2.0)])
def test_by_hand(estimator: Any, chunk_size: int, scale: float) -> None:
    advantages = RecomputedAdvantages(
        _critic(), estimator, gamma=0.5, lmbda=0.5, frames_per_env=4, chunk_size=chunk_size
    )
    advantages.reward_scale = scale
    frames = _two_environments()
    frames["next", "reward"] *= scale
    one = advantages(frames.reshape(-1))
    several = advantages(torch.stack([frames.reshape(-1)] * 2))
    for written in (one, several[0], several[1]):
        torch.testing.assert_close(written["advantage"], _column(*BY_HAND[estimator]).view(-1, 1))
        torch.testing.assert_close(
            written["value_target"], _column(*TARGETS[estimator]).view(-1, 1)
        )


@pytest.mark.parametrize("estimator", BY_HAND)
def test_a_terminal_observation_is_not_read(estimator: Any) -> None:
    frames = _two_environments()
    frames["next", "observation"][0, 1] = math.nan
    advantages = RecomputedAdvantages(_critic(), estimator, gamma=0.5, lmbda=0.5, frames_per_env=4)
    assert advantages(frames.reshape(-1))["advantage"].isfinite().all()


class _Collected:
    """Pendulum and its networks; batches have truncations, cuts and, as stored, terminations."""

    def __init__(self, num_batches: int, **options: Any) -> None:
        torch.manual_seed(0)
        env = make_env("Pendulum-v1", 2, seed=0)
        self.actor, self.critic = gaussian_actor(3, 1), value_critic(3)
        self.gae = GAE(gamma=0.9, lmbda=0.8, value_network=self.critic, average_gae=True)
        advantages = RecomputedAdvantages(
            self.critic, gamma=0.9, lmbda=0.8, standardize=True, frames_per_env=256, **options
        )
        key = advantages.proximal_log_prob_key
        self.staleness = ISStalenessFilter(self.actor, report_only=True, proximal_log_prob_key=key)
        self.replay = MultiBatchReplayBuffer(
            num_batches, 512, 64, staleness=self.staleness, advantages=advantages
        )
        self.batches = [
            batch.copy()
            for batch in GymCollector(
                env, self.actor, frames_per_batch=512, total_frames=512 * num_batches
            )
        ]
        self.batches[0]["next", "terminated"] = self.batches[0]["next", "done"]


@pytest.mark.parametrize("estimator", BY_HAND)
def test_right_after_collection_they_are_torchrls_gae(estimator: Any) -> None:
    """All three, up to rounding: the ratios are 1, and V-trace gets its own lambda."""
    run = _Collected(2, estimator=estimator)
    for batch in run.batches:
        run.replay.extend(batch)
    run.replay.refresh()
    for number, batch in enumerate(run.batches):
        expected = run.gae(batch).reshape(-1)
        stored = run.replay[:][number * 512 : (number + 1) * 512]
        for key in KEYS if estimator != "vtrace" else KEYS[1:]:
            torch.testing.assert_close(stored[key], expected[key], rtol=1e-4, atol=1e-4)


def test_they_follow_the_critic_and_the_batches_in_use() -> None:
    run = _Collected(2)
    for batch in run.batches:
        run.replay.extend(batch)
    run.replay.refresh()
    before = run.replay[:].clone()
    with torch.no_grad():
        for parameter in run.critic.parameters():
            parameter.mul_(1.5)
        for parameter in run.actor.parameters():
            parameter.add_(0.1)
    run.staleness.report_only, run.staleness.drop_factor = False, 0.0
    assert run.replay.refresh()["active"].tolist() == [True, False]  # newest first
    after = run.replay[:]
    for key in KEYS:
        assert torch.equal(after[key][:512], before[key][:512])
        expected = run.gae(run.batches[1])[key].reshape(-1, 1)
        torch.testing.assert_close(after[key][512:], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("networks", "rewards"), [(torch.float64, torch.float32), (torch.float32, torch.int64)]
)
def test_the_columns_have_the_critic_s_dtype(networks: torch.dtype, rewards: torch.dtype) -> None:
    run = _Collected(1, estimator="vtrace")
    run.actor.to(networks)
    run.critic.to(networks)
    batch = run.batches[0].apply(lambda x: x.to(networks) if x.is_floating_point() else x)
    batch["next", "reward"] = batch["next", "reward"].to(rewards).squeeze(-1)
    run.replay.extend(batch)
    run.replay.refresh()
    for key in KEYS:
        assert run.replay[:][key].dtype == networks
        assert run.replay[:][key].any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_no_critic(copied: Any) -> None:
    run = _Collected(1)
    twin = copied(run.replay)
    twin.staleness.set_actor(run.actor)
    with pytest.raises(RuntimeError, match="set_critic"):
        twin.extend(run.batches[0])
    twin.advantages.set_critic(run.critic)
    twin.extend(run.batches[0])


def test_refused() -> None:
    advantages = RecomputedAdvantages(_critic(), "vtrace", gamma=0.9, lmbda=0.9)
    with pytest.raises(ValueError, match="staleness"):
        MultiBatchReplayBuffer(2, 8, 4, advantages=advantages)
    with pytest.raises(ValueError, match="proximal_log_prob_key"):
        MultiBatchReplayBuffer(2, 8, 4, advantages=advantages, staleness=make_filter())
    with pytest.raises(TypeError, match="advantages"):
        MultiBatchReplayBuffer(2, 8, 4, advantages=GAE, staleness=make_filter())
    with pytest.raises(ValueError, match="estimator"):
        RecomputedAdvantages(_critic(), "td", gamma=0.9, lmbda=0.9)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gamma"):
        RecomputedAdvantages(_critic(), gamma=1.1, lmbda=0.9)
    run = _Collected(1)
    with pytest.raises(ValueError, match="frames_per_env=128"):
        run.replay.extend(run.batches[0].reshape(4, 128))
    with pytest.raises(KeyError, match="reward"):
        run.replay.extend(run.batches[0].exclude(("next", "reward")))
    frames = _two_environments().reshape(-1)
    with pytest.raises(KeyError, match="proximal_log_prob"):
        advantages(frames.exclude("proximal_log_prob"))
    for shape in ((2, 2, 2), (0,)):
        with pytest.raises(ValueError, match="shape"):
            advantages(frames[: math.prod(shape)].reshape(shape))
    with pytest.raises(ValueError, match="frames_per_env"):
        RecomputedAdvantages(_critic(), gamma=0.9, lmbda=0.9, frames_per_env=5)(frames)
    other = TensorDictModule(torch.nn.Identity(), ["observation"], ["value"])
    with pytest.raises(TypeError, match="state_value"):
        RecomputedAdvantages(other, gamma=0.9, lmbda=0.9)
