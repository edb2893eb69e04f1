"""The statistics against hand-worked numbers and NumPy, and what may and may not change them."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from amber_trl.modules import ObservationNormalizer


def statistics(normalizer: ObservationNormalizer) -> list[Tensor]:
    return [normalizer.count, normalizer.mean, normalizer.variance]


def test_hand_worked_update() -> None:
    normalizer = ObservationNormalizer(2, initial_count=1.0, dtype=torch.float64)
    # Prior: one frame of mean 0 and variance 1. Two frames of mean (2, 4) and squares (2, 0):
    # count 3, mean 2/3 (2, 4), squared deviations 1 + (2, 0) + (4, 16) * 1 * 2 / 3.
    normalizer.update(torch.tensor([[1.0, 4.0], [3.0, 4.0]]))
    assert normalizer.count.item() == 3.0
    torch.testing.assert_close(normalizer.mean, torch.tensor([4 / 3, 8 / 3]).double())
    torch.testing.assert_close(normalizer.variance, torch.tensor([17 / 9, 35 / 9]).double())
    expected = [(2.0 - 4 / 3) / math.sqrt(17 / 9), (0.0 - 8 / 3) / math.sqrt(35 / 9)]
    result = normalizer(torch.tensor([2.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("offset", [0.0, 1e2, -1e4, 1e6, 1e8])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_channel_with_an_offset_comes_out_standard(offset: float, size: float) -> None:
    torch.manual_seed(0)
    data = offset + size * torch.randn(3, 2048, 1, dtype=torch.float64)
    normalizer = ObservationNormalizer(1, min_variance=1e-12, dtype=torch.float64)
    for batch in data:
        normalizer.update(batch)
        standardised = normalizer(batch)
        assert standardised.mean().abs() < 0.05
        assert standardised.std().item() == pytest.approx(1, abs=0.05)


def test_before_any_data_it_is_standard() -> None:
    observation = torch.tensor([-7.0, -5.0, 0.25, 6.0])
    assert ObservationNormalizer(4)(observation).tolist() == [-5.0, -5.0, 0.25, 5.0]


def test_variance_is_floored() -> None:
    normalizer = ObservationNormalizer(1)
    normalizer.update(torch.full((10, 1), 3.0))
    assert normalizer.variance.item() == 0.0
    torch.testing.assert_close(normalizer(torch.tensor([3.2])), torch.tensor([2.0]))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    offset=st.floats(-1e6, 1e6),
    scale=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_split_equals_numpy_over_all(
    sizes: list[int], offset: float, scale: float, seed: int
) -> None:
    data = offset + scale * np.random.default_rng(seed).standard_normal((sum(sizes), 3))
    normalizer = ObservationNormalizer(3, clip=math.inf, dtype=torch.float64)
    for part in np.split(data, np.cumsum(sizes)[:-1]):
        normalizer.update(torch.from_numpy(part))
    assert normalizer.count.item() == len(data)
    np.testing.assert_allclose(normalizer.mean.numpy(), data.mean(0), rtol=1e-12, atol=1e-9)
    rounding = 1e-9 * max(1.0, abs(offset)) * scale
    np.testing.assert_allclose(normalizer.variance.numpy(), data.var(0), rtol=1e-9, atol=rounding)


def test_prior_counts_as_frames_of_mean_0_and_variance_1() -> None:
    data = np.random.default_rng(0).normal(3.0, 2.0, (7, 2))
    prior = np.array([[-1.0, -1.0], [1.0, 1.0]])
    normalizer = ObservationNormalizer(2, initial_count=2.0)
    normalizer.update(torch.from_numpy(data))
    everything = np.concatenate([prior, data])
    np.testing.assert_allclose(normalizer.mean.numpy(), everything.mean(0))
    np.testing.assert_allclose(normalizer.variance.numpy(), everything.var(0))


@pytest.mark.parametrize("shape", [(2,), (6, 2), (3, 2, 2), (1, 2, 3, 2)])
@pytest.mark.parametrize(
    "given_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_shape_and_floating_dtype(
    shape: tuple[int, ...], given_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    normalizer = ObservationNormalizer(2, dtype=dtype)
    observation = torch.randn(shape).to(given_dtype)
    normalizer.update(observation)
    assert normalizer.count.item() == math.prod(shape[:-1])
    result = normalizer(observation)
    assert result.shape == shape
    assert result.dtype == normalizer.dtype == dtype
    flat = normalizer(observation.reshape(-1, 2))
    assert torch.equal(result.reshape(-1, 2), flat)


def test_update_is_in_place_and_without_parameters() -> None:
    normalizer = ObservationNormalizer(2)
    before = statistics(normalizer)
    normalizer.update(torch.randn(5, 2, requires_grad=True))
    assert all(a is b for a, b in zip(before, statistics(normalizer), strict=True))
    assert not any(value.requires_grad for value in before)
    assert list(normalizer.parameters()) == []


@pytest.mark.parametrize("cast", ["half", "float", "double", "bfloat16"])
def test_statistics_stay_float64_under_casts(cast: str) -> None:
    network = nn.Sequential(ObservationNormalizer(2), nn.Linear(2, 1))
    normalizer = network[0]
    assert isinstance(normalizer, ObservationNormalizer)
    normalizer.update(torch.tensor([[1 / 3, 2 / 3], [1.0, 7.0]], dtype=torch.float64))
    before = statistics(normalizer)
    values = [value.clone() for value in before]
    getattr(network, cast)()
    linear = network[1]
    assert isinstance(linear, nn.Linear)
    assert normalizer.dtype == linear.weight.dtype
    assert all(a is b for a, b in zip(before, statistics(normalizer), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, values, strict=True))
    assert network(torch.randn(3, 2)).dtype == linear.weight.dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_cpu() -> None:
    data = torch.randn(100, 3, dtype=torch.float64) * 3 + 1
    here = ObservationNormalizer(3)
    there = ObservationNormalizer(3).cuda()
    here.update(data)
    there.update(data)
    torch.testing.assert_close(there(data.cuda()).cpu(), here(data))


def test_state_dict_round_trip_keeps_the_buffers() -> None:
    source, target = ObservationNormalizer(2), ObservationNormalizer(2)
    source.update(torch.randn(5, 2))
    state = copy.deepcopy(source.state_dict())
    assert set(state) == {"count", "mean", "variance"}
    buffers = statistics(target)
    target.load_state_dict(state)
    assert all(a is b for a, b in zip(buffers, statistics(target), strict=True))
    source.update(torch.randn(5, 2))
    assert torch.equal(target.mean, state["mean"])


def test_compiles_as_one_graph_and_sees_updates() -> None:
    normalizer = ObservationNormalizer(2)
    compiled = torch.compile(normalizer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        observation = torch.randn(4, 2)
        torch.testing.assert_close(compiled(observation), normalizer(observation))
        normalizer.update(observation * 3 + 1)


@pytest.mark.parametrize("method", ["forward", "update"])
def test_refuses_other_observations(method: str) -> None:
    call = getattr(ObservationNormalizer(3), method)
    with pytest.raises(ValueError, match=r"shape \(4, 2\), but its last dimension must be 3"):
        call(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="last dimension must be 3"):
        call(torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"dtype torch\.uint8"):
        call(torch.zeros(4, 3, dtype=torch.uint8))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e200])
def test_update_refuses_not_finite_and_keeps_the_statistics(bad: float) -> None:
    normalizer = ObservationNormalizer(3)
    normalizer.update(torch.randn(5, 3))
    before = copy.deepcopy(normalizer.state_dict())
    observation = torch.randn(4, 3, dtype=torch.float64)
    observation[2, 1] = bad
    with pytest.raises(ValueError, match=r"columns \[1\]"):
        normalizer.update(observation)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_update_refuses_no_frame() -> None:
    with pytest.raises(ValueError, match=r"shape \(0, 3\) holds no frame"):
        ObservationNormalizer(3).update(torch.zeros(0, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": 2.0}, TypeError, "size=2.0"),
        ({"clip": 0.0}, ValueError, "clip=0.0"),
        ({"clip": math.nan}, ValueError, "clip=nan"),
        ({"min_variance": 0.0}, ValueError, "min_variance=0.0"),
        ({"min_variance": math.inf}, ValueError, "min_variance=inf"),
        ({"initial_count": -1.0}, ValueError, "initial_count=-1.0"),
        ({"dtype": torch.int64}, TypeError, "dtype=torch.int64 is not floating"),
    ],
)
def test_refuses_bad_arguments(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ObservationNormalizer(**({"size": 2} | arguments))  # type: ignore[arg-type]
