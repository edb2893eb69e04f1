"""A loss or gradient that is not finite changes nothing, compiled and eager."""

import pickle

import pytest
import torch

from amber_trl.training import NonFiniteError
from tests.training.learner import FRAMES, Learner, bad_frames, draw_indices


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_non_finite_update_changes_nothing_until_cleared(learner: Learner, kind: str) -> None:
    frames, bad, good = bad_frames(kind), torch.tensor([7, 3]), draw_indices(3)
    learner.epoch(FRAMES, good)
    before = learner.state()
    with pytest.raises(NonFiniteError, match=r"rows \[7, 3\] of batches of age 1"):
        learner.epoch(frames, [bad, *good])
    learner.update(FRAMES[:64])
    assert all(torch.equal(p, q) for p, q in zip(learner.state(), before, strict=True))
    assert learner.update.nonfinite.item()
    for epoch_or_check in (  # the flag stays raised until cleared
        lambda: learner.epoch(FRAMES, good),
        learner.update.raise_if_nonfinite,
    ):
        with pytest.raises(NonFiniteError, match=r"rows \[7, 3\]") as caught:
            epoch_or_check()
        assert caught.value.update == 0
        assert caught.value.rows is not None
        assert torch.equal(caught.value.rows, bad)
    learner.update.clear_nonfinite()
    learner.epoch(FRAMES, good)
    assert not any(torch.equal(p, q) for p, q in zip(learner.state(), before, strict=True))


def test_names_the_first_update_and_the_index_of_its_minibatch(learner: Learner) -> None:
    frames = bad_frames("loss")
    rows = [torch.tensor(r) for r in ([1, 2], [3, 4], [5, 7], [7, 8])]
    for index in rows:
        minibatch = frames[index]
        minibatch["index"] = index + 100
        learner.update(minibatch)
    with pytest.raises(NonFiniteError, match=r"update 2 since") as caught:
        learner.update.raise_if_nonfinite()
    assert caught.value.rows is not None
    assert caught.value.rows.tolist() == [105, 107]
    assert caught.value.ages is None


def test_an_epoch_counts_from_its_start_and_names_the_ages(learner: Learner) -> None:
    learner.update(FRAMES[:64])
    rows = [torch.tensor(r) for r in ([1, 2], [7, 2050, 1030, 3])]  # batches of 1024 frames
    with pytest.raises(NonFiniteError) as caught:
        learner.epoch(bad_frames("loss"), rows)
    assert caught.value.update == 1
    assert caught.value.rows is rows[1]
    assert caught.value.ages == [0, 1, 3]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_minibatch_without_index_is_reported_without(eager: Learner) -> None:
    eager.update(bad_frames("loss")[:16])
    with pytest.raises(NonFiniteError) as caught:
        eager.update.raise_if_nonfinite()
    assert caught.value.rows is None


def test_the_step_checks_if_the_caller_never_does(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amber_trl.training._guard._MAX_REMEMBERED", 4)

    def update_often() -> None:
        for _ in range(9):
            learner.update(FRAMES[:64])

    update_often()  # 8 of them are known to be finite
    learner.update(bad_frames("loss")[:64])
    for _ in range(2):  # and again
        with pytest.raises(NonFiniteError, match="update 1 since"):
            update_often()
