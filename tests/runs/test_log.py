import csv
import math
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from amber_trl.runs import RunDirectory, TrainingLog


def _batch(reward: float, done: bool) -> TensorDict:
    ends = torch.tensor([[False, done], [False, False]])[..., None]
    rewards = torch.full((2, 2, 1), reward)
    return TensorDict({"next": {"reward": rewards, "done": ends, "terminated": ends}}, [2, 2])


def _ledger(active: list[bool]) -> TensorDict:
    size = len(active)
    columns = {
        name: torch.arange(size) / 10
        for name in ("importance_ratio", "staleness", "kl", "ess", "num_capped", "num_non_finite")
    }
    columns["active"], columns["reason"] = torch.tensor(active), torch.zeros(size)
    return TensorDict(columns, [size])


NO_UPDATES = TensorDict(batch_size=[0])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_an_iteration(tmp_path: Path) -> None:
    metrics = TensorDict(
        {"loss_critic": torch.tensor([1.0, 2.0]), "capped_frames": torch.tensor([0, 3])}, [2]
    )
    with TrainingLog(RunDirectory(tmp_path), 8, 4, 3, progress=False) as log:
        log.lap("collect")
        log.iteration(_batch(1.0, False), {"learning_rate": 0.5}, metrics, _ledger([True]))
        log.lap("collect")
        log.iteration(_batch(1.0, True), {"learning_rate": 0.25}, metrics, _ledger([True, False]))
        summary = log.summary()
    first, second = _rows(tmp_path / "iterations.csv")
    assert (first["frames"], second["frames"]) == ("4", "8")
    assert (first["learning_rate"], second["learning_rate"]) == ("0.5", "0.25")
    assert (first["loss_critic"], first["capped_frames"], first["updates"]) == ("1.5", "1.5", "2")
    assert (second["active_batches"], second["staleness_1"]) == (
        "1",
        repr(float(torch.tensor(0.1))),
    )
    assert (first["staleness_1"], second["staleness_2"]) == ("", "")
    timing = _rows(tmp_path / "timing.csv")
    assert list(timing[0]) == ["frames", "seconds", "collect_seconds"]
    assert float(timing[1]["seconds"]) >= float(timing[1]["collect_seconds"]) > 0
    # The episode ended at t=1 of the second batch, in environment 0: frame 4 + 1 * 2 + 0 + 1.
    assert _rows(tmp_path / "episodes.csv") == [
        {"frame": "7", "return": "4.0", "length": "4", "terminated": "1", "truncated": "0"}
    ]
    assert (summary["final_score"], summary["speed_score"]) == (4.0, 4.0)
    assert (summary["frames"], summary["episodes"]) == (8, 1)
    assert summary["frames_per_second"] == pytest.approx(8 / summary["seconds"])


def test_the_bar_shows_the_oldest_batch_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingLog(RunDirectory(tmp_path), 4, 4, 3) as log:
        log.iteration(_batch(2.0, True), {}, NO_UPDATES, _ledger([True, True, False]))
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "return=4, active=2, staleness=0.1" in shown


def test_without_ledger_metrics_or_episodes(tmp_path: Path) -> None:
    with TrainingLog(RunDirectory(tmp_path), 4, 4, progress=False) as log:
        log.iteration(_batch(1.0, False), {}, NO_UPDATES)
        assert math.isnan(log.summary()["final_score"])
    assert _rows(tmp_path / "iterations.csv") == [{"frames": "4", "updates": "0"}]


@pytest.mark.parametrize("wrong", [(0, 4, 1), (8, 0, 1), (8, 4, 0)])
def test_numbers_below_one_are_refused(tmp_path: Path, wrong: tuple[int, int, int]) -> None:
    with RunDirectory(tmp_path) as run, pytest.raises(ValueError, match="=0 given to TrainingLog"):
        TrainingLog(run, *wrong)


def _iterate(log: TrainingLog, done: bool) -> None:
    log.lap("collect")
    log.iteration(_batch(1.0, done), {}, NO_UPDATES)


def test_goes_on_from_a_saved_state(tmp_path: Path) -> None:
    def tables() -> list[bytes]:
        return [(tmp_path / name).read_bytes() for name in ("episodes.csv", "iterations.csv")]

    run = RunDirectory(tmp_path)
    run.write_config({})
    with TrainingLog(run, 16, 4, progress=False) as log:
        _iterate(log, True)
        _iterate(log, False)
        state = log.state_dict()
        _iterate(log, True)
        _iterate(log, True)
        whole, summary = tables(), log.summary()
    with TrainingLog(RunDirectory(tmp_path, resume=True), 16, 4, progress=False) as log:
        log.load_state_dict(state)
        _iterate(log, True)
        _iterate(log, True)
        assert tables() == whole
        again = log.summary()
    assert again["seconds"] >= state["seconds"]
    for name in ("final_score", "speed_score", "frames", "episodes"):
        assert again[name] == summary[name]


def test_another_run_s_state_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_config({})
    with TrainingLog(run, 16, 4, progress=False) as log:
        _iterate(log, True)
        state = log.state_dict() | {"episodes": 5}
    with (
        TrainingLog(RunDirectory(tmp_path, resume=True), 16, 4, progress=False) as log,
        pytest.raises(ValueError, match="holds 1 episodes where the checkpoint counts 5"),
    ):
        log.load_state_dict(state)
