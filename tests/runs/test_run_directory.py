import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from amber_trl.runs import RunDirectory, read_config


def logged(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """The contents of a run's event files by name: steps and values."""
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((run_dir / "tensorboard").iterdir()):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def _write(run: RunDirectory, frames: int) -> None:
    episode = {"frame": frames, "return": 0.1 + frames, "length": 3}
    run.append("episodes", episode | {"terminated": False, "truncated": True})
    run.append("iterations", {"frames": frames, "loss": 0.3 * frames, "none": None})
    run.append("timing", {"frames": frames, "seconds": 0.5})


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


def test_config_and_versions_are_plain_text(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a" / "b") as run:
        run.write_config({"drop_factor": math.inf, "hidden_sizes": (64, 64), "path": Path("x")})
        config = read_config(run.path)
        assert config == {"drop_factor": "inf", "hidden_sizes": [64, 64], "path": "x"}
        assert float(config["drop_factor"]) == math.inf
        versions = json.loads((run.path / "versions.json").read_text())
    assert {"python", "torch", "torchrl", "amber_trl"} <= set(versions)


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "no such directory"), (tmp_path, r"no config\.json")):
        with pytest.raises(FileNotFoundError, match=message):
            read_config(path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json does not hold a configuration"):
        read_config(tmp_path)


def test_rows_are_in_the_files_before_close_and_floats_come_back_exactly(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        _write(run, 8)
        texts = {name: text.decode().splitlines() for name, text in _tables(tmp_path).items()}
    assert texts["episodes.csv"] == ["frame,return,length,terminated,truncated", "8,8.1,3,0,1"]
    header, row = texts["iterations.csv"]
    assert header == "frames,loss,none"
    assert (float(row.split(",")[1]), row.split(",")[2]) == (0.3 * 8, "")
    assert len(texts["timing.csv"]) == 2


def test_columns_cannot_change(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        _write(run, 8)
        with pytest.raises(ValueError, match=r"\['frames', 'entropy'\] given to iterations.csv"):
            run.append("iterations", {"frames": 16, "entropy": 0.0})


def test_a_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    _written(tmp_path)
    (tmp_path / "policy.pt.part").write_text("")  # left by a kill
    with pytest.raises(FileExistsError, match=r"already holds a run.*--overwrite"):
        RunDirectory(tmp_path)
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 3
    RunDirectory(tmp_path, overwrite=True).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("episodes.csv", "iterations.csv", "notes.txt", "timing.csv")
    ]
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 1


def test_overwriting_removes_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "000000002048").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="checkpoints"):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path, overwrite=True).close()
    assert not (tmp_path / "checkpoints").is_symlink()
    assert (tmp_path / "elsewhere" / "000000002048").is_dir()  # not the run's own
    (tmp_path / "checkpoints" / "000000002048").mkdir(parents=True)
    RunDirectory(tmp_path, overwrite=True).close()
    assert not (tmp_path / "checkpoints").exists()


def test_summary_has_versions_and_no_nan(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_summary({"final_score": math.nan, "frames": 8})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["final_score"] is None
    assert summary["versions"]["torch"]


def test_a_resumed_run_has_no_row_twice_and_none_missing(tmp_path: Path) -> None:
    whole = _written(tmp_path)
    with (tmp_path / "timing.csv").open("a") as file:
        file.write("2")  # a kill cut off the row of frame 24
    with RunDirectory(tmp_path, resume=True) as run:
        run.rewind(8)
        assert not (tmp_path / "summary.json").exists()
        assert run.rows("episodes") == [["8", "8.1", "3", "0", "1"]]
        _write(run, 16)
        with pytest.raises(ValueError, match=r"iterations\.csv"):
            run.append("iterations", {"frames": 24})
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


def test_a_logger_gets_each_iteration_once_also_if_the_run_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for resume, frames in ((False, (8, 16, 24)), (True, (16, 24, 32))):
        with RunDirectory(tmp_path, resume=resume, logger="tensorboard") as run:
            if resume:
                run.rewind(8)
            for frame in frames:
                run.log(frame, {"loss": frame, "none": None})
                _write(run, frame)
            if not resume:  # killed before the logger gets it
                run.append("iterations", {"frames": 32, "loss": 0.5, "none": None})
    assert logged(tmp_path) == {"loss": [(8, 8.0), (16, 16.0), (24, 24.0), (32, 32.0)]}
    RunDirectory(tmp_path, overwrite=True).close()
    assert list((tmp_path / "tensorboard").iterdir()) == []


@pytest.mark.parametrize("logger", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_that_is_not_there_ends_before_the_run(
    logger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, logger, None)
    with pytest.raises(ImportError, match=f"pip install {logger}"):
        RunDirectory(tmp_path / "run", logger=logger)
    with pytest.raises(ValueError, match="logger='tensorbord'"):
        RunDirectory(tmp_path / "run", logger="tensorbord")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_logger_that_cannot_start_leaves_no_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(RuntimeError, match="logger='tensorboard' could not start") as caught:
        RunDirectory(tmp_path, logger="tensorboard")
    assert "\n" not in str(caught.value)
    RunDirectory(tmp_path).close()


def test_two_trainings_cannot_share_a_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        _write(run, 8)
        for option in ("resume", "overwrite"):
            with pytest.raises(BlockingIOError, match="in use by another training"):
                RunDirectory(tmp_path, **{option: True})  # type: ignore[arg-type]
        _write(run, 16)
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 3
    RunDirectory(tmp_path, resume=True).close()
