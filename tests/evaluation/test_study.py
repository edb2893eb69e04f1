"""Tidy tables of many runs, and refusals of what cannot stand in one table."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from amber_trl.evaluation import RunError, Study, UnfinishedRunError, read_study
from amber_trl.runs import final_score, speed_score
from tests.evaluation.runs import BATCH, FRAMES, LENGTH, VERSIONS, edit, write_run, write_study

TASKS = ("Pendulum-v1", "Hopper-v5")
LEVELS = {
    ("Pendulum-v1", "ppo"): [1.0, 2.0],
    ("Pendulum-v1", "amber"): [3.0, 4.0],
    ("Hopper-v5", "ppo"): [10.0, 20.0],
    ("Hopper-v5", "amber"): [30.0, 40.0],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_study(tmp_path, LEVELS)


def test_tables_are_tidy(folder: Path) -> None:
    study = read_study([folder])
    labels = ["protocol", "task", "setup", "seed"]
    for name in ("runs", "curves", "episodes", "iterations", "batches"):
        assert list(getattr(study, name))[:4] == labels
    iterations = FRAMES // BATCH
    assert len(study.runs) == 8
    assert len(study.episodes) == 8 * FRAMES // LENGTH
    assert len(study.curves) == len(study.iterations) == 8 * iterations
    # ppo: one batch each; amber: 1 to 8, then 8.
    assert len(study.batches) == 4 * iterations + 4 * (36 + 2 * 8)
    assert list(study.setups) == ["ppo", "amber"]
    assert study.settings["paper"]["num_envs"] == 1
    assert "importance_ratio_0" not in study.iterations
    levels = study.runs.set_index(["task", "setup", "seed"])["final_score"]
    assert levels["Hopper-v5", "amber", 1] == 40


def test_each_batch_keeps_its_age(folder: Path) -> None:
    batches = read_study([folder]).batches
    assert set(batches.query("setup == 'amber'")["age"]) == set(range(8))
    due = batches["age"] / np.where(batches["age"] < 3, 1000, 10)
    assert (batches["importance_ratio"] - 1 - due).abs().max() < 1e-12


def test_a_selection_gives_scores_by_task(folder: Path) -> None:
    selection = read_study([folder]).select("paper", ["ppo", "amber"])
    assert selection is not None
    assert selection.tasks == ("Hopper-v5", "Pendulum-v1")
    assert selection.scores("amber", "speed")["Pendulum-v1"].tolist() == [3, 4]


def test_protocols_stay_apart(folder: Path) -> None:
    write_run(folder, "ppo", 0, protocol="default", level=7.0)
    study = read_study([folder])
    assert set(study.settings) == {"paper", "default"}
    selection = study.select("default", ["ppo"])
    assert selection is not None
    assert selection.scores("ppo", "final")["Pendulum-v1"].tolist() == [7]
    assert study.select("default", ["amber"]) is None


def test_mixed_versions_are_refused(folder: Path) -> None:
    run = folder / "paper/Hopper-v5/ppo-seed1"
    edit(run / "versions.json", torch="2.14.0")
    edit(run / "summary.json", versions=VERSIONS | {"torch": "2.14.0"})
    with pytest.raises(RunError, match=r"mixed versions: torch is 2.1\d.0 in .* and 2.1\d.0 in"):
        read_study([folder])


def test_a_version_that_a_run_did_not_record_is_not_compared(folder: Path) -> None:
    run = folder / "paper/Hopper-v5/ppo-seed1"
    edit(run / "versions.json", box2d="2.3")
    edit(run / "summary.json", versions=VERSIONS | {"box2d": "2.3"})
    assert read_study([folder]).versions["paper"]["box2d"] == "2.3"


@pytest.mark.parametrize("changed", [{"num_envs": 2}, {"gamma": 0.9}, {"minibatch_size": 32}])
def test_a_mixed_protocol_is_refused(folder: Path, changed: dict[str, Any]) -> None:
    write_run(folder, "ppo", 2, **changed)
    with pytest.raises(RunError, match=f"mixed settings: {next(iter(changed))} is .*ppo-seed"):
        read_study([folder])


@pytest.mark.parametrize("option", ["progress", "compiled", "num_threads"])
def test_what_has_no_effect_may_differ(folder: Path, option: str) -> None:
    edit(folder / "paper/Hopper-v5/ppo-seed1/config.json", **{option: 3})
    read_study([folder])


def test_the_same_run_twice_is_refused(folder: Path) -> None:
    write_run(folder, "ppo", 1, name="copy")
    with pytest.raises(RunError, match=r"(copy.*ppo-seed1|ppo-seed1.*copy) are both"):
        read_study([folder])


def test_a_run_copied_under_another_seed_is_refused(folder: Path) -> None:
    task = folder / "paper/Hopper-v5"
    shutil.copytree(task / "ppo-seed1", task / "ppo-seed2")
    edit(task / "ppo-seed2/config.json", seed=2)
    for partial in (False, True):
        with pytest.raises(RunError, match="have the same seconds, so one is a copy") as caught:
            read_study([folder], partial=partial)
        assert f"{task / 'ppo-seed1'} and {task / 'ppo-seed2'} " in str(caught.value)


def test_a_rounded_copy_under_another_seed_is_refused(folder: Path) -> None:
    """As an archived run beside the one that it was made from; its iterations have six digits."""
    task = folder / "paper/Hopper-v5"
    shutil.copytree(task / "ppo-seed1", task / "ppo-seed2")
    edit(task / "ppo-seed2/config.json", seed=2)
    table = pd.read_csv(task / "ppo-seed2/iterations.csv").assign(mean_abs_deviation=0.0500001)
    table.to_csv(task / "ppo-seed2/iterations.csv", index=False)
    with pytest.raises(RunError, match="have the same seconds, so one is a copy"):
        read_study([folder])


def test_a_run_copied_under_another_task_is_refused(folder: Path) -> None:
    task = folder / "paper/Hopper-v5"
    shutil.copytree(task, folder / "paper/Walker2d-v4")
    for run in (folder / "paper/Walker2d-v4").iterdir():
        edit(run / "config.json", env_id="Walker2d-v4")
    with pytest.raises(RunError, match=r"Hopper-v5/.* and .*Walker2d-v4/.* the same seconds"):
        read_study([folder])


def test_the_iterations_of_another_task_are_refused_whatever_the_time(folder: Path) -> None:
    """The two runs' own times differ, as where one table alone was copied."""
    task = folder / "paper/Hopper-v5"
    shutil.copytree(task / "ppo-seed0", folder / "paper/Walker2d-v4/ppo-seed0")
    vary(folder / "paper/Walker2d-v4/ppo-seed0", seconds=77.0)
    edit(folder / "paper/Walker2d-v4/ppo-seed0/config.json", env_id="Walker2d-v4")
    with pytest.raises(RunError, match="have the same iterations, so one is a copy"):
        read_study([folder], partial=True)


