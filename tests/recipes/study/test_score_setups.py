"""The rule that chooses the default setup, by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from score_setups import main, relative_scores
from study.read import read_study

from tests.recipes.conftest import RECIPES
from tests.recipes.study.runs import write_study


def runs(*rows: tuple[str, str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["task", "setup", "seed", "speed_score"])


def test_scores_are_relative_to_random_actions_and_to_ppo() -> None:
    r = 17.3992  # random actions on Hopper-v5
    some = runs(
        ("Hopper-v5", "ppo", 100, r + 900),
        ("Hopper-v5", "ppo", 101, r + 1100),
        ("Hopper-v5", "amber", 100, r + 1000),
        ("Hopper-v5", "amber", 101, r + 2000),
        ("Swimmer-v5", "ppo", 100, 0.847013 + 50),
        ("Swimmer-v5", "amber", 100, 0.847013 + 40),
        ("Hopper-v5", "gipo", 100, r + 5000),
    )
    found = relative_scores(some)
    assert list(found.index) == ["amber", "ppo", "gipo"]
    assert found.loc["amber", "Hopper-v5"] == pytest.approx(1.5)
    assert found.loc["amber", "score"] == pytest.approx((1.5 + 0.8) / 2)
    p = pd.Series({"Hopper-v5": r + 500, "Swimmer-v5": 0.847013 + 80})
    assert relative_scores(some, p).loc["amber"].tolist() == pytest.approx([3.0, 0.5, 1.75])
    assert found.loc["gipo"].isna().all()  # it lacks a seed on one task and all on the other


def test_each_seed_needs_its_run_of_ppo() -> None:
    rows = runs(("Hopper-v5", "amber", 100, 1.0), ("Hopper-v5", "ppo", 101, 1.0))
    with pytest.raises(ValueError, match="runs of ppo are missing"):
        relative_scores(rows)


def test_what_is_not_in_the_table_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, {("Hopper-v5", "ppo"): [1.0, 2.0], ("Hopper-v5", "amber"): [3.0]})
    main(tmp_path)
    out, err = capsys.readouterr()
    assert "`ppo`" in out
    assert "amber" not in out
    assert "amber has seeds [0], but not all on any task" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": (0, 7)}, r"seeds=\[7\]: no run has them"),
        ({"tasks": ("Hoper-v5",)}, r"tasks=\['Hoper-v5'\]: no run has them"),
        ({"tasks": ("Own-v0",)}, r"tasks=\['Own-v0'\]: the return of random actions"),
        ({"ppo": RECIPES / "study/data/references.csv"}, "name a report's runs.csv"),
    ],
)
def test_a_wrong_choice_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    write_study(tmp_path, {("Hopper-v5", "ppo"): [1.0], ("Own-v0", "ppo"): [1.0]})
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        main(tmp_path, **options)


def test_the_published_runs_give_the_tables_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = RECIPES.parent / "docs"
    folder = docs / "data" / "default_search"
    read = read_study([folder])
    monkeypatch.setattr("score_setups.read_study", lambda paths: read)
    for seeds in ((100, 101), (100,), (102, 103, 104)):
        main(folder, seeds, ppo=docs / "tables" / "runs.csv")
        assert capsys.readouterr().out in (docs / "default_search.md").read_text(encoding="utf-8")
