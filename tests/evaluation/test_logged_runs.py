"""Runs are found and read, finished or not, and named by what differs between them."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amber_trl.evaluation import LoggedRun, by_setup, find_runs, read_run


def write_run(folder: Path, episodes: str = "", iterations: str = "", **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"env_id": "Hopper-v5"} | config))
    (folder / "episodes.csv").write_text(f"frame,return,length,terminated,truncated\n{episodes}")
    (folder / "iterations.csv").write_text(
        f"frames,active_batches,staleness_0,staleness_1\n{iterations}"
    )
    return folder


def test_runs_are_found_in_folders_and_archives_each_once(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "a" / "one"), write_run(tmp_path / "b" / "c" / "other")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for file in other.iterdir():
            archive.write(file, f"deep/other/{file.name}")
    found = find_runs([tmp_path, one])
    assert [run.name for run in found] == ["one", "other", "other"]
    assert [read_run(run).config["env_id"] for run in found] == ["Hopper-v5"] * 3
    assert str(find_runs([tmp_path / "packed.zip"])[0]) == str(found[2])
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:  # made inside the run's directory
        archive.write(other / "config.json", "config.json")
    assert len(find_runs([tmp_path / "flat.zip"])) == 1


def test_a_path_without_runs_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=str(path)):
            find_runs([path])


def test_a_run_in_progress_is_read_up_to_its_last_whole_row(tmp_path: Path) -> None:
    run = read_run(
        write_run(tmp_path / "run", "5,1.5,5,1,0\n9,2.5,4,1,0\n", "4,1,0.1,\n8,2,0.1,0.2\n12,2,0.")
    )
    assert run.frames == 8
    assert run.iterations["staleness_1"][1] == 0.2
    assert np.isnan(run.iterations["staleness_1"][0])
    frames, returns = run.learning_curve
    assert frames.tolist() == [4, 8]
    assert returns[1] == 1.5  # the second episode ended after the last whole row
    new = write_run(tmp_path / "new")
    assert read_run(new).frames == 0
    for name in ("episodes", "iterations"):
        (new / f"{name}.csv").write_text("")  # killed before its first row
    assert read_run(new).frames == 0


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=str(archive)):
        find_runs([archive])
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("run/config.json", '{"env_id": "a"}')
    archive.write_bytes(archive.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(ValueError, match=f"{archive}/run/ cannot be read"):
        read_run(*find_runs([archive]))


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        read_run(tmp_path)
    run = write_run(tmp_path / "run", "5,x,5,1,0\n")
    with pytest.raises(ValueError, match=str(run)):
        read_run(run)
    (run / "episodes.csv").write_text("frame,length\n")
    with pytest.raises(ValueError, match="'return'"):
        read_run(run)
    (run / "config.json").write_text("3")
    with pytest.raises(ValueError, match=str(run)):
        read_run(run)


def names(*configs: dict[str, Any]) -> list[str]:
    runs = [LoggedRun(Path(), {"env_id": "a", "seed": 0} | config, {}, {}) for config in configs]
    found = by_setup(runs)
    return [next(name for name, own in found.items() if run in own) for run in runs]


def test_seeds_are_one_setup_and_other_options_are_not() -> None:
    ppo = {"setup": "ppo", "gamma": 0.99, "num_threads": 1, "hidden_sizes": [8]}
    assert names(ppo, ppo | {"seed": 1, "run_dir": "x", "num_threads": 2}) == ["ppo", "ppo"]
    assert names(ppo, ppo | {"gamma": 0.9}) == ["ppo, gamma=0.99", "ppo, gamma=0.9"]


def test_a_name_has_as_few_options_as_possible() -> None:
    ppo = {"setup": "ppo", "num_batches": 1, "drop_factor": None, "gamma": 0.9}
    amber = {"setup": "amber", "num_batches": 8, "drop_factor": 0.25, "gamma": 0.9}
    assert names(ppo, amber) == ["ppo", "amber"]
    other = amber | {"drop_factor": 0.1}
    expected = ["ppo", "amber, drop_factor=0.25", "amber, drop_factor=0.1"]
    assert names(ppo, amber, other) == expected


def test_tasks_may_have_lengths_of_their_own() -> None:
    short, long = {"env_id": "a", "total_frames": 10}, {"env_id": "b", "total_frames": 20}
    runs = [task | {"setup": setup} for task in (short, long) for setup in ("ppo", "amber")]
    assert names(*runs) == ["ppo", "amber"] * 2


def test_a_missing_option_counts_as_none_or_as_what_it_was() -> None:  # and None is not named
    plain = {"setup": "ppo", "clip_epsilon": 0}
    off = plain | {"target_kl": None, "env_kwargs": {}, "wrappers": [], "loss": "amber"}
    assert names(plain, off, off | {"target_kl": 0.01}) == ["ppo", "ppo", "ppo, target_kl=0.01"]


def test_a_controller_is_named_by_what_it_keeps_in_use() -> None:
    amber = {"setup": "amber", "drop_factor": 0.25, "total_frames": 10}
    controlled = amber | {"drop_factor": None, "batches_in_use": 3, "total_frames": 20}
    assert names(amber, controlled) == ["amber", "amber, batches_in_use=3"]


def test_a_length_names_the_runs_of_its_setup_alone() -> None:
    short, long = {"total_frames": 10}, {"total_frames": 20}
    amber = [
        {"setup": "amber", "env_id": task} | size for task, size in (("a", short), ("b", long))
    ]
    ppo = [{"setup": "ppo"} | size for size in (short, long)]
    expected = ["amber", "amber", "ppo, total_frames=10", "ppo, total_frames=20"]
    assert names(*amber, *ppo) == expected


@pytest.mark.parametrize("option", ["run_dir", "device", "progress", "logger", "eval_interval"])
def test_how_a_run_is_made_is_not_in_its_name(option: str) -> None:
    assert names({"setup": "ppo", option: 1}, {"setup": "ppo", option: 2}) == ["ppo", "ppo"]


def test_runs_of_other_recipes_have_a_name(tmp_path: Path) -> None:
    assert names({"setup": "ppo", "gamma": 0.9}, {"drop_factor": 0.1}) == ["ppo", "unnamed"]
    (write_run(tmp_path / "run") / "config.json").write_text('{"net": {"width": 8}}')
    assert read_run(tmp_path / "run").task == "unnamed"
