"""The contracts of GymCollector: counting, carrying over, seeds, weights, state, refusals."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import BaseCollector, Collector
from torchrl.envs import (
    EnvBase,
    GymWrapper,
    RewardSum,
    SerialEnv,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.envs.utils import ExplorationType
from torchrl.modules import LSTMModule

from amber_trl.collectors import CollectionState, GymCollector
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.modules import categorical_actor, gaussian_actor
from tests.collectors.problem import (
    Float32,
    assert_same_batch,
    gaussian,
    single,
    state_dependent,
    vector,
)


def collector_of(num_envs: int = 2, frames: int = 10, **kwargs: Any) -> GymCollector:
    env = vector("InvertedPendulum-v5", num_envs)
    return GymCollector(env, gaussian(4, 1), frames_per_batch=frames, **kwargs)


def take(collector: BaseCollector, batches: int) -> TensorDictBase:
    """Several batches, joined along time."""
    found = iter(collector)
    joined: Any = torch.cat([next(found) for _ in range(batches)], dim=-1)
    return joined


def test_simulators_of_another_model_start_new_episodes() -> None:
    first, other = (collector_of() for _ in range(2))
    take(first, 2)
    other.env._env.envs[1].unwrapped.model.body_mass[1] *= 1.1
    state = CollectionState(other, other.env)
    state.load_state_dict(CollectionState(first, first.env).state_dict())
    assert not state.continues
    simulated = np.stack([env.unwrapped._get_obs() for env in other.env._env.envs])
    assert np.array_equal(other.rollout()["observation"][:, 0], simulated)


@pytest.mark.parametrize("kind", [GymCollector, Collector])
def test_what_was_saved_is_restored_although_new_episodes_start(kind: Any) -> None:
    def begin() -> Any:
        normalize = "gymnasium.wrappers:NormalizeObservation"
        env = make_env("InvertedPendulum-v5", 2, seed=0, wrappers=(normalize,))
        for copy in env._env.envs:
            copy.unwrapped.settings = object()  # cannot be saved
        plain = {} if kind is GymCollector else {"auto_register_policy_transforms": False}
        return kind(env, gaussian(4, 1), frames_per_batch=20, total_frames=-1, **plain)

    first, other = begin(), begin()
    take(first, 2)
    state = CollectionState(other, other.env)
    state.load_state_dict(CollectionState(first, first.env).state_dict())
    assert not state.continues
    first.reset()
    (one, two) = (take(each, 1)["observation"][:, 0] for each in (first, other))
    assert torch.equal(one, two)  # of equal generators and statistics
    assert not torch.equal(two, take(begin(), 1)["observation"][:, 0])


class Counter(gym.Env[Any, Any]):
    """Observes the episode's number and the step; each episode is longer than the last."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, first_length: int = 3) -> None:
        self.episode, self.time, self.length = -1, 0, first_length - 1
        self.fails_at = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time, self.length = self.episode + 1, 0, self.length + 1
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 0  # An environment must not do this; the recorded action is unaffected.
        self.time += 1
        if self.time == self.fails_at:
            raise KeyboardInterrupt
        over = self.time == self.length
        return self._observation(), -0.0, over and self.episode % 2 == 0, over, {}

    def _observation(self) -> Any:
        return np.array([self.episode, self.time], np.float32)


def counters(*first_lengths: int) -> EnvBase:
    makers = [lambda n=n: Counter(n) for n in first_lengths]
    return GymWrapper(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED))


