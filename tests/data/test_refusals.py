"""What the buffer refuses, by name and number; a refusal leaves it bit for bit unchanged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.collectors import MultiSyncCollector
from torchrl.data import (
    ConsumingSampler,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)
from torchrl.envs import Compose, DoubleToFloat, EnvCreator

from amber_trl.data import (
    AdaptiveMinibatchSampler,
    EpisodicMinibatchSampler,
    MultiBatchReplayBuffer,
    MultiBatchWriter,
)
from amber_trl.envs import make_env
from amber_trl.errors import NonFiniteDataError
from amber_trl.transforms import ISStalenessFilter
from tests.data.frames import (
    L,
    M,
    N,
    assert_same,
    epoch_of,
    frames_of,
    make_actor,
    make_batch,
    make_filter,
    make_replay,
    seen,
)


def with_value(key: Any, value: float, *, row: int = 5) -> TensorDict:
    batch = make_batch(7)
    batch[key][row] = value
    return batch


def changed(key: Any, change: Callable[[Tensor], Tensor]) -> TensorDict:
    batch = make_batch(7)
    return batch.set(key, change(batch[key]))


REWARD = ("next", "reward")
WRONG_BATCHES: dict[str, tuple[Callable[[], Any], str]] = {
    "too short": (lambda: make_batch(7)[:5], "frames_per_batch=8"),
    "too long": (lambda: TensorDict.cat([make_batch(7), make_batch(8)]), "frames_per_batch=16"),
    "wrong E * T": (lambda: make_batch(7, 2, 4)[:, :3], "frames_per_batch=6"),
    "no frames": (lambda: make_batch(7)[:0], "frames_per_batch=0"),
    "one frame": (lambda: make_batch(7)[0], r"\(\)"),
    "no TensorDict": (lambda: {"frame": torch.zeros(N)}, "dict"),
    "key lacking": (lambda: make_batch(7).exclude("action"), "'action'"),
    "nested key lacking": (lambda: make_batch(7).exclude(REWARD), "'reward'"),
    "key added": (lambda: make_batch(7).set("value", torch.zeros(N)), "'value'"),
    "other shape": (lambda: changed("action", lambda action: action[:, :1]), "'action'"),
    "other dimensions": (lambda: changed(REWARD, lambda reward: reward[:, 0]), "'reward'"),
    "other dtype": (lambda: changed("action", Tensor.double), "'action'.*float64"),
    "NaN": (lambda: with_value("action", torch.nan), "'action'"),
    "infinity": (lambda: with_value("action_log_prob", -torch.inf, row=6), "'action_l.*frame 6"),
    "nested NaN": (lambda: with_value(REWARD, torch.nan), "'reward'"),
}


@pytest.mark.parametrize("staleness", [False, True], ids=["plain", "filtered"])
@pytest.mark.parametrize("stored", [1, 4], ids=["partly filled", "full"])
@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_a_wrong_batch_is_refused_and_nothing_changes(
    case: str, stored: int, staleness: bool
) -> None:
    make_wrong, message = WRONG_BATCHES[case]
    generator = torch.Generator().manual_seed(1)
    replay = make_replay(
        *range(stored), staleness=make_filter() if staleness else None, generator=generator
    )
    if staleness:
        replay.refresh()
    replay.sample()
    before, wrong = replay.state_dict(), make_wrong()
    with pytest.raises((KeyError, TypeError, ValueError), match=message):
        replay.extend(wrong)
    assert_same(replay.state_dict(), before)
    assert replay.can_sample()
    rest = [replay.sample() for _ in range(N // M - 1)]
    assert replay.sampler.ran_out
    assert len({row for minibatch in rest for row in minibatch["index"].tolist()}) == len(
        rest
    ) * len(rest[0])


@pytest.mark.parametrize("shape", [(N,), (2, 4)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_key_that_is_not_stored_is_checked_too(shape: tuple[int, ...], value: float) -> None:
    replay = make_replay(keys=["frame"])
    batch = make_batch(0, *shape)
    batch["next", "reward"].view(-1)[5] = value
    with pytest.raises(NonFiniteDataError, match=r"'reward'.*frame 5"):
        replay.extend(batch)
    assert len(replay) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_dtype_is_checked_and_no_other_trips(dtype: torch.dtype) -> None:
    batch = TensorDict({"number": torch.full((N,), 2**62), "flag": torch.ones(N).bool()}, [N])
    batch["floating"] = torch.zeros(N, 2, 2, dtype=dtype)
    make_replay().extend(batch)
    batch["floating"][3, 1, 1] = torch.inf
    with pytest.raises(NonFiniteDataError, match=r"'floating'.*frame 3"):
        make_replay().extend(batch)


def test_every_key_of_keys_must_be_present() -> None:
    replay = make_replay(keys=["frame", ("next", "value_target")])
    with pytest.raises(KeyError, match="value_target"):
        replay.extend(make_batch(0))


def test_a_filter_needs_the_keys_it_measures_with() -> None:
    replay = make_replay(staleness=make_filter())
    with pytest.raises(KeyError, match="action_log_prob"):
        replay.extend(make_batch(0).exclude("action_log_prob"))
    replay = make_replay(staleness=make_filter(), keys=["frame", "action", "action_log_prob"])
    with pytest.raises(KeyError, match="'observation'"):
        replay.extend(make_batch(0))
    assert len(replay) == 0


def test_after_empty_a_batch_is_laid_out_as_before() -> None:
    replay = make_replay(0, 1)
    replay.empty()
    with pytest.raises(KeyError, match="'action'"):
        replay.extend(make_batch(2).exclude("action"))
    with pytest.raises(ValueError, match="float64"):
        replay.extend(changed("action", lambda action: action.double()))
    replay.extend(make_batch(2))
    assert seen(epoch_of(replay)) == frames_of(2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 64),
        ("writer", RoundRobinWriter()),
        ("prefetch", 2),
        ("dim_extend", 0),
        ("shared", True),
        ("nonsense", 1),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        make_replay(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 4), "num_batches=0"),
        ((2.0, 8, 4), "num_batches=2.0"),
        ((3, 0, 4), "frames_per_batch=0"),
        ((3, 1, 1), "frames_per_batch=1 "),
        ((3, 8, 0), "minibatch_size=0"),
        ((3, 8, 3), "minibatch_size=3 .*frames_per_batch=8"),
        ((3, 8, 16), "minibatch_size=16 .*frames_per_batch=8"),
    ],
)
def test_numbers_are_in_range(arguments: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MultiBatchReplayBuffer(*arguments)


def filled() -> LazyTensorStorage:
    storage = LazyTensorStorage(L * N)
    storage.set(range(N), make_batch(0))
    return storage


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (lambda: LazyTensorStorage(L * N + 1), r"max_size=25: .*= 24 rows"),
        (lambda: LazyTensorStorage(2 * N), r"max_size=16: .*= 24 rows"),
        (lambda: LazyTensorStorage(L * N, ndim=2), "ndim=2"),
        (lambda: ListStorage(L * N), "ListStorage"),
        (lambda: object(), "object"),
        (filled, "8 rows: give an empty"),
        (lambda: TensorStorage(TensorDict({"a": torch.zeros(24)}, [24])), "24 rows: give an empty"),
    ],
)
def test_a_storage_that_cannot_work_is_refused(storage: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_replay(storage=storage)


@pytest.mark.parametrize("sampler", [AdaptiveMinibatchSampler, EpisodicMinibatchSampler])
def test_a_sampler_of_another_batch_is_refused(sampler: Any) -> None:
    for given in (sampler(4), lambda: sampler(4)):
        with pytest.raises(ValueError, match=r"frames_per_batch=4 .* frames_per_batch=8"):
            make_replay(sampler=given)
    replay = make_replay(0)
    kept = replay.sampler
    with pytest.raises(ValueError, match="frames_per_batch=4"):
        replay.set_sampler(sampler(4))
    assert replay.sampler is kept


@pytest.mark.parametrize("sampler", [SamplerWithoutReplacement, RandomSampler])
def test_a_sampler_that_cannot_leave_batches_out_is_refused_with_a_filter(sampler: Any) -> None:
    for given in (sampler(), sampler):
        with pytest.raises(ValueError, match=f"{sampler.__name__} is not a MultiBatchSampler"):
            make_replay(sampler=given, staleness=make_filter())
    with pytest.raises(ValueError, match="is not a MultiBatchSampler"):
        make_replay(staleness=make_filter()).set_sampler(sampler())


def test_columns_of_its_own_may_not_overwrite_others() -> None:
    for key in ("action", "action_log_prob"):
        with pytest.raises(ValueError, match=f"'{key}'.* would be overwritten"):
            make_replay(staleness=make_filter(), age_key=key)


def test_the_filter_is_not_a_transform_of_minibatches() -> None:
    staleness = make_filter()
    for transform in (staleness, Compose(DoubleToFloat(), Compose(staleness))):
        replay = make_replay(0)
        replay.append_transform(transform)
        with pytest.raises(TypeError, match="staleness="):
            replay.extend(make_batch(1))
        assert len(replay) == N


@pytest.mark.parametrize("staleness", [make_actor, lambda: 0.25, lambda: ISStalenessFilter])
def test_staleness_is_a_filter(staleness: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="give an ISStalenessFilter"):
        make_replay(staleness=staleness())


@pytest.mark.parametrize(
    "consuming", [{"consume_after_n_samples": 1}, {"sampler": ConsumingSampler()}]
)
def test_the_writer_tears_no_batch_in_a_stock_buffer(consuming: dict[str, Any]) -> None:
    stock = TensorDictReplayBuffer(
        storage=LazyTensorStorage(L * N), writer=MultiBatchWriter(N), batch_size=M, **consuming
    )
    for number in range(L):
        stock.extend(make_batch(number))
    stock.sample()
    with pytest.raises(TypeError, match="consume_after_n_samples"):
        stock.extend(make_batch(L))
    assert stock[:]["frame"].tolist() == frames_of(*range(L))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_several_writers_are_refused(num_envs: int) -> None:
    env = EnvCreator(lambda: make_env("Pendulum-v1", num_envs, seed=0))
    with pytest.raises(ValueError, match="replay_buffer="):
        MultiSyncCollector(
            [env, env], frames_per_batch=2 * N, total_frames=4 * N, replay_buffer=make_replay()
        )
    with pytest.raises(TypeError, match="replay_buffer="):
        make_replay().share()
