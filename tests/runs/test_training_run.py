"""``TrainingRun`` around a loop other than the main recipe's."""

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.mujoco import MujocoEnv
from tensordict import TensorDict, TensorDictBase

from amber_trl.checkpoints import CheckpointError, Checkpoints, list_checkpoints
from amber_trl.collectors import GymCollector
from amber_trl.envs import make_env
from amber_trl.modules import categorical_actor, gaussian_actor
from amber_trl.runs import (
    Policy,
    RunDirectory,
    TrainingRun,
    final_score,
    interrupts,
    load_policy,
    speed_score,
)
from tests.runs.left import read_rows, read_tables
from tests.runs.own_recipe import FRAMES, train


def _stop_at(iteration: int, number: signal.Signals) -> Any:
    def on_batch(run: TrainingRun, batch: Any) -> None:
        if run.frames == iteration * FRAMES:
            signal.raise_signal(number)

    return on_batch


def test_a_run_leaves_rows_scores_and_a_policy(tmp_path: Path) -> None:
    run = train(str(tmp_path), iterations=12)
    iterations, episodes = read_rows(tmp_path, "iterations"), read_rows(tmp_path, "episodes")
    assert [int(row["frames"]) for row in iterations] == list(range(FRAMES, 13 * FRAMES, FRAMES))
    assert iterations[0]["learning_rate"] == "0.01"
    assert {row["updates"] for row in iterations} == {"1"}
    for row in iterations:
        ended = [e for e in episodes if int(e["frame"]) <= int(row["frames"])][-100:]
        for name, column in (("mean_return", "return"), ("mean_length", "length")):
            expected = sum(float(e[column]) for e in ended) / len(ended)
            assert float(row[name]) == pytest.approx(expected)
    timing = [
        {name: float(value) for name, value in row.items()} for row in read_rows(tmp_path, "timing")
    ]
    for name in ("collect_seconds", "update_seconds", "frames_per_second"):
        assert all(row[name] > 0 for row in timing)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary.items() >= run.summary.items()
    ends, returns = [int(e["frame"]) for e in episodes], [float(e["return"]) for e in episodes]
    assert summary["final_score"] == final_score(ends, returns)
    assert summary["speed_score"] == speed_score(ends, returns, FRAMES, 12 * FRAMES)
    assert (summary["frames"], summary["interrupted"]) == (12 * FRAMES, False)
    assert load_policy(tmp_path / "policy.pt").env_id == "InvertedPendulum-v5"


def test_rows_may_be_fewer_than_iterations(tmp_path: Path) -> None:
    train(str(tmp_path / "all"), iterations=12)
    train(str(tmp_path / "whole"), iterations=12, log_interval=4)
    rows, every = (
        read_rows(tmp_path / "whole", "iterations"),
        read_rows(tmp_path / "all", "iterations"),
    )
    assert rows == every[3::4]
    for row in read_rows(tmp_path / "whole", "timing"):  # its parts are of all four iterations
        seconds = sum(float(row[name]) for name in row if name.endswith("_seconds"))
        assert seconds == pytest.approx(4 * FRAMES / float(row["frames_per_second"]), rel=0.5)
    train(
        str(tmp_path / "run"), iterations=12, log_interval=4, on_batch=_stop_at(5, signal.SIGTERM)
    )
    assert len(read_rows(tmp_path / "run", "timing")) == 1
    train(str(tmp_path / "run"), iterations=12, log_interval=4, resume=True)
    assert read_tables(tmp_path / "run") == read_tables(tmp_path / "whole")