def test_frames_episodes_and_ids_by_hand() -> None:
    collector = GymCollector(counters(3, 2), state_dependent(2, 1), frames_per_batch=10)
    batch = take(collector, 2)
    assert batch.batch_size == (2, 10)
    assert batch["observation"][0].tolist() == [
        [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 2],
    ]  # fmt: skip
    assert batch["next", "observation"][0].tolist() == [
        [0, 1], [0, 2], [0, 3], [1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [2, 3],
    ]  # fmt: skip
    done = batch["next", "done"].squeeze(-1)
    assert done.int().tolist() == [[0, 0, 1, 0, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0, 0, 1, 0]]
    terminated = batch["next", "terminated"].squeeze(-1)
    assert terminated.nonzero().tolist() == [[0, 2], [1, 1], [1, 8]]
    assert torch.equal(batch["next", "truncated"].squeeze(-1), done)
    assert not batch["done"].any()
    assert not batch["terminated"].any()
    assert batch["collector", "traj_ids"].tolist() == [
        [0, 0, 0, 3, 3, 3, 3, 5, 5, 5],
        [1, 1, 2, 2, 2, 4, 4, 4, 4, 6],
    ]
    assert not torch.signbit(batch["next", "reward"]).any()
    assert (batch["action"] != 0).all()


def test_a_batch_shares_no_memory_with_the_next() -> None:
    for env in (counters(3), GymWrapper(Counter())):
        collector = GymCollector(env, state_dependent(2, 1), frames_per_batch=4)
        batches = iter(collector)
        first = next(batches)
        kept = first.clone()
        first.zero_()
        second = next(batches)
        assert second["observation"].reshape(-1, 2)[0].tolist() == [1, 1]
        assert torch.equal(kept["next", "observation"].reshape(-1, 2)[-1], torch.tensor([1.0, 1]))


def test_counts_to_total_frames_and_then_closes_the_environment() -> None:
    collector = collector_of(frames=10, total_frames=25)
    sizes = []
    for batch in collector:
        sizes.append(batch.numel())
        assert collector.env.is_closed == (len(sizes) == 3)
    assert sizes == [10, 10, 10]
    assert len(collector) == 3
    assert list(collector) == []
    assert collector.stats()["frames"] == 30
    assert collector.stats()["completed"]


def test_endless_from_a_callable_and_through_next() -> None:
    collector = GymCollector(lambda: single("Pendulum-v1"), gaussian(3, 1), frames_per_batch=5)
    assert [collector.next().batch_size for _ in range(3)] == [(5,)] * 3
    assert collector.total_frames == float("inf")


def test_hooks_are_called_around_each_batch() -> None:
    seen: list[object] = []
    collector = collector_of(
        total_frames=20,
        pre_collect_hook=lambda: seen.append("before"),
        post_collect_hook=lambda batch: seen.append(batch.numel()),
    )
    assert len(list(collector)) == 2
    assert seen == ["before", 10, "before", 10]


def test_storing_device_is_where_batches_are() -> None:
    assert take(collector_of(), 1).device is None
    assert take(collector_of(storing_device="cpu"), 1).device == torch.device("cpu")


def test_set_seed_resets_and_the_first_observation_is_of_that_reset() -> None:
    collector = collector_of(frames=20)
    assert collector.set_seed(5) == Collector.set_seed(collector, 5)
    assert collector.set_seed(5, static_seed=True) == 5
    first = take(collector, 1)
    for lane in range(2):
        expected, _ = gym.make("InvertedPendulum-v5").reset(seed=5 + lane)
        assert np.array_equal(first["observation"][lane, 0].numpy(), expected)
    later = int(first["collector", "traj_ids"].max())
    collector.set_seed(5)
    again = take(collector, 1)
    assert torch.equal(again["observation"][:, 0], first["observation"][:, 0])
    assert int(again["collector", "traj_ids"].min()) > later


def test_reset_starts_new_trajectories() -> None:
    collector = GymCollector(counters(5, 5), state_dependent(2, 1), frames_per_batch=4)
    take(collector, 1)
    collector.reset()
    batch = take(collector, 1)
    assert batch["observation"][:, 0].tolist() == [[1, 0], [1, 0]]
    assert batch["collector", "traj_ids"][:, 0].tolist() == [2, 3]


def test_weights_are_seen_and_can_be_copied_in() -> None:
    collector = collector_of()
    batches = iter(collector)
    next(batches)
    other = gaussian(4, 1)
    for actor in (collector.policy, other):  # state_dict would leave it out
        actor.register_buffer("temperature", torch.ones(1), persistent=False)
    for source in (other, TensorDict.from_module(other)):
        for parameter in collector.policy.parameters():
            parameter.data.zero_()
        collector.update_policy_weights_(source)
        for name, value in other.state_dict().items():
            assert torch.equal(collector.policy.state_dict()[name], value)
    collector.update_policy_weights_()
    batch = next(batches)
    with torch.no_grad():
        assert torch.allclose(other(batch.clone())["loc"], batch["loc"], atol=1e-6)
    assert collector.capture_failure is None


@pytest.mark.parametrize(
    ("weights", "error"),
    [([1.0], TypeError), (TensorDict(), RuntimeError), (gaussian_actor(3, 1), RuntimeError)],
)
def test_anything_but_the_actors_weights_is_refused(weights: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="policy_or_weights"):
        collector_of().update_policy_weights_(weights)


def test_state_dict_restores_counters_and_weights_and_starts_new_trajectories() -> None:
    one, other = collector_of(), collector_of()
    take(one, 2)
    other.load_state_dict(one.state_dict())
    assert other.stats() == one.stats()
    assert torch.equal(*(next(iter(c.policy.parameters())) for c in (one, other)))
    next_id = one.state_dict()["traj_pool"]["traj_id"]
    assert take(other, 1)["collector", "traj_ids"][:, 0].tolist() == [next_id, next_id + 1]


def test_state_dict_is_exchanged_with_torchrl() -> None:
    actor = gaussian(4, 1)
    theirs = Collector(
        vector("InvertedPendulum-v5", 2),
        actor,
        frames_per_batch=10,
        auto_register_policy_transforms=False,
    )
    take(theirs, 2)
    ours = collector_of()
    ours.load_state_dict(theirs.state_dict())
    assert ours.stats()["frames"] == 20
    theirs.load_state_dict(ours.state_dict())
    assert theirs.stats()["frames"] == 20


def test_carrier_continues_where_the_simulators_were_put_back() -> None:
    make: Callable[[], GymCollector] = lambda: GymCollector(  # noqa: E731
        counters(3, 4), state_dependent(2, 1), frames_per_batch=10
    )
    one, other = make(), make()
    take(one, 1)
    other.load_state_dict(one.state_dict(), restore_carrier=True)
    for target, source in zip(other.env._env.envs, one.env._env.envs, strict=True):
        target.__dict__.update(source.__dict__)
    torch.manual_seed(4)
    expected = take(one, 2)
    torch.manual_seed(4)
    assert_same_batch(take(other, 2), expected)
    with pytest.raises(ValueError, match="state's carrier is"):
        other.load_state_dict({**one.state_dict(), "carrier": {}}, restore_carrier=True)


def test_shutdown_closes_once_and_ends_the_collection() -> None:
    collector = collector_of()
    collector.shutdown()
    collector.shutdown()
    assert collector.env.is_closed
    with pytest.raises(RuntimeError, match="was shut down"):
        next(iter(collector))
    collector = collector_of()
    collector.shutdown(close_env=False)
    assert not collector.env.is_closed


def test_a_batch_can_be_learnt_from_and_the_mode_is_kept() -> None:
    collector = collector_of()
    collector.policy.eval()
    batch = collector.rollout()
    assert not any(v.requires_grad or v.is_inference() for v in batch.values(True, True))
    assert not any(module.training for module in collector.policy.modules())
    actor = gaussian(4, 1)
    actor.get_dist(batch).log_prob(batch["action"]).sum().backward()
    assert all(parameter.grad is not None for parameter in actor.parameters())


def test_exploration_type_of_the_collector_wins() -> None:
    with set_exploration_type(ExplorationType.MEAN):
        batch = take(collector_of(), 1)
    assert not torch.equal(batch["action"], batch["loc"])


def recurrent() -> TensorDictSequential:
    core = LSTMModule(input_size=4, hidden_size=8, in_key="observation", out_key="hidden")
    return TensorDictSequential(core, TensorDictModule(nn.Linear(8, 1), ["hidden"], ["action"]))


def actor(in_key: Any = "observation", out_key: Any = "action", size: int = 1) -> TensorDictModule:
    return TensorDictModule(Float32(4, size), [in_key], [out_key])


def both(observation_key: Any, *, out_key: Any) -> TensorDictSequential:
    return TensorDictSequential(actor(observation_key), actor(observation_key, out_key))


def pendulum(mode: AutoresetMode = AutoresetMode.DISABLED) -> EnvBase:
    return vector("InvertedPendulum-v5", 2, mode)


@pytest.mark.parametrize(
    ("policy", "kwargs", "error", "match"),
    [
        (nn.Linear(4, 1), {}, TypeError, "policy is a Linear"),
        (actor("is_init"), {}, ValueError, r"reads \['is_init'\]"),
        (recurrent(), {}, ValueError, "recurrent"),
        (actor(out_key="torque"), {}, ValueError, "not the action 'action'"),
        (both("observation", out_key=("next", "x")), {}, ValueError, "rename them"),
        (both("observation", out_key="_memory"), {}, ValueError, "private"),
        (actor(size=2), {}, ValueError, r"shape \[2, 2\].*takes \[2, 1\]"),
        (actor(), {"frames_per_batch": 9}, ValueError, "9 .* 2 environments.* 10"),
        (actor(), {"frames_per_batch": 0}, ValueError, "frames_per_batch=0"),
        (actor(), {"frames_per_batch": 8.0}, TypeError, "frames_per_batch=8.0 is a float"),
        (actor(), {"total_frames": -2}, ValueError, "total_frames=-2"),
        (actor(), {"compile_policy": True, "capture": False}, ValueError, "capture"),
    ],
)
def test_actors_and_numbers_that_do_not_fit_are_refused(
    policy: Any, kwargs: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        GymCollector(pendulum(), policy, **{"frames_per_batch": 10, **kwargs})


@pytest.mark.parametrize(
    ("make_env", "match"),
    [
        (lambda: TransformedEnv(pendulum(), RewardSum()), "TransformedEnv"),
        (lambda: SerialEnv(2, pendulum), "SerialEnv"),
        (lambda: pendulum(AutoresetMode.SAME_STEP), "SyncVectorEnv"),
        (lambda: single("FrozenLake-v1"), r"observation space Discrete\(16\)"),
        (lambda: GymWrapper(gym.make("Pendulum-v1"), frame_skip=2), "frame_skip=2"),
        (lambda: GymWrapper(gym.make("HalfCheetah-v5")).auto_register_info_dict(), "info readers"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_environments_that_do_more_are_refused(make_env: Callable[[], EnvBase], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{match}.*torchrl.collectors.Collector"):
        GymCollector(make_env(), actor(), frames_per_batch=10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_actor_on_cuda() -> None:
    batches = []
    for capture in (True, False):
        env = vector("InvertedPendulum-v5", 2)
        env.set_seed(0)
        torch.manual_seed(0)
        policy = gaussian(4, 1).to("cuda")
        collector = GymCollector(env, policy, frames_per_batch=40, capture=capture)
        batches.append(take(collector, 2))
        assert collector.capture_failure == (None if capture else "capture=False")
    assert_same_batch(*batches)
    assert batches[0]["action"].device.type == "cpu"


def test_after_an_exception_the_next_batch_starts_from_a_reset() -> None:
    env = counters(30)
    collector = GymCollector(env, state_dependent(2, 1), frames_per_batch=10)
    first = collector.rollout()
    env._env.envs[0].fails_at = 15
    with pytest.raises(KeyboardInterrupt):
        collector.rollout()
    third = collector.rollout()
    for batch in (first, third):  # no transition joins non-consecutive frames
        assert torch.equal(batch["observation"][:, 1:], batch["next", "observation"][:, :-1])
    assert third["observation"][0, 0].tolist() == [1, 0]
    assert third["collector", "traj_ids"].unique() != first["collector", "traj_ids"].unique()


class Odd(Counter):
    """Returns one value of a step in another form, at the third step of each episode."""

    def __init__(self, position: int, value: Any) -> None:
        super().__init__(first_length=3)
        self.position, self.value = position, value

    def step(self, action: Any) -> Any:
        result = list(super().step(action))
        if self.time == 3:
            result[self.position] = self.value
        return tuple(result)


OBSERVATION, REWARD, TERMINATED = range(3)


def collect_odd(position: int, value: Any) -> TensorDictBase:
    env = GymWrapper(Odd(position, value))
    return GymCollector(env, state_dependent(2, 1), frames_per_batch=6).rollout()


@pytest.mark.parametrize(
    ("position", "value", "name"),
    [
        (OBSERVATION, 3.0, "observation"),
        (OBSERVATION, np.ones(1, np.float32), "observation"),
        (OBSERVATION, np.ones((1, 2), np.float32), "observation"),
        (OBSERVATION, None, "observation"),
        (REWARD, None, "reward"),
        (REWARD, np.ones(2), "reward"),
        (TERMINATED, np.ones(2, bool), "terminated"),
        (TERMINATED, None, "terminated"),
    ],
)
def test_what_an_environment_returns_is_checked_in_every_frame(
    position: int, value: Any, name: str
) -> None:
    with pytest.raises(ValueError, match=f"returned .*{name}"):
        collect_odd(position, value)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (OBSERVATION, [1.0, 2.0]),
        (OBSERVATION, np.array([1.0, 2.0])),
        (REWARD, np.array([7.0])),
        (REWARD, torch.tensor([7.0])),
        (REWARD, 7),
        (TERMINATED, np.array([True])),
        (TERMINATED, np.True_),
        (TERMINATED, 1),
    ],
)
def test_one_value_in_another_form_is_taken(position: int, value: Any) -> None:
    after = collect_odd(position, value)["next"]
    keys: list[Any] = ["observation", "reward", "terminated"]
    expected = torch.as_tensor(value, dtype=after[keys[position]].dtype)
    assert torch.equal(after[keys[position]][2].reshape(-1), expected.reshape(-1))


class _Undefined(gym.ObservationWrapper):
    """Observations are NaN from the 20th step on."""

    seen = 0

    def observation(self, observation: Any) -> Any:
        self.seen += 1
        return observation * (np.nan if self.seen > 20 else 1)


def test_an_observation_that_is_nan_is_named_where_the_actor_fails_on_it() -> None:
    env = make_env("CartPole-v1", num_envs=1, seed=0, wrappers=[_Undefined])
    collector = GymCollector(env, categorical_actor(4, 2), frames_per_batch=64)
    with pytest.raises(NonFiniteDataError, match="observation"):
        collector.rollout()
