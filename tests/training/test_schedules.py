import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrl.objectives import A2CLoss

from amber_trl.training import LinearSchedule
from tests.training.problem import make_loss


def _optimizer(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([nn.Parameter(torch.zeros(1))], **options)


def _filter(drop_factor: float) -> Any:
    return SimpleNamespace(drop_factor=drop_factor, controller=None)


def test_everything_is_annealed_in_place() -> None:
    optimizer, loss, staleness = _optimizer(lr=3e-4), make_loss(clip_epsilon=0.4), _filter(0.25)
    buffer = loss.clip_epsilon
    schedule = LinearSchedule(1000, optimizer=optimizer, loss=loss, staleness=staleness)
    for frames, left in ((0, 1.0), (250, 0.75), (500, 0.5), (1000, 0.0), (2000, 0.0)):
        values = schedule.step(frames)
        assert values == pytest.approx(
            {"learning_rate": 3e-4 * left, "clip_epsilon": 0.4 * left, "drop_factor": 0.25 * left}
        )
        assert optimizer.param_groups[0]["lr"] == values["learning_rate"]
        assert loss.clip_epsilon is buffer
        assert buffer.item() == pytest.approx(values["clip_epsilon"])
        assert staleness.drop_factor == values["drop_factor"]


def test_clip_range_is_the_written_number_not_its_float32_neighbour() -> None:
    schedule = LinearSchedule(1000, loss=make_loss(clip_epsilon=0.4))
    assert schedule.step(0)["clip_epsilon"] == 0.4
    assert schedule.step(500)["clip_epsilon"] == 0.2


def test_infinite_drop_factor_stays_infinite_until_the_end() -> None:
    staleness = _filter(math.inf)
    schedule = LinearSchedule(10, staleness=staleness)
    for frames in (0, 5, 10, 11):
        assert schedule.step(frames) == {"drop_factor": math.inf}
    assert staleness.drop_factor == math.inf


def test_asymmetric_ranges_and_several_groups() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([first], lr=1.0)
    optimizer.add_param_group({"params": [second], "lr": 0.5})
    schedule = LinearSchedule(10, optimizer=optimizer, loss=make_loss(clip_epsilon=(0.2, 0.4)))
    assert schedule.step(5) == {
        "learning_rate": 0.5,
        "learning_rate_1": 0.25,
        "clip_epsilon_low": 0.1,
        "clip_epsilon_high": 0.2,
    }
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]


def test_a_learning_rate_tensor_is_filled_in_place() -> None:
    rate = torch.tensor(0.1)
    optimizer = _optimizer(lr=rate)
    LinearSchedule(10, optimizer=optimizer).step(5)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)


def test_state_goes_over_to_a_schedule_made_later() -> None:
    saved = LinearSchedule(100, optimizer=_optimizer(lr=0.2), staleness=_filter(0.5))
    saved.step(40)
    optimizer, staleness = _optimizer(lr=0.12), _filter(0.3)
    loaded = LinearSchedule(100, optimizer=optimizer, staleness=staleness)
    state = saved.state_dict()
    loaded.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.2 * (1 - 40 / 100)
    assert staleness.drop_factor == 0.5 * (1 - 40 / 100)
    assert loaded.step(70) == saved.step(70)
    assert state["frames"] == 40  # no alias


def test_state_of_another_schedule_is_refused() -> None:
    schedule = LinearSchedule(100, optimizer=_optimizer(lr=0.2))
    with pytest.raises(ValueError, match=r"total_frames=50 .*total_frames=100"):
        schedule.load_state_dict(LinearSchedule(50, optimizer=_optimizer()).state_dict())
    with pytest.raises(ValueError, match=r"\['drop_factor'\] given to one of \['learning_rate'\]"):
        schedule.load_state_dict(LinearSchedule(100, staleness=_filter(0.1)).state_dict())


def test_a_longer_schedule_continues_from_a_shorter_one_along_its_own_line() -> None:
    shorter = LinearSchedule(100, optimizer=_optimizer(lr=0.2))
    shorter.step(90)
    longer = LinearSchedule(200, optimizer=_optimizer(lr=0.1), extends=True)
    longer.load_state_dict(shorter.state_dict())
    assert longer.step(100)["learning_rate"] == 0.2 * 0.5
    with pytest.raises(ValueError, match="total_frames=200"):
        LinearSchedule(100, optimizer=_optimizer(), extends=True).load_state_dict(
            longer.state_dict()
        )


@pytest.mark.parametrize(("frames", "error"), [(-1, ValueError), (math.nan, TypeError)])
def test_anything_but_a_number_of_frames_is_refused(frames: Any, error: type[Exception]) -> None:
    optimizer = _optimizer(lr=3e-4)
    schedule = LinearSchedule(1000, optimizer=optimizer)
    schedule.step(500)
    with pytest.raises(error, match=f"frames={frames}"):
        schedule.step(frames)
    assert optimizer.param_groups[0]["lr"] == 1.5e-4
    assert schedule.state_dict()["frames"] == 500
    with pytest.raises(error, match=f"total_frames={frames}"):
        LinearSchedule(frames)


def test_a_loss_without_a_clip_range_is_refused() -> None:
    with pytest.raises(TypeError, match=r"loss=A2CLoss .*no clip_epsilon"):
        LinearSchedule(10, loss=make_loss(A2CLoss))


def test_an_integer_of_numpy_leaves_plain_numbers() -> None:
    optimizer = _optimizer(lr=0.2)
    int_of_numpy: Any = np.int64(5)
    assert (
        type(LinearSchedule(10, optimizer=optimizer).step(int_of_numpy)["learning_rate"]) is float
    )
    assert type(optimizer.param_groups[0]["lr"]) is float