def test_a_run_stopped_before_its_first_row_resumes(tmp_path: Path) -> None:
    train(str(tmp_path), iterations=4, log_interval=4, on_batch=_stop_at(1, signal.SIGTERM))
    train(str(tmp_path), iterations=4, log_interval=4, resume=True)
    assert [row["frames"] for row in read_rows(tmp_path, "iterations")] == [str(4 * FRAMES)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_by_a_signal_and_resumed_it_ends_the_same(
    tmp_path: Path, number: signal.Signals
) -> None:
    earlier = signal.signal(number, signal.default_int_handler)
    try:
        whole = train(str(tmp_path / "whole"))
        stopped = train(str(tmp_path / "run"), on_batch=_stop_at(10, number))
    finally:
        signal.signal(number, earlier)
    assert (stopped.summary["frames"], stopped.summary["stopped_by"]) == (11 * FRAMES, number.name)
    resumed = train(str(tmp_path / "run"), resume=True)
    assert read_tables(tmp_path / "run") == read_tables(tmp_path / "whole")
    assert resumed.summary["exactness"] == "exact"
    assert resumed.summary["seconds"] >= stopped.summary["seconds"]
    for name in ("final_score", "speed_score", "frames", "episodes", "interrupted"):
        assert resumed.summary[name] == whole.summary[name]


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    run_dir, options = tmp_path / "run", [sys.executable, "-m", "tests.runs.own_recipe"]
    process = subprocess.Popen([*options, str(run_dir)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while len(list_checkpoints(run_dir / "checkpoints")) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    logged = len(read_rows(run_dir, "iterations"))
    resumed_at: list[int] = []
    train(
        str(run_dir),
        resume=True,
        iterations=80,
        on_batch=lambda run, batch: resumed_at.append(run.frames),
    )
    assert logged - 1 <= resumed_at[0] // FRAMES <= logged
    train(str(tmp_path / "whole"), iterations=80)
    assert read_tables(run_dir) == read_tables(tmp_path / "whole")


def test_a_second_interrupt_ends_it_at_once_and_keeps_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_SAME", 0.0)

    def on_batch(run: TrainingRun, batch: Any) -> None:
        if run.frames == 2 * FRAMES:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(str(tmp_path), on_batch=on_batch)
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert json.loads((tmp_path / "summary.json").read_text())["frames"] == 2 * FRAMES
    assert not list_checkpoints(tmp_path / "checkpoints")  # of a half-made iteration


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_is_not_hidden_by_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("what happened first")

    monkeypatch.setattr(Policy, "save", _full)
    with pytest.raises(RuntimeError, match="what happened first"):
        train(str(tmp_path), on_batch=fail)
    assert "could not be written" in caplog.text
    with pytest.raises(OSError, match="No space left"):
        train(str(tmp_path / "other"), iterations=1)


def test_a_checkpoint_on_a_full_disk_leaves_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "save", _full)
    with pytest.raises(OSError, match="No space left"):
        train(str(tmp_path), iterations=1)
    assert (tmp_path / "policy.pt").exists()
    assert json.loads((tmp_path / "summary.json").read_text())["interrupted"]


def test_an_environment_that_cannot_be_closed_leaves_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("the simulator has gone")

    monkeypatch.setattr(MujocoEnv, "close", gone)
    with pytest.raises(RuntimeError, match="has gone"):
        train(str(tmp_path), iterations=1)
    assert {"policy.pt", "summary.json"} <= {file.name for file in tmp_path.iterdir()}


def test_a_run_that_cannot_be_resumed_is_reported(tmp_path: Path) -> None:
    train(str(tmp_path), iterations=2)
    with pytest.raises(CheckpointError, match="collection"):
        train(str(tmp_path), iterations=2, resume=True, num_envs=4)
    assert {"policy.pt", "summary.json"} <= {file.name for file in tmp_path.iterdir()}
    (tmp_path / "config.json").write_text('{"seed": 1}')
    with pytest.raises(CheckpointError, match=r"config\.json is not what it was"):
        train(str(tmp_path), iterations=2, resume=True)
    (tmp_path / "config.json").unlink()
    train(str(tmp_path), iterations=2, resume=True)  # already finished: nothing is left to do
    for path in list_checkpoints(tmp_path / "checkpoints"):
        path.rename(path.with_name("moved"))
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        train(str(tmp_path), iterations=2, resume=True)


def _collector(total_frames: int = 256) -> GymCollector:
    env = make_env("InvertedPendulum-v5", num_envs=2, seed=0)
    actor = gaussian_actor(4, 1)
    return GymCollector(env, actor, frames_per_batch=FRAMES, total_frames=total_frames)


@pytest.mark.parametrize(("total_frames", "frames"), [(150, 192), (-1, 320)])
def test_the_last_batch_is_whole_and_a_loop_may_break(
    tmp_path: Path, total_frames: int, frames: int
) -> None:
    parts = {"network": torch.nn.Linear(1, 1)}
    with TrainingRun(
        RunDirectory(tmp_path), _collector(total_frames), parts, progress=False
    ) as run:
        for batch in run.batches():
            run.record(batch)
            if run.frames == 320:
                break
    assert run.summary["frames"] == frames
    assert [int(path.stem) for path in list_checkpoints(tmp_path / "checkpoints")] == [frames]


def test_arguments_are_checked(tmp_path: Path) -> None:
    collector, parts = _collector(), {"network": torch.nn.Linear(1, 1)}
    with RunDirectory(tmp_path) as directory:
        for name in ("num_batches", "checkpoint_interval", "log_interval", "eval_interval"):
            options: dict[str, Any] = {name: 0}
            with pytest.raises(ValueError, match=f"{name}=0"):
                TrainingRun(directory, collector, parts, **options)
        with pytest.raises(ValueError, match="evaluate"):
            TrainingRun(directory, collector, parts, eval_interval=2)
        with pytest.raises(ValueError, match="log_interval=3"):
            TrainingRun(directory, collector, parts, eval_interval=2, log_interval=3)
        with pytest.raises(ValueError, match="collection"):
            TrainingRun(directory, collector, {"collection": torch.nn.Linear(1, 1)})
    collector.shutdown()


def test_a_batch_that_was_not_recorded_is_noticed(tmp_path: Path) -> None:
    parts = {"network": torch.nn.Linear(1, 1)}
    with (
        pytest.raises(RuntimeError, match=r"run\.record"),
        TrainingRun(RunDirectory(tmp_path), _collector(), parts, progress=False) as run,
    ):
        for _ in run.batches():
            pass


def test_a_ledger_with_more_batches_than_columns_is_refused(tmp_path: Path) -> None:
    ledger = TensorDict({"staleness": torch.zeros(2), "active": torch.ones(2).bool()}, [2])
    with pytest.raises(ValueError, match="num_batches=1"):
        train(str(tmp_path), on_batch=lambda run, batch: run.record(batch, ledger=ledger))


class _Elsewhere:
    """A collector whose environments appear to be in other processes."""

    def __init__(self, collector: GymCollector) -> None:
        self.total_frames = collector.total_frames
        self.requested_frames_per_batch = collector.requested_frames_per_batch
        self._collector = collector

    def __iter__(self) -> Iterator[Any]:
        return iter(self._collector)

    def shutdown(self, **options: Any) -> None:
        self._collector.shutdown(**options)


def test_environments_in_other_processes_start_new_episodes(tmp_path: Path) -> None:
    def run_until(stop: int, resume: bool = False) -> TrainingRun:
        collector: Any = _Elsewhere(_collector())
        directory, parts = RunDirectory(tmp_path, resume=resume), {"part": torch.nn.Linear(1, 1)}
        with TrainingRun(directory, collector, parts, progress=False) as run:
            for batch in run.batches():
                run.record(batch)
                if run.frames == stop:
                    break
        return run

    run_until(2 * FRAMES)
    summary = run_until(4 * FRAMES, resume=True).summary
    assert (summary["frames"], summary["interrupted"]) == (4 * FRAMES, False)
    assert summary["exactness"] == "approximate"
    assert "_Elsewhere has no env" in summary["reasons"][0]


@pytest.mark.parametrize(
    ("record", "error", "match"),
    [
        (lambda run, batch: run.record(batch.reshape(-1)), ValueError, "flattened"),
        (lambda run, batch: [run.record(batch), run.record(batch)], RuntimeError, "once per batch"),
    ],
)
def test_each_batch_is_recorded_once_and_as_it_was_collected(
    record: Callable[[TrainingRun, TensorDictBase], object],
    error: type[Exception],
    match: str,
    tmp_path: Path,
) -> None:
    env = make_env("CartPole-v1", num_envs=2, seed=0)
    collector = GymCollector(env, categorical_actor(4, 2), frames_per_batch=32, total_frames=64)
    directory = RunDirectory(tmp_path / "run")
    with TrainingRun(directory, collector, {}, progress=False) as run:
        batch = next(run.batches())
        with pytest.raises(error, match=match):
            record(run, batch)
