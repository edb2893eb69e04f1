"""The study's runs: which are read, which are refused, and which are compared."""

import json
from pathlib import Path
from typing import Any

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
    assert study.values("paper", "num_envs") == [1]
    levels = study.runs.set_index(["task", "setup", "seed"])["final_score"]
    assert len(levels) == 8
    assert levels["Hopper-v5", "amber", 1] == 40
    for row, logged in zip(study.runs.to_dict("records"), study.logged, strict=True):
        assert (row["task"], row["seed"]) == (logged.config["env_id"], logged.config["seed"])
        assert set(logged.episodes["return"]) == {row["final_score"]}


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


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"gamma": 0.9}, "ppo_gamma=0.9"),
        ({"num_envs": 2, "gamma": 0.9}, "ppo_num_envs=2_gamma=0.9"),
        ({"wrappers": ["a:B"]}, "ppo_wrappers=['a:B']"),  # which the other runs do not have yet
        ({"clip_epsilon": 0.4, "gamma": 0.9}, "ppo_gamma=0.9_clip0.4"),
        # Without max_drop_factor, which no standard name has, the recipe would refuse these options.
        (
            {
                "setup": "amber",
                "staleness_metric": "age",
                "batches_in_use": 3,
                "drop_factor": None,
                "max_drop_factor": 6.0,
            },
            "amber_use3_staleness_metric=age_max_drop_factor=6.0",
        ),
    ],
)
def test_any_option_that_differs_names_a_setup(
    folder: Path, changed: dict[str, Any], name: str
) -> None:
    write_run(folder, **{"setup": "ppo", "seed": 1, "name": "other", **changed})
    assert set(read_study([folder]).setups) == {"ppo", "amber", name}


def test_options_common_to_all_runs_or_to_one_task_name_no_setup(folder: Path) -> None:
    for run in (folder / "paper").glob("*/*"):
        edit(run / "config.json", gamma=0.9, activation="tanh")
    for run in (folder / "paper" / "Hopper-v5").iterdir():
        edit(run / "config.json", total_frames=FRAMES // 2)
    study = read_study([folder])
    assert list(study.setups) == ["ppo", "amber"]
    assert study.departures("paper") == [
        f"total_frames {FRAMES // 2} (the paper: 1000000) on Hopper-v5",
        "gamma 0.9 (the paper: 0.99)",
        f"total_frames {FRAMES} (the paper: 1000000) on Pendulum-v1",
    ]


def test_a_setup_of_the_paper_s_tables_departs_from_nothing(folder: Path) -> None:
    write_run(folder, "mber", num_batches=8, name="mber_l8")
    assert not any("num_batches" in words for words in read_study([folder]).departures("paper"))


def test_an_option_that_a_run_does_not_know_has_its_default(folder: Path) -> None:
    edit(folder / "paper/Hopper-v5/ppo-seed1/config.json", activation="tanh", init_from=None)
    write_run(folder, "ppo", 1, name="relu", activation="relu")
    assert list(read_study([folder]).setups) == ["ppo", "ppo_activation=relu", "amber"]


def test_runs_of_other_recipes_are_setups_beside(folder: Path) -> None:
    for file in (folder / "paper").rglob("config.json"):
        edit(file, protocol="default")
    for seed, drop_factor in ((0, 0.05), (1, 0.05), (1, 0.1)):
        run = write_run(folder, "amber", seed, name=f"a2c-{seed}-{drop_factor}")
        config = {"env_id": "Pendulum-v1", "setup": "a2c", "seed": seed, "num_batches": 4}
        (run / "config.json").write_text(json.dumps(config | {"drop_factor": drop_factor}))
    run = write_run(folder, "ppo", name="own")
    (run / "config.json").write_text('{"net": {"width": 8}}')  # a recipe without a command line
    study = read_study([folder])
    assert list(study.versions) == ["default"]
    names = ["ppo", "amber", "a2c_drop0.05", "a2c_drop0.1", "unnamed"]
    assert list(study.setups) == names
    assert study.runs.loc[study.runs["setup"] == "unnamed", "task"].tolist() == ["unnamed"]


def test_another_recipe_may_not_take_the_name_of_a_setup(folder: Path) -> None:
    run = write_run(folder, "ppo", name="own")
    (run / "config.json").write_text('{"env_id": "Pendulum-v1", "setup": "ppo"}')
    with pytest.raises(RunError, match="setup='ppo'"):
        read_study([folder])


def test_mixed_versions_are_refused_and_missing_ones_are_not(folder: Path) -> None:
    file = folder / "paper/Hopper-v5/ppo-seed1/versions.json"
    edit(file, box2d="2.3")
    assert read_study([folder]).versions["paper"]["box2d"] == "2.3"
    edit(file, torch="2.14.0")
    with pytest.raises(RunError, match="torch"):
        read_study([folder])


@pytest.mark.parametrize("option", ["progress", "compiled", "num_threads"])
def test_options_without_effect_may_differ(folder: Path, option: str) -> None:
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


def test_a_comparison_takes_the_tasks_that_all_setups_have(folder: Path) -> None:
    write_run(folder, "ppo", 2, level=9.0)
    write_run(folder, "ppo", 0, task="Swimmer-v5")
    selection = read_study([folder]).select("paper", ["ppo", "amber"])
    assert selection is not None
    assert selection.tasks == ("Hopper-v5", "Pendulum-v1")
    assert selection.scores("ppo", "final")["Pendulum-v1"].tolist() == [1, 2, 9]
    assert selection.scores("amber", "speed")["Pendulum-v1"].tolist() == [3, 4]
    assert (len(selection.logged["ppo"]), len(selection.logged["amber"])) == (5, 4)
    assert selection.left_out == ("tasks without amber: Swimmer-v5",)


def test_options_in_a_setups_name_are_not_settings_of_the_study(tmp_path: Path) -> None:
    write_run(tmp_path / "study")
    write_run(tmp_path / "study", name="larger", frames_per_batch=4096)
    study = read_study([tmp_path / "study"])
    assert list(study.setups) == ["ppo", "ppo_n4096"]
    assert study.values("paper", "frames_per_batch") == [2048, 4096]