def test_single_episodes_alike_are_no_copies(folder: Path) -> None:
    """As in a task whose first episode ends at the time limit, with a reward of -1 a frame."""
    for seed in (0, 1):
        run = folder / f"paper/Hopper-v5/ppo-seed{seed}"
        table = pd.read_csv(run / "episodes.csv").iloc[-1:].assign(**{"return": -200.0})
        table["length"] = table["frame"]
        table.to_csv(run / "episodes.csv", index=False)
        columns = table["frame"], table["return"]
        scores = {"final_score": final_score(*columns)}
        scores["speed_score"] = speed_score(*columns, BATCH, FRAMES)
        edit(run / "summary.json", **scores, episodes=1)
    assert len(read_study([folder]).runs) == 8


def vary(run: Path, **summary: Any) -> None:
    """Gives each episode a return of its own, the same in every run."""
    table = pd.read_csv(run / "episodes.csv").assign(**{"return": lambda t: t["frame"] / 7.0})
    table.to_csv(run / "episodes.csv", index=False)
    columns = table["frame"], table["return"]
    scores = {"final_score": final_score(*columns)}
    scores["speed_score"] = speed_score(*columns, BATCH, FRAMES)
    edit(run / "summary.json", **scores, **summary)


def test_episodes_of_another_seed_are_refused(folder: Path) -> None:
    for name in ("ppo-seed0", "amber-seed1"):
        vary(folder / "paper/Hopper-v5" / name)
    with pytest.raises(RunError, match="have the same episodes, so one is a copy"):
        read_study([folder])


