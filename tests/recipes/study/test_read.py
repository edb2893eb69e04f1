"""The study's runs: which are read, which are refused, and which are compared."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from study.read import RunError, UnfinishedRunError, read_finished_run, read_study

from tests.recipes.study.runs import FRAMES, edit, write_run, write_study

LEVELS = {
    ("Pendulum-v1", "ppo"): [1.0, 2.0],
    ("Pendulum-v1", "amber"): [3.0, 4.0],
    ("Hopper-v5", "ppo"): [10.0, 20.0],
    ("Hopper-v5", "amber"): [30.0, 40.0],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_study(tmp_path, LEVELS)


def test_each_run_has_its_row(folder: Path) -> None:
    study = read_study([folder])
    assert list(study.runs)[:4] == ["protocol", "task", "setup", "seed"]
    assert list(study.setups) == ["ppo", "amber"]
    assert study.settings["paper"]["num_envs"] == 1
    levels = study.runs.set_index(["task", "setup", "seed"])["final_score"]
    assert len(levels) == 8
    assert levels["Hopper-v5", "amber", 1] == 40
    for row, logged in zip(study.runs.to_dict("records"), study.logged, strict=True):
        assert (row["task"], row["seed"]) == (logged.config["env_id"], logged.config["seed"])
        assert set(logged.episodes["return"]) == {row["final_score"]}


def test_runs_in_archives_are_those_in_folders(folder: Path, tmp_path_factory: Any) -> None:
    packed = tmp_path_factory.mktemp("packed")
    for task in (folder / "paper").iterdir():
        with zipfile.ZipFile(packed / f"{task.name}.zip", "w") as archive:
            for file in task.rglob("*.*"):
                archive.write(file, file.relative_to(task))
    one, other = (read_study([where]).runs.drop(columns="path") for where in (folder, packed))
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize(
    "changed",
    [
        {"interrupted": True},
        {"frames": FRAMES - 1},
        {"final_score": None, "speed_score": None, "episodes": 0},
        None,
    ],
)
def test_an_unfinished_run_is_left_out_and_named(folder: Path, changed: Any) -> None:
    run = folder / "paper/Hopper-v5/ppo-seed1"
    if changed is None:
        (run / "summary.json").unlink()
    else:
        edit(run / "summary.json", **changed)
    if changed and "episodes" in changed:
        header = (run / "episodes.csv").read_text().partition("\n")[0]
        (run / "episodes.csv").write_text(f"{header}\n")
    with pytest.raises(UnfinishedRunError, match="ppo-seed1"):
        read_finished_run(run)
    study = read_study([folder])
    assert len(study.runs) == 7
    assert [str(run) in words for words in study.left_out] == [True]


@pytest.mark.parametrize("name", ["episodes", "final_score", "speed_score"])
def test_a_summary_that_the_episodes_contradict_is_refused(folder: Path, name: str) -> None:
    file = folder / "paper/Hopper-v5/ppo-seed1/summary.json"
    edit(file, **{name: json.loads(file.read_text())[name] + 1})
    with pytest.raises(RunError, match=f"ppo-seed1.*{name}"):
        read_study([folder])


@pytest.mark.parametrize("name", ["config.json", "versions.json", "episodes.csv", "iterations.csv"])
def test_a_damaged_file_is_refused(folder: Path, name: str) -> None:
    file = folder / "paper/Hopper-v5/ppo-seed1" / name
    file.write_text("{" if file.suffix == ".json" else "frame,return,frames\n1,x,2\n")
    with pytest.raises(RunError, match="ppo-seed1"):
        read_study([folder])


@pytest.mark.parametrize("changed", [{"num_envs": 2}, {"gamma": 0.9}, {"minibatch_size": 32}])
def test_mixed_settings_are_refused(folder: Path, changed: dict[str, Any]) -> None:
    write_run(folder, "ppo", 2, **changed)
    with pytest.raises(RunError, match=next(iter(changed))):
        read_study([folder])


def test_mixed_versions_are_refused_and_missing_ones_are_not(folder: Path) -> None:
    file = folder / "paper/Hopper-v5/ppo-seed1/versions.json"
    edit(file, box2d="2.3")
    assert read_study([folder]).versions["paper"]["box2d"] == "2.3"
    edit(file, torch="2.14.0")
    with pytest.raises(RunError, match="torch"):
        read_study([folder])


@pytest.mark.parametrize("option", ["progress", "compiled", "num_threads"])
def test_what_has_no_effect_may_differ(folder: Path, option: str) -> None:
    edit(folder / "paper/Hopper-v5/ppo-seed1/config.json", **{option: 3})
    read_study([folder])


def test_the_same_cell_twice_is_refused(folder: Path) -> None:
    write_run(folder, "ppo", 1, name="copy")
    with pytest.raises(RunError, match="copy"):
        read_study([folder])


def test_protocols_stay_apart(folder: Path) -> None:
    write_run(folder, "ppo", 0, protocol="default", num_envs=8, level=7.0)
    study = read_study([folder])
    selection = study.select("default", ["ppo"])
    assert selection is not None
    assert selection.scores("ppo", "final")["Pendulum-v1"].tolist() == [7]
    assert study.select("default", ["ppo", "amber"]) is None


def test_a_comparison_takes_the_cells_that_all_setups_have(folder: Path) -> None:
    write_run(folder, "ppo", 2, level=9.0)
    write_run(folder, "ppo", 0, task="Swimmer-v5")
    selection = read_study([folder]).select("paper", ["ppo", "amber"])
    assert selection is not None
    assert selection.tasks == ("Hopper-v5", "Pendulum-v1")
    assert selection.scores("ppo", "final")["Pendulum-v1"].tolist() == [1, 2]
    assert selection.scores("amber", "speed")["Pendulum-v1"].tolist() == [3, 4]
    assert len(selection.logged["ppo"]) == len(selection.logged["amber"]) == 4
    assert selection.left_out == ("ppo on Pendulum-v1, seed 2", "tasks without amber: Swimmer-v5")


def test_what_a_setups_name_says_is_no_setting_of_the_study(tmp_path: Path) -> None:
    write_run(tmp_path / "study")
    write_run(tmp_path / "study", name="larger", frames_per_batch=4096)
    study = read_study([tmp_path / "study"])
    assert list(study.setups) == ["ppo", "ppo_n4096"]
    assert study.settings["paper"]["frames_per_batch"] == 2048
