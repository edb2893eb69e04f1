"""One compiled step shared by all of its tests."""

from collections.abc import Iterator

import pytest
import torch

from tests.training.learner import FRAMES, Learner, draw_indices, ppo_learner


@pytest.fixture(scope="session")
def compiled_once() -> Learner:
    learner = ppo_learner(compile=True)
    learner.epoch(FRAMES, draw_indices(1))
    return learner


@pytest.fixture
def compiled(compiled_once: Learner) -> Iterator[Learner]:
    """Starts over, and must not be recompiled."""
    compiled_once.start_over()
    with torch.compiler.set_stance("fail_on_recompile"):
        yield compiled_once


@pytest.fixture
def eager() -> Learner:
    return ppo_learner(compile=False)


@pytest.fixture(params=["compiled", "eager"])
def learner(request: pytest.FixtureRequest) -> Learner:
    found: Learner = request.getfixturevalue(request.param)
    return found
