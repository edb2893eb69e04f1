"""The page: what it says about given runs, and that the published runs give the published page."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import report_study
from matplotlib.figure import Figure
from report_study import write_report

from tests.recipes.study.runs import edit, write_run, write_study

DOCS = Path(__file__).parents[3] / "docs"
RECIPE = Path(report_study.__file__)


def report(study: Path, out: Path) -> str:
    return write_report(study, out).read_text(encoding="utf-8")


@pytest.mark.skipif(not (DOCS / "data").exists(), reason="an sdist has no published runs")
def test_the_published_runs_give_the_published_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change: ``python recipes/report_study.py docs/data/study --out docs``."""

    def named_only(figure: Figure, file: Path) -> Path:  # matplotlib versions differ in bytes
        drawn.add(file.name)
        return file

    drawn: set[str] = set()
    monkeypatch.setattr(report_study, "save", named_only)
    write_report(DOCS / "data" / "study", tmp_path)
    assert drawn == {file.name for file in (DOCS / "figures").glob("*-*.png")}
    tables = {file.name for file in (DOCS / "tables").iterdir()}
    assert {file.name for file in (tmp_path / "tables").iterdir()} == tables
    for name in ["results.md", *(f"tables/{name}" for name in tables)]:
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes(), name


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    levels = {("Hopper-v5", setup): [1.0, 2.0, 4.0] for setup in ("ppo", "amber")}
    study = write_study(tmp_path / "study", levels)
    # As a command, in any locale.
    command: list[str | Path] = [sys.executable, RECIPE, study, "--out", tmp_path / "first"]
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    write_report(study, tmp_path / "second")
    files = [path for path in (tmp_path / "first").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        other = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == other.read_bytes(), path


def test_the_page_opens_with_the_notes_and_a_figure(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0]})
    (study / "notes.md").write_text("Größer.\n\nAnd more.\n", encoding="utf-8")
    title, opening, figure, caption, more, *_ = report(study, tmp_path / "out").split("\n\n")
    assert (title, opening, more) == ("# Results", "Größer.", "And more.")
    assert "(figures/paper-learning-curves.png)" in figure
    assert caption.startswith("*Return over training")


def test_a_sweep_and_another_recipe_are_on_the_page(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0]})
    for seed, level in enumerate((3.0, 4.0)):
        write_run(study, "ppo", seed, level=level, task="Hopper-v5", name=f"g{seed}", gamma=0.9)
        run = write_run(study, "amber", seed, level=5.0, task="Swimmer-v5", name=f"own{seed}")
        own = {"setup": "own/1", "protocol": "paper", "env_id": "Swimmer-v5", "seed": seed}
        (run / "config.json").write_text(json.dumps(own | {"total_frames": 10, "drop_factor": 1}))
    page = report(study, tmp_path / "out")
    assert "1 environment, time limits terminal, 10 or 20,480 frames in batches of 2,048." in page
    assert "| ppo_gamma=0.9 | ppo | Hopper-v5 | 2 | 2.00 [" in page
    assert "| Hopper-v5 | ppo_gamma=0.9 | 2 | 3.50 [" in page
    assert "| Swimmer-v5 | own/1 | 2 | 5.00 [5.00, 5.00] | - |" in page
    assert "| Swimmer-v5 | own/1 | 2.70 |" in page  # batches in use
    table = pd.read_csv(tmp_path / "out/tables/paper-few-seeds.csv")
    assert table[["setup", "speed"]].to_numpy().tolist() == [["ppo_gamma=0.9", 2.0]]
    assert (tmp_path / "out/figures/paper-learning-curves.png").exists()


def test_few_seeds_allow_no_conclusion(tmp_path: Path) -> None:
    levels = {("Hopper-v5", "ppo"): [1.0, 2.0, 3.0], ("Hopper-v5", "amber"): [4.0, 5.0, 6.0]}
    page = report(write_study(tmp_path / "study", levels), tmp_path / "out")
    assert "| amber | 0-2 | Hopper-v5 |" in page
    # Runs shorter than the paper's do not count.
    assert "The paper's figures and tables" not in page
    assert "| Hopper-v5 | ppo | 3 | 2.00 [1.00, 3.00] | 2185 ± 371 |" in page
    assert "So few seeds allow no conclusion" in page
    assert "| amber | ppo | Hopper-v5 | 3 | 3.00 [" in page
    assert "| Hopper-v5 | amber | 2.70 | 67 % | 100 % | 20,480 |" in page  # batches in use


