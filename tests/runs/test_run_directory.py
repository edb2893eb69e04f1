import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from amber_trl.runs import RunDirectory, read_config
from amber_trl.runs._episodes import Episode

_COLUMNS = ("importance_ratio", "staleness", "kl", "ess", "num_capped", "num_non_finite")


def _ledger(batches: int) -> TensorDict:
    columns: dict[str, Any] = {name: torch.arange(batches) / 10 for name in _COLUMNS}
    columns["active"] = torch.arange(batches) < 1
    columns["reason"] = torch.arange(batches)
    columns["slot"] = torch.arange(batches)
    return TensorDict(columns, [batches])


def test_config_and_versions_are_plain_text(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a" / "b") as run:
        run.write_config({"drop_factor": math.inf, "hidden_sizes": (64, 64), "path": Path("x")})
        config = read_config(run.path)
        assert config == {"drop_factor": "inf", "hidden_sizes": [64, 64], "path": "x"}
        assert float(config["drop_factor"]) == math.inf
        versions = json.loads((run.path / "versions.json").read_text())
    assert {"python", "torch", "torchrl", "amber_trl"} <= set(versions)


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such directory"):
        read_config(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json does not hold a configuration"):
        read_config(tmp_path)


def test_floats_come_back_exactly(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    with RunDirectory(tmp_path) as run:
        run.append_episodes([Episode(7, value, 3, False, True)])
        run.append_iteration({"frames": 7, "loss": torch.tensor(0.1)})
    episodes = (tmp_path / "episodes.csv").read_text().splitlines()
    assert episodes[0] == "frame,return,length,terminated,truncated"
    frame, text, length, *ends = episodes[1].split(",")
    assert (frame, length, ends) == ("7", "3", ["0", "1"])
    assert float(text) == value
    row = (tmp_path / "iterations.csv").read_text().splitlines()[1]
    assert float(row.split(",")[1]) == torch.tensor(0.1).item()


def test_rows_are_in_the_files_before_close(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    _write(run, 8)
    assert [len(table.splitlines()) for table in _tables(tmp_path).values()] == [2, 2, 2]
    run.close()


def test_ledger_columns_wait_for_their_batches(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.append_iteration({"frames": 8}, ledger=_ledger(1), num_batches=2)
        run.append_iteration({"frames": 16}, ledger=_ledger(2), num_batches=2)
        with pytest.raises(ValueError, match=r"ledger of 3 batches .*num_batches=2"):
            run.append_iteration({"frames": 24}, ledger=_ledger(3), num_batches=2)
    header, first, second = [
        line.split(",") for line in (tmp_path / "iterations.csv").read_text().splitlines()
    ]
    assert header[:3] == ["frames", "importance_ratio_0", "importance_ratio_1"]
    assert dict(zip(header, first, strict=True))["importance_ratio_1"] == ""
    cells = dict(zip(header, second, strict=True))
    assert float(cells["importance_ratio_1"]) == pytest.approx(0.1)
    assert (cells["active_0"], cells["active_1"], cells["reason_1"]) == ("1", "0", "1")
    assert "slot_0" not in header


def test_columns_cannot_change(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.append_iteration({"frames": 1, "loss": None})
        with pytest.raises(ValueError, match=r"\['frames', 'entropy'\] given to iterations.csv"):
            run.append_iteration({"frames": 2, "entropy": 0.0})


def test_a_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with RunDirectory(tmp_path) as run:
        run.append_episodes([Episode(1, 0.0, 1, True, False)])
        run.write_summary({"final_score": 1.0})
    with pytest.raises(FileExistsError, match=r"already holds a run.*--overwrite"):
        RunDirectory(tmp_path)
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 2
    RunDirectory(tmp_path, overwrite=True).close()
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 1
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(NotADirectoryError, match="it is a file"):
        RunDirectory(tmp_path / "run")


def test_summary_has_versions_and_no_nan(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_summary({"final_score": math.nan, "frames": 8})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["final_score"] is None
    assert summary["versions"]["torch"]


def test_tensorboard_is_an_option(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with RunDirectory(tmp_path, tensorboard=True) as run:
        run.append_iteration({"frames": 1, "loss": 0.5, "empty": None})
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    with pytest.raises(FileExistsError):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path, overwrite=True).close()
    assert list((tmp_path / "tensorboard").iterdir()) == []


def test_missing_tensorboard_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install .amber_trl\[tensorboard\]"):
        RunDirectory(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def _write(run: RunDirectory, frames: int) -> None:
    run.append_episodes([Episode(frames, 0.1 + frames, 3, False, True)])
    run.append_iteration({"frames": frames, "loss": 0.3 * frames})
    run.append_timing({"frames": frames, "seconds": 0.5})


def _tables(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.glob("*.csv")}


def _written(path: Path) -> dict[str, bytes]:
    """A run of two iterations."""
    with RunDirectory(path) as run:
        run.write_config({"seed": 1})
        _write(run, 8)
        _write(run, 16)
        run.write_summary({"interrupted": True})
    return _tables(path)


def test_a_resumed_run_has_no_row_twice_and_none_missing(tmp_path: Path) -> None:
    whole = _written(tmp_path)
    with (tmp_path / "timing.csv").open("a") as file:
        file.write("2")  # a kill cut off the row of frame 24
    with RunDirectory(tmp_path, resume=True) as run:
        run.rewind(8)
        assert not (tmp_path / "summary.json").exists()
        assert run.read_episodes() == [Episode(8, 8.1, 3, False, True)]
        _write(run, 16)
        with pytest.raises(ValueError, match=r"iterations\.csv"):
            run.append_iteration({"frames": 24})
    assert _tables(tmp_path) == whole


def test_rows_that_a_checkpoint_knows_of_must_be_there(tmp_path: Path) -> None:
    _written(tmp_path)
    with (
        RunDirectory(tmp_path, resume=True) as run,
        pytest.raises(ValueError, match=r"iterations\.csv ends at frame 16"),
    ):
        run.rewind(24)


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no episodes.csv"):
        RunDirectory(tmp_path, resume=True)
    with pytest.raises(ValueError, match="choose one"):
        RunDirectory(tmp_path, resume=True, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_overwriting_removes_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "000000002048").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="checkpoints"):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path, overwrite=True).close()
    assert not (tmp_path / "checkpoints").is_symlink()
    assert (tmp_path / "elsewhere" / "000000002048").is_dir()  # what is not the run's own
    (tmp_path / "checkpoints" / "000000002048").mkdir(parents=True)
    RunDirectory(tmp_path, overwrite=True).close()
    assert not (tmp_path / "checkpoints").exists()


def test_tensorboard_drops_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunDirectory(tmp_path, tensorboard=True) as run:
        run.write_config({})
        for frames in (8, 16, 24):
            run.append_iteration({"frames": frames, "loss": float(frames)})
    with RunDirectory(tmp_path, resume=True, tensorboard=True) as run:
        run.rewind(8)
        run.append_iteration({"frames": 16, "loss": -1.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(8, 8.0), (16, -1.0)]


def test_two_trainings_cannot_share_a_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({})
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(BlockingIOError, match="in use by another training"):
                RunDirectory(tmp_path, **options)
        _write(run, 8)
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 2
    RunDirectory(tmp_path, resume=True).close()
