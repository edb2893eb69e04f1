"""Tables hold what the statistics say of the runs, and the paper's numbers where it has them."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from study.markdown import markdown
from study.read import Selection, Study, read_study
from study.references import reference_returns
from study.results import conclusion
from study.setups import by_minibatch
from study.statistics import bootstrap, interquartile_mean, mean_score
from study.tables import (
    aggregate_table,
    average_normalized_score_table,
    improvement_table,
    minibatch_ratio_table,
    reuse_table,
    score_table,
    tasks_apart,
)

from tests.recipes.study.runs import FRAMES, write_run, write_study

LEVELS = {
    ("Hopper-v5", "ppo"): [2000.0, 2100.0, 2300.0],
    ("Hopper-v5", "amber"): [2200.0, 2400.0, 2900.0],
    ("Swimmer-v5", "ppo"): [50.0, 60.0, 100.0],
    ("Swimmer-v5", "amber"): [40.0, 110.0, 120.0],
    ("CartPole-v1", "ppo"): [100.0, 200.0, 300.0],
    ("CartPole-v1", "amber"): [100.0, 200.0, 300.0],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return read_study([write_study(tmp_path_factory.mktemp("study"), LEVELS)])


@pytest.fixture(scope="module")
def selection(study: Study) -> Selection:
    found = study.select("paper", ["ppo", "amber"])
    assert found is not None
    return found


def cell(table: pd.DataFrame, **where: str) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    (row,) = table.to_dict("records")
    return pd.Series(row)


def test_scores_beside_the_papers(selection: Selection, study: Study) -> None:
    table = score_table(selection, dict(study.setups), "final")
    assert len(table) == 6
    row = cell(table, task="Hopper-v5", setup="amber")
    assert (row["seeds"], row["mean"], row["worst"], row["best"]) == (3, 2500, 2200, 2900)
    expected = bootstrap(mean_score, {"Hopper-v5": LEVELS["Hopper-v5", "amber"]})
    assert (row["low"], row["high"]) == (expected.low, expected.high)
    assert (row["paper_mean"], row["paper_std"]) == (2213, 295)
    assert row["difference"] == 2500 - 2213
    assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_a_task_that_the_paper_lacks_has_no_number_of_it(
    selection: Selection, study: Study
) -> None:
    row = cell(score_table(selection, dict(study.setups), "speed"), task="CartPole-v1", setup="ppo")
    assert row["mean"] == 200
    assert math.isnan(row["paper_mean"])
    assert math.isnan(row["difference"])


def test_improvement_by_task_and_over_all(selection: Selection, study: Study) -> None:
    table = improvement_table(selection, dict(study.setups), "amber", "ppo", "final")
    # Pairs above, of nine: Hopper 2+3+3 = 8; Swimmer 0+3+3 = 6; CartPole a half on each tie: 4.5.
    expected = {"Hopper-v5": 8 / 9, "Swimmer-v5": 6 / 9, "CartPole-v1": 0.5}
    for task, probability in expected.items():
        assert cell(table, task=task)["probability"] == pytest.approx(probability)
    whole = table.iloc[-1]
    assert whole["task"] == "all tasks"
    assert whole["probability"] == pytest.approx(sum(expected.values()) / 3)
    assert math.isnan(whole["paper_probability"])  # the paper lacks one of the tasks
    assert cell(table, task="Swimmer-v5")["difference"] == pytest.approx(90 - 70)
    assert cell(table, task="Swimmer-v5")["paper_difference"] == pytest.approx(102.9 - 68.4)


def test_there_is_no_interval_if_all_runs_of_one_are_above_all_of_the_other(tmp_path: Path) -> None:
    levels = {("Hopper-v5", "ppo"): [1.0, 2, 3, 4, 5], ("Hopper-v5", "amber"): [6.0, 7, 8, 9, 10]}
    study = read_study([write_study(tmp_path, levels)])
    found = study.select("paper", ["ppo", "amber"])
    assert found is not None
    table = improvement_table(found, dict(study.setups), "amber", "ppo", "final")
    (row,) = table.to_dict("records")  # no row of all tasks, as there is only one
    assert row["probability"] == 1
    assert math.isnan(row["probability_low"])
    assert math.isnan(row["probability_high"])
    words = conclusion(table, "amber", "ppo", "final")
    assert "above on Hopper-v5 and below on no task" in words
    both = pd.concat([table, table, table.assign(task="all tasks")], ignore_index=True)
    assert "1.00. No resampling" in conclusion(both, "amber", "ppo", "speed")


def test_how_much_was_used_of_older_batches(study: Study) -> None:
    table = reuse_table(study, "paper")
    assert set(table["setup"]) == {"amber"}
    row = cell(table, task="Hopper-v5")
    # One batch in the first of ten iterations, two in the second, three in the others.
    assert row["seeds"] == 3
    assert row["active_batches"] == pytest.approx((1 + 2 + 8 * 3) / 10)
    assert row["first_third"] == pytest.approx(2 / 3)  # of three iterations
    assert row["rest"] == 1
    assert row["last_frame"] == FRAMES


def test_a_controller_uses_older_batches_too(tmp_path: Path) -> None:
    write_run(tmp_path, "amber", batches_in_use=3, drop_factor=None)
    (setup,) = reuse_table(read_study([tmp_path]), "paper")["setup"]
    assert setup == "amber_use3"


def test_ratios_of_minibatches(tmp_path: Path) -> None:
    for number, task in enumerate(("Hopper-v5", "Swimmer-v5", "Swimmer-v5")):
        for name, change in (("kept", {"scale_minibatch": False}), ("scaled", {})):
            write_run(tmp_path, "mber", number, task=task, name=f"{name}{number}", **change)
    write_run(tmp_path, "ppo", task="Hopper-v5")
    study = read_study([tmp_path])
    groups = by_minibatch(study.setups)
    assert groups == {
        "64 frames": ["ppo", "mber_l2_m64"],
        "64 frames per batch": ["ppo", "mber_l2"],
    }
    selection = study.select("paper", ["mber_l2_m64", "mber_l2"])
    assert selection is not None
    table = minibatch_ratio_table(selection)
    assert table["ratio"].tolist() == pytest.approx([1.05] * 4)
    assert table["seeds"].tolist() == [1, 1, 2, 2]


def test_interquartile_mean_leaves_out_what_has_no_reference(selection: Selection) -> None:
    table = aggregate_table(selection, "final")
    references = reference_returns()
    expected = {}
    for task in ("Hopper-v5", "Swimmer-v5"):
        low, high = references.loc[task, ["random_return", "reference_return"]].astype(float)
        expected[task] = (np.array(LEVELS[task, "amber"]) - low) / (high - low)
    row = cell(table, setup="amber")
    assert row["interquartile_mean"] == pytest.approx(float(interquartile_mean(expected)))
    assert tasks_apart(selection.tasks) == {"CartPole-v1": "it has no reference returns"}


def test_references_are_the_papers_and_measured() -> None:
    table = reference_returns()
    assert len(table) == 12
    assert (table["random_episodes"] >= 100).all()
    assert (table["random_return"] < table["reference_return"]).all()
    assert not table.isna().any(axis=None)
    assert table.loc["HalfCheetah-v5", "reference_return"] == 1910
    assert not table.loc["BipedalWalkerHardcore-v3", "clear"]
    assert table.loc["Hopper-v5", "clear"]


def test_average_normalised_scores_of_two_setups(selection: Selection, study: Study) -> None:
    known = study.runs[study.runs["task"] != "CartPole-v1"]
    two = Selection(("ppo", "amber"), ("Hopper-v5", "Swimmer-v5"), known)
    table = average_normalized_score_table(two, dict(study.setups), "final")
    assert cell(table, setup="amber")["score"] == pytest.approx(1)
    assert cell(table, setup="amber")["paper_score"] == 0.939
    assert cell(table, setup="ppo")["paper_score"] == 0.176


def test_markdown_by_hand() -> None:
    rows = pd.DataFrame({"task": ["a", "b"], "score": [1.25, 2.0]})
    table = markdown(rows, {"task": "task", "P": lambda row: f"{row['score']:.1f}"})
    assert table == "| task | P |\n|---|---|\n| a | 1.2 |\n| b | 2.0 |"
