"""What the buffer keeps: whole batches, every field of one transition together, the oldest replaced."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, lazy_stack
from torchrl.collectors import MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    Storage,
    TensorDictReplayBuffer,
)
from torchrl.envs import CatTensors, Compose, DoubleToFloat, EnvCreator
from torchrl.objectives.value import GAE

from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchWriter,
    RecomputedAdvantages,
)
from amber_trl.envs import make_env
from amber_trl.modules import value_critic
from tests.data.frames import (
    L,
    M,
    N,
    check_aligned,
    epoch_of,
    frames_of,
    make_batch,
    make_filter,
    make_replay,
    seen,
)

SHAPES = pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 4), (8, 1)])


@pytest.fixture(params=["default", "tensor", "function", "memmap", "memmap in a directory", "cuda"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return LazyTensorStorage(L * N, device="cuda")
    return {
        "default": None,
        "tensor": LazyTensorStorage(L * N),
        "function": lambda: LazyTensorStorage(L * N),
        "memmap": lambda: LazyMemmapStorage(L * N),
        "memmap in a directory": lambda: LazyMemmapStorage(L * N, scratch_dir=tmp_path),
    }[request.param]


@SHAPES
def test_every_epoch_shows_each_stored_transition_once_and_whole(
    storage: Storage | None, shape: tuple[int, ...]
) -> None:
    replay = make_replay(storage=storage)
    for number in range(5):
        replay.extend(make_batch(number, *shape))
        kept = range(max(0, number - L + 1), number + 1)
        for _ in range(2):
            minibatches = [minibatch.cpu() for minibatch in replay]
            assert [len(minibatch) for minibatch in minibatches] == [M * len(kept)] * (N // M)
            frames = TensorDict.cat(minibatches)
            assert sorted(frames["frame"].tolist()) == frames_of(*kept)
            check_aligned(frames)
            assert torch.equal(replay[:].cpu()[frames["index"]]["frame"], frames["frame"])


def test_a_batch_replaces_the_oldest_and_ages_say_which() -> None:
    replay = make_replay()
    slots: list[int] = []
    for number in range(8):
        index = replay.extend(make_batch(number))
        slots[number % L : number % L + 1] = [number]
        assert index.tolist() == [number % L * N + frame for frame in range(N)]
        assert replay[:]["frame"].tolist() == [f for slot in slots for f in frames_of(slot)]
        assert replay.age.dtype == torch.int64
        assert replay.age.tolist() == [number - slot for slot in slots]
        assert len(replay) == N * len(slots)
        assert (replay.num_active, replay.batch_size) == (len(slots), M * len(slots))


def test_workers_and_their_environments_are_stored_one_after_the_other() -> None:
    """A collector of two processes with two environments each yields ``[2, 2, T]``."""
    creators = [EnvCreator(partial(make_env, "Pendulum-v1", 2, seed=seed)) for seed in (0, 10)]
    collector = MultiSyncCollector(creators, frames_per_batch=16, total_frames=16)
    try:
        (batch,) = list(collector)
    finally:
        collector.shutdown()
    assert batch.shape == (2, 2, 4)
    replay = MultiBatchReplayBuffer(2, 16, 4, sampler=EpisodicMinibatchSampler(16, 4))
    replay.extend(batch)
    stored = replay.storage[:]
    observations = [
        batch[worker, env, step]["observation"]
        for worker in range(2)
        for env in range(2)
        for step in range(4)
    ]
    assert torch.equal(stored["observation"], torch.stack(observations))
    for run in stored.reshape(4, 4):  # each one environment's consecutive frames
        assert torch.equal(run["observation"][1:], run["next", "observation"][:-1])


def test_batches_need_not_be_contiguous() -> None:
    replay = make_replay()
    time_first = TensorDict.stack([make_batch(0, 2, 4)[:, t] for t in range(4)])
    replay.extend(time_first.transpose(0, 1))
    twice = TensorDict.stack([make_batch(1), make_batch(9)], 1).reshape(-1)
    replay.extend(twice[::2])
    replay.extend(lazy_stack([make_batch(2)[:4], make_batch(2)[4:]]))
    frames = replay[:]
    assert frames["frame"].tolist() == frames_of(0, 1, 2)
    check_aligned(frames)


def test_a_batch_may_repeat_one_value() -> None:
    replay = make_replay(keys=["one"])
    replay.extend(TensorDict({"one": torch.ones(1).expand(N)}, [N]))
    assert replay[:]["one"].tolist() == [1.0] * N


@SHAPES
@pytest.mark.parametrize("locked", [False, True])
def test_the_given_batch_is_unchanged(shape: tuple[int, ...], locked: bool) -> None:
    batch = make_batch(0, *shape)
    if locked:
        batch.lock_()
    before = batch.clone()
    replay = make_replay(keys=["frame", ("next", "reward"), "age"], age_key="age")
    replay.extend(batch)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert (batch == before).all()
    assert batch.is_locked == locked


def test_memory_is_not_shared_with_batches_nor_minibatches() -> None:
    replay = make_replay()
    batch = make_batch(0)
    replay.extend(batch)
    batch["frame"].zero_()
    batch["next", "reward"].zero_()
    for minibatch in replay:
        check_aligned(minibatch)
        minibatch["frame"].zero_()
        minibatch["index"].zero_()
    assert seen(epoch_of(replay)) == frames_of(0)
    check_aligned(replay[:])


def test_a_batch_with_a_graph_is_stored_without() -> None:
    replay = make_replay(0)
    batch = make_batch(1)
    weight = torch.ones((), requires_grad=True)
    batch["observation"] = batch["observation"] * weight
    replay.extend(batch)
    assert batch["observation"].requires_grad
    assert not any(value.requires_grad for value in replay[:].values(True, True))
    replay.state_dict()


def test_keys_keeps_only_the_given_keys() -> None:
    keys = ["frame", ("next", "reward")]
    replay = make_replay(0, 1, keys=keys)
    assert set(replay[:].keys(True, True)) == set(keys)
    assert set(replay.sample().keys(True, True)) == {*keys, "index"}
    replay.extend(make_batch(2).set("unheard of", torch.zeros(N)))
    replay.extend(make_batch(3).exclude("action"))
    assert set(replay[:].keys(True, True)) == set(keys)
    whole = make_replay(0, keys=["next"])
    assert set(whole[:].keys(True, True)) == {
        ("next", k) for k in ("observation", "reward", "done")
    }
    assert make_replay(0, keys="frame").keys == ["frame"]


def test_a_batch_sampled_elsewhere_may_bring_an_index() -> None:
    replay = make_replay()
    replay.extend(make_batch(0).set("index", torch.full((N,), 99)))
    minibatch = replay.sample()
    assert (replay[:][minibatch["index"]]["frame"] == minibatch["frame"]).all()


def test_check_finite_off_stores_everything() -> None:
    replay = make_replay(check_finite=False)
    batch = make_batch(0)
    batch["next", "reward"][3] = torch.nan
    replay.extend(batch)
    assert replay[:]["next", "reward"].isnan().sum() == 1


@pytest.mark.parametrize("sampler", [SamplerWithoutReplacement(), SamplerWithoutReplacement])
def test_a_stock_sampler_passes_through(sampler: Any) -> None:
    replay = make_replay(0, 1, sampler=sampler)
    assert isinstance(replay.sampler, SamplerWithoutReplacement)
    assert (replay.num_active, replay.batch_size) == (2, M)
    for _ in range(2):
        epoch = epoch_of(replay)
        assert [len(minibatch) for minibatch in epoch] == [M] * (2 * N // M)
        assert seen(epoch) == frames_of(0, 1)
    replay.extend(make_batch(2))
    next(iter(replay))
    replay.extend(make_batch(3))
    assert seen(epoch_of(replay)) == frames_of(1, 2, 3)


def double_reward(frames: TensorDict) -> TensorDict:
    return frames.set("double", 2 * frames["next", "reward"])


@pytest.mark.parametrize("appended", [False, True])
def test_a_transform_sees_minibatches_and_stores_nothing(appended: bool) -> None:
    replay = make_replay(0, 1, 2, transform=None if appended else double_reward)
    if appended:
        replay.append_transform(double_reward)
    replay.append_transform(Compose(DoubleToFloat(in_keys=["double"])))
    for minibatch in replay:
        assert minibatch["double"].dtype == torch.float32
        assert (minibatch["double"] == 2 * minibatch["next", "reward"]).all()
    assert "double" not in replay.storage[:]


def add_one_in_place(frames: TensorDict) -> TensorDict:
    frames["observation"] += 1
    return frames.set("seen", frames["frame"])


def test_refresh_measures_what_the_transform_makes_and_leaves_the_storage() -> None:
    replay = make_replay(0, 1, 2, staleness=make_filter(), transform=add_one_in_place)
    before = replay.storage[:].clone()
    replay.refresh()
    assert (replay.storage[:] == before).all()
    assert set(replay.storage[:].keys(True, True)) == set(before.keys(True, True))


def test_the_networks_may_read_what_the_transform_makes() -> None:
    staleness = make_filter(proximal_log_prob_key="proximal")
    advantages = RecomputedAdvantages(
        value_critic(3), "vtrace", gamma=0.9, lmbda=0.9, proximal_log_prob_key="proximal"
    )
    parts, keys = ["first", "others"], ["observation", ("next", "observation")]
    replay = make_replay(staleness=staleness, advantages=advantages)
    for key in keys:  # the networks read "observation", which is stored in parts
        inside = parts if isinstance(key, str) else [("next", part) for part in parts]
        replay.append_transform(CatTensors(inside, out_key=key, del_keys=False))
    replay.append_transform(lambda frames: frames.set("target", frames["value_target"]))  # its own
    for number in (0, 1):
        whole = make_batch(number)
        whole["next", "terminated"] = whole["next", "done"]
        for frames in (whole, whole["next"]):
            observation = frames.pop("observation")
            frames["first"], frames["others"] = observation[:, :1], observation[:, 1:]
        replay.extend(whole)
    assert (replay.refresh()["importance_ratio"] - 1).abs().max() < 1e-6
    minibatch = replay.sample()
    torch.testing.assert_close(minibatch["proximal"], minibatch["action_log_prob"])
    expected = advantages(replay[:].reshape(2, N))["value_target"]
    torch.testing.assert_close(replay.storage[:]["value_target"], expected.reshape(-1, 1))
    assert expected.abs().min() > 0


@pytest.mark.parametrize("shape", [(2, 4), (2, 2, 2)])
def test_inverse_transforms_see_time(shape: tuple[int, ...]) -> None:
    """Advantages computed by extend are those of each environment alone."""
    gae = GAE(gamma=0.9, lmbda=0.9, value_network=value_critic(3))
    batch = make_batch(0, *shape).apply(lambda value: value.float() if value.is_floating_point() else value)  # fmt: skip
    batch["next", "reward"] = torch.randn(*shape, 1)
    batch["next", "terminated"] = batch["next", "done"] = torch.zeros(*shape, 1).bool()
    replay = make_replay(keys=["frame", "advantage"])
    replay.append_transform(gae, invert=True)
    replay.extend(batch)
    assert "advantage" not in batch
    assert torch.equal(replay.storage[:]["frame"], batch["frame"].flatten())
    expected = gae(batch)["advantage"].reshape(-1, 1)
    torch.testing.assert_close(replay.storage[:]["advantage"], expected)


def test_an_ensemble_of_filled_buffers() -> None:
    members = [
        make_replay(*numbers, sampler=AdaptiveMinibatchSampler(N, scale_minibatch=False))
        for numbers in ((0, 1), (2, 3))
    ]
    ensemble = ReplayBufferEnsemble(*members, batch_size=2 * M, sample_from_all=True)
    frames = torch.cat([ensemble.sample()["frame"] for _ in range(2 * N // M)], 1)
    assert [sorted(of_one.tolist()) for of_one in frames] == [frames_of(0, 1), frames_of(2, 3)]


class Ranked(RandomSampler):
    """Keeps the priorities that it is given."""

    def update_priority(self, index: Any, priority: Any, **kwargs: Any) -> None:
        self.told = priority


def test_priorities_that_come_with_a_batch_are_passed_on() -> None:
    for update_priority in (None, True, False):
        replay = make_replay(sampler=Ranked())
        batch = make_batch(0).set("td_error", torch.arange(N))
        replay.extend(batch, update_priority=update_priority)
        assert hasattr(replay.sampler, "told") == (update_priority is not False)


def test_other_arguments_of_torchrl_pass() -> None:
    replay = MultiBatchReplayBuffer(L, N, M, collate_fn=lambda frames: frames.select("frame"))
    replay.extend(make_batch(0))
    assert set(replay.sample().keys()) == {"frame", "index"}


def test_the_same_global_seed_gives_the_same_minibatches_and_another_does_not() -> None:
    epochs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        replay = make_replay(0, 1)
        torch.manual_seed(7)  # after construction, the buffer's own generator decides
        epochs.append([epoch_of(replay), epoch_of(replay)])
    assert epochs[0] == epochs[1] != epochs[2]
    assert epochs[0][0] != epochs[0][1]


def test_a_generator_that_is_given_is_the_only_source() -> None:
    outside = torch.get_rng_state()
    epochs = [
        epoch_of(make_replay(0, 1, generator=torch.Generator().manual_seed(seed)))
        for seed in (3, 3, 4)
    ]
    assert epochs[0] == epochs[1] != epochs[2]
    assert torch.equal(torch.get_rng_state(), outside)


def test_the_writer_works_in_a_stock_buffer() -> None:
    writer = MultiBatchWriter(N)
    stock = TensorDictReplayBuffer(storage=LazyTensorStorage(L * N), writer=writer, batch_size=M)
    for number in range(5):
        stock.extend(make_batch(number))
    assert writer.age.tolist() == [1, 0, 2]
    assert stock[:]["frame"].tolist() == [f for n in (3, 4, 2) for f in frames_of(n)]
    for wrong in (make_batch(5)[:4], make_batch(5, 2, 4)):
        with pytest.raises(ValueError, match="batch of"):
            stock.extend(wrong)
    with pytest.raises(TypeError, match="use extend, not add"):
        stock.add(make_batch(5)[0])
    assert (writer.age.tolist(), stock.write_count) == ([1, 0, 2], 5 * N)