def test_runs_left_out_are_listed(tmp_path: Path) -> None:
    levels = {("Hopper-v5", setup): [1.0, 2.0, 3.0] for setup in ("ppo", "amber")}
    study = write_study(tmp_path / "study", levels)
    edit(study / "paper/Hopper-v5/amber-seed1/summary.json", interrupted=True)
    page = report(study, tmp_path / "out")
    assert "amber-seed1" in page.partition("## Left out")[2]
    assert "| amber | ppo | Hopper-v5 | 2 | 0.00 [" in page  # of three runs of ppo


def test_setups_without_a_common_task_are_not_compared(tmp_path: Path) -> None:
    levels = {("Hopper-v5", "ppo"): [1.0, 2.0], ("Swimmer-v5", "amber"): [3.0, 4.0]}
    page = report(write_study(tmp_path / "study", levels), tmp_path / "out")
    assert "No comparison: no task is common to all of ppo, amber." in page
    assert "| Swimmer-v5 | amber | 2 | 3.50 [" in page


def test_other_settings_than_the_papers_are_listed_and_not_compared(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0, 3.0, 4.0, 5.0]})
    for run in (study / "paper" / "Hopper-v5").iterdir():
        edit(run / "config.json", gamma=0.5, epochs=10)
    page = report(study, tmp_path / "out")
    assert "total_frames 20480 (the paper: 1000000)" in page
    assert "gamma 0.5 (the paper: 0.99)" in page
    assert "epochs" not in page
    assert "Agreement with the paper" not in page


def test_another_protocol_is_compared_with_the_papers(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0, 3.0]})
    for seed in (1, 2):
        write_run(study, "ppo", seed, level=5.0, task="Hopper-v5", protocol="default", num_envs=8)
    page = report(study, tmp_path / "out")
    assert "| default ppo | paper ppo | Hopper-v5 | 2 | 3.00 [" in page  # all seeds count
    for task, seed in itertools.product(("Hopper-v5", "Swimmer-v5"), range(5)):
        for protocol, num_envs in (("paper", 1), ("default", 8)):
            options: Any = {"protocol": protocol, "num_envs": num_envs}
            options["level"] = float(seed + (num_envs > 1))
            write_run(study, "amber", seed, task=task, name=f"{protocol}{task}{seed}", **options)
    page = report(study, tmp_path / "out")
    _, _, compared = page.partition("### `default amber` against `paper amber`")
    assert "| task | difference | P |\n|---|---|---|\n| Hopper-v5 | 1.00 [" in compared
    assert "a run of `default amber` has the higher final score with probability 0.68" in compared


def test_runs_that_were_not_resumed_bit_for_bit_are_listed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0]})
    edit(study / "paper/Hopper-v5/ppo-seed1/summary.json", exactness="approximate")
    page = report(study, tmp_path / "out")
    assert "not bit for bit: ppo on Hopper-v5, seed 1." in page
    table = pd.read_csv(tmp_path / "out" / "tables" / "runs.csv")
    assert table["exactness"].tolist() == ["not recorded", "approximate"]
    assert table["path"].tolist() == [f"paper/Hopper-v5/ppo-seed{seed}" for seed in (0, 1)]


def test_files_of_an_earlier_report_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]})
    (tmp_path / "tables").mkdir()
    (old := tmp_path / "tables" / "old.csv").touch()
    report(study, tmp_path)
    assert capsys.readouterr().err.count("\n") == 1
    report(study, tmp_path)
    assert str(old) in capsys.readouterr().err


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for study in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SystemExit, match=f"error: .*{study}"):
            report_study.main(study, tmp_path / "out")