def test_setups_that_act_alike_are_no_copies_unless_their_time_is_the_same(folder: Path) -> None:
    """As amber does with a drop factor that drops nothing, and mber."""
    for name in ("ppo-seed0", "amber-seed0"):
        vary(folder / "paper/Hopper-v5" / name)
    assert len(read_study([folder]).runs) == 8
    for name in ("ppo-seed0", "amber-seed0"):
        edit(folder / "paper/Hopper-v5" / name / "summary.json", seconds=1.5)
    with pytest.raises(RunError, match="have the same seconds, so one is a copy"):
        read_study([folder])


def test_two_versions_of_a_task_may_be_alike(folder: Path) -> None:
    task = folder / "paper/Hopper-v5/ppo-seed0"
    shutil.copytree(task, folder / "paper/Hopper-v4/ppo-seed0")
    edit(folder / "paper/Hopper-v4/ppo-seed0/config.json", env_id="Hopper-v4")
    edit(folder / "paper/Hopper-v4/ppo-seed0/summary.json", seconds=1.5)
    assert len(read_study([folder]).runs) == 9


def test_seeds_that_reach_the_same_return_throughout_are_no_copies(folder: Path) -> None:
    write_run(folder, "ppo", 2, task="Hopper-v5", level=20.0)
    assert len(read_study([folder]).runs) == 9


def test_an_unfinished_run_is_refused_or_told(folder: Path) -> None:
    run = folder / "paper/Hopper-v5/ppo-seed1"
    (run / "summary.json").unlink()
    with pytest.raises(UnfinishedRunError, match=r"ppo-seed1: no summary\.json.*\(.*--partial\)"):
        read_study([folder])
    study = read_study([folder], partial=True)
    assert len(study.runs) == 7
    assert [str(run) in words for words in study.left_out] == [True]


def test_a_damaged_run_is_refused_also_in_part(folder: Path) -> None:
    (folder / "paper/Hopper-v5/ppo-seed1/episodes.csv").unlink()
    with pytest.raises(RunError, match=r"episodes\.csv"):
        read_study([folder], partial=True)


def test_a_stray_file_is_refused_also_in_part(folder: Path) -> None:
    stray = folder / "paper/Hopper-v5/summary.json"
    stray.write_text("{}")
    for partial in (False, True):
        with pytest.raises(RunError, match=f"{stray}: a run's files, in a folder"):
            read_study([folder], partial=partial)


def test_unequal_seeds_are_refused_or_left_out(folder: Path) -> None:
    write_run(folder, "ppo", 2, level=9.0)
    with pytest.raises(RunError, match=r"unequal seeds: amber on Hopper-v5 has no seed \[2\]"):
        read_study([folder]).select("paper", ["ppo", "amber"])
    selection = read_study([folder], partial=True).select("paper", ["ppo", "amber"])
    assert selection is not None
    assert selection.scores("ppo", "final")["Pendulum-v1"].tolist() == [1, 2]
    assert selection.left_out == ("ppo on Pendulum-v1, seed 2",)


def test_a_missing_task_is_refused_or_left_out(folder: Path) -> None:
    for seed in (0, 1):
        write_run(folder, "ppo", seed, task="Swimmer-v5", level=seed)
    study = read_study([folder])
    with pytest.raises(RunError, match="no run of amber on Swimmer-v5"):
        study.select("paper", ["ppo", "amber"], all_tasks=True)
    shared = study.select("paper", ["ppo", "amber"])
    assert shared is not None
    assert shared.tasks == ("Hopper-v5", "Pendulum-v1")
    assert shared.left_out == ("tasks without amber: Swimmer-v5",)
    partial = read_study([folder], partial=True).select("paper", ["ppo", "amber"], all_tasks=True)
    assert partial is not None
    assert partial.left_out == ("tasks without amber: Swimmer-v5",)


def selected(study: Study) -> tuple[str, ...]:
    selection = study.select("paper", ["ppo", "amber"])
    return () if selection is None else selection.tasks
