"""A compiled actor acts as the actor does, and unsupported cases are refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type
from torchrl.modules import ProbabilisticActor

from amber_trl.collectors import GymCollector, _actor, _ahead
from amber_trl.collectors._recording import Recording
from tests.collectors.problem import gaussian, integer, single, vector

FRAMES = 64


@pytest.mark.parametrize(
    ("make_env", "make_actor"),
    [
        pytest.param(lambda: single("HalfCheetah-v5"), lambda: gaussian(17, 6), id="gaussian"),
        pytest.param(lambda: vector("CartPole-v1", 2), lambda: integer(4, 2), id="integer"),
    ],
)
def test_acts_as_the_actor_does(
    make_env: Callable[[], EnvBase],
    make_actor: Callable[[], ProbabilisticActor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    env, actor = make_env(), make_actor()
    env.set_seed(0)
    collector = GymCollector(
        env, actor, frames_per_batch=FRAMES, total_frames=2 * FRAMES, compile_policy=True
    )
    state = torch.get_rng_state()
    for batch in collector:
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        given = batch.select("observation")
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            frames = [actor(frame.clone()) for frame in given.unbind(-1)]
        assert torch.equal(torch.get_rng_state(), after)
        state = after
        for key in actor.out_keys:
            value = torch.stack([frame[key] for frame in frames], len(env.batch_size))
            torch.testing.assert_close(batch[key], value, rtol=1e-5, atol=1e-5)
        with torch.no_grad():  # the next batch has other parameters
            for parameter in actor.parameters():
                parameter += 0.1
    assert collector.capture_failure is None
    assert "the compiled actor" not in caplog.text


class Interpreted(_ahead.CompiledFrame):
    """Not compiled; its output is off by ``error``."""

    def __init__(self, recording: Recording, inputs: object, error: float = 0) -> None:
        self._form = _ahead._form(recording)
        self._run: Any = lambda tensors: [out + error for out in recording.each(*tensors)]


def test_is_left_where_it_disagrees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_actor, "CompiledFrame", partial(Interpreted, error=0.1))
    batches = []
    for compile_policy in (False, True):
        torch.manual_seed(0)
        env, actor = single("Pendulum-v1"), gaussian(3, 1)
        env.set_seed(0)
        collector = GymCollector(env, actor, frames_per_batch=8, compile_policy=compile_policy)
        batches.append(next(iter(collector)))
    assert (batches[0] == batches[1]).all()
    assert "the compiled actor does not reproduce the actor's output" in caplog.text


def test_reports_why_it_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("no g++")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", broken)
    collector = GymCollector(
        single("Pendulum-v1"), gaussian(3, 1), frames_per_batch=8, compile_policy=True
    )
    with pytest.raises(RuntimeError, match=r"no g\+\+.*a C\+\+ compiler is needed"):
        next(iter(collector))


def test_is_compiled_again_for_parameters_of_another_form(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The compiled code assumes their sizes, and would read out of bounds."""
    made = []

    def make(*args: Any) -> Interpreted:
        made.append(Interpreted(*args))
        return made[-1]

    monkeypatch.setattr(_actor, "CompiledFrame", make)
    actor = gaussian(3, 1)
    collector = GymCollector(single("Pendulum-v1"), actor, frames_per_batch=8, compile_policy=True)
    for _ in range(2):
        collector.rollout()
    assert len(made) == 1
    for parameter in actor.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.t().contiguous().t()
    collector.rollout()
    assert len(made) == 2
    assert "the actor has changed: it is compiled again" in caplog.text
