"""A critic that learns from every stored batch, while the actor learns from those in use."""

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from amber_trl.data import AdaptiveMinibatchSampler, MultiBatchReplayBuffer, RecomputedAdvantages
from amber_trl.modules import gaussian_actor, value_critic
from amber_trl.objectives import AmberPPOLoss, DISCLoss, GePPOLoss, GIPOLoss
from amber_trl.training import UpdateStep
from amber_trl.transforms import ISStalenessFilter

N, M = 64, 16
VALUE_KEYS = {"loss_critic", "explained_variance"}


class _Learner:
    """Three stored batches; the oldest is not in use."""

    def __init__(
        self, loss_type: type[AmberPPOLoss] = AmberPPOLoss, scale_minibatch: bool = True
    ) -> None:
        torch.manual_seed(0)
        actor = gaussian_actor(3, 2, hidden_sizes=(8,))
        self.critic = value_critic(3, hidden_sizes=(8,))
        staleness = ISStalenessFilter(actor, 0.25, proximal_log_prob_key="proximal_log_prob")
        self.replay = MultiBatchReplayBuffer(
            3,
            N,
            M,
            staleness=staleness,
            advantages=RecomputedAdvantages(
                self.critic, "gae-v", gamma=0.9, lmbda=0.9, every_batch=True
            ),
            sampler=AdaptiveMinibatchSampler(N, scale_minibatch=scale_minibatch),
            age_key="batch_age",
        )
        for number in range(3):
            frames = actor(TensorDict({"observation": torch.randn(N, 3)}, [N])).detach()
            frames["action_log_prob"] -= 2.0 * (number == 0)
            reward, no = torch.randn(N, 1), torch.zeros(N, 1, dtype=torch.bool)
            frames["next"] = {"observation": torch.randn(N, 3), "reward": reward}
            frames["next"].update({"done": no, "terminated": no.clone()})
            self.replay.extend(frames)
        assert self.replay.refresh()["active"].tolist() == [True, True, False]
        self.loss = loss_type(actor, self.critic, functional=False)

    def epoch(self, compile: bool) -> tuple[TensorDict, list[Tensor]]:
        optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-2)
        update = UpdateStep(self.loss, optimizer, compile=compile, critic_on_all=True)
        metrics = update.epoch(self.replay)
        return metrics, [parameter.detach() for parameter in self.loss.parameters()]


def test_each_epoch_passes_over_the_batches_in_use_and_over_all() -> None:
    replay = _Learner().replay
    policy, critic = replay.epoch(), replay.epoch(every_batch=True)
    assert policy.shape == (N // M, 2 * M)
    assert critic.shape == (N // M, 3 * M)
    assert sorted(policy.flatten().tolist()) == list(range(N, 3 * N))
    assert sorted(critic.flatten().tolist()) == list(range(3 * N))
    assert replay.batch_size == 2 * M


def test_value_targets_of_all_are_recomputed() -> None:
    learner = _Learner()
    with torch.no_grad():
        next(learner.critic.parameters()).mul_(2)
    learner.replay.extend(learner.replay[:][2 * N :].clone())  # in place of the oldest
    assert learner.replay.refresh()["slot"].tolist() == [0, 2, 1]
    advantages = learner.replay.advantages
    assert advantages is not None
    for batch in learner.replay[:].split(N):
        expected = advantages(batch.clone())["value_target"]
        torch.testing.assert_close(batch["value_target"], expected)


@pytest.mark.parametrize("loss_type", [AmberPPOLoss, DISCLoss, GePPOLoss, GIPOLoss])
def test_only_the_value_loss_is_of_the_critic_s_frames(loss_type: type[AmberPPOLoss]) -> None:
    learner = _Learner(loss_type)
    stored = learner.replay[:]
    frames, others = stored[N:], stored[: N + 10]
    alone, both = learner.loss(frames), learner.loss(frames, others)
    expected = (learner.critic(others.clone())["state_value"] - others["value_target"]).square()
    torch.testing.assert_close(both["loss_critic"], expected.mean())
    for key in {*alone.keys()} - VALUE_KEYS:
        assert torch.equal(alone[key], both[key]), key
    assert torch.equal(learner.loss(frames)["loss_critic"], alone["loss_critic"])


def test_compiled_agrees_with_eager() -> None:
    (ours, weights), (theirs, expected) = (_Learner().epoch(compile) for compile in (True, False))
    torch.testing.assert_close(ours.to_dict(), theirs.to_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_networks_may_be_converted_while_batches_are_stored() -> None:
    learner = _Learner()
    learner.loss.double()
    learner.replay.refresh()
    assert learner.replay[:]["value_target"].dtype == torch.float32


def test_refused() -> None:
    learner = _Learner()
    frames = learner.replay[:]
    with pytest.raises(ValueError, match="mask"):
        learner.loss(frames, frames.copy().set(("collector", "mask"), frames["next", "done"]))
    with pytest.raises(ValueError, match="scale_minibatch"):
        _Learner(scale_minibatch=False).epoch(compile=False)
    assert learner.replay.advantages is not None
    learner.replay.advantages.every_batch = False
    with pytest.raises(ValueError, match=r"every_batch=True: value targets"):
        learner.epoch(compile=False)
    learner.loss = ClipPPOLoss(learner.loss.actor_network, learner.critic, functional=False)
    with pytest.raises(TypeError, match="critic_on_all=True with loss of type ClipPPOLoss"):
        learner.epoch(compile=False)
