"""The commands, on real runs: the page says what the runs say, and bad input is one clear line."""

import errno
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest

from amber_trl.__main__ import main
from amber_trl.evaluation import plot_runs, write_report
from amber_trl.evaluation import report as report_module
from tests.evaluation.runs import edit, write_run, write_study

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "data" / "study"
PENDULUM = PUBLISHED / "paper" / "Pendulum-v1"


def report(study: Path, out: Path, *options: str) -> str:
    assert main(["report", str(study), "--out", str(out), *options]) == 0
    return (out / "results.md").read_text()


def test_the_page_of_real_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study").mkdir()
    for run in sorted(PENDULUM.glob("*-seed[012]")):
        shutil.copytree(run, tmp_path / "study" / run.name)
    (tmp_path / "study" / "notes.md").write_text("Three seeds say little.\n")
    page = report(tmp_path / "study", tmp_path / "out")
    assert capsys.readouterr().out == f"{tmp_path}/out/results.md\n"
    assert "Three seeds say little." in page
    assert "1 environment, time limits terminal, 1,000,000 frames" in page
    assert "torch 2.13.0+cpu" in page
    assert "| Pendulum-v1 | 0-2 | 0-2 |" in page
    # What docs said of these runs before there was a report.
    assert "| Pendulum-v1 | ppo | 3 | -156.8 [-166.0, -150.5] | -683 ± 494 |" in page
    assert "| Pendulum-v1 | amber | 3 | -154.8 [" in page
    assert "Fewer than 5 seeds allow no conclusion" in page
    assert "not the paper's experiments" not in page
    assert "There is no score that the paper has and of which there are 5 seeds" in page
    assert "| Pendulum-v1 | amber | 7." in page  # batches in use, of eight
    scores = pd.read_csv(tmp_path / "out" / "tables" / "paper-speed-scores.csv")
    amber = scores[scores["setup"] == "amber"].iloc[0]
    assert amber["mean"] == pytest.approx(-281.4, abs=0.05)
    links = {line.partition("](")[2].rstrip(")") for line in page.splitlines() if line[:2] == "!["}
    assert {f"figures/{file.name}" for file in (tmp_path / "out" / "figures").iterdir()} == links
    assert len(links) >= 5
    runs = pd.read_csv(tmp_path / "out" / "tables" / "runs.csv")
    assert list(runs["path"]) == sorted(runs["path"])
    assert not any(Path(path).is_absolute() for path in runs["path"])


def test_the_published_tables_are_of_the_published_runs() -> None:
    """After runs are added: ``amber-trl report docs/data/study --out docs``."""
    table = pd.read_csv(ROOT / "docs" / "tables" / "runs.csv").set_index("path")
    files = sorted(PUBLISHED.rglob("summary.json"))
    assert len(table) == len(files) >= 6
    for file in files:
        summary = json.loads(file.read_text())
        row = table.loc[file.parent.relative_to(PUBLISHED).as_posix()]
        for score in ("final_score", "speed_score"):
            assert row[score] == pytest.approx(summary[score], rel=1e-12)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    study = write_study(
        tmp_path / "study", {("Hopper-v5", s): [1.0, 2.0, 4.0] for s in ("ppo", "amber")}
    )
    write_report(study, tmp_path / "first")
    write_report(study, tmp_path / "second")
    files = [path for path in (tmp_path / "first").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        other = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == other.read_bytes(), path


def test_one_run_can_be_plotted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "amber")
    files = plot_runs([run], tmp_path / "figures")
    assert files[0] == tmp_path / "figures" / "paper-learning-curves.png"
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)


def test_every_setup_that_is_plotted_has_its_curves(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, "amber", name=str(rate), learning_rate=rate) for rate in (3e-4, 1e-3)
    ]
    files = plot_runs(runs, tmp_path / "figures")
    assert tmp_path / "figures" / "paper-learning-curves-by-setup.png" in files


def test_a_partial_report_lists_what_it_left_out(tmp_path: Path) -> None:
    levels = {("Hopper-v5", setup): [1.0, 2.0, 3.0] for setup in ("ppo", "amber")}
    study = write_study(tmp_path / "study", levels)
    edit(study / "paper/Hopper-v5/amber-seed1/summary.json", interrupted=True)
    page = report(study, tmp_path / "out", "--partial")
    assert "## Left out" in page
    assert "amber-seed1: interrupted after 1000 frames" in page
    assert "Left out: ppo on Hopper-v5, seed 1." in page


def test_setups_without_a_common_task_are_not_compared_and_it_says_so(tmp_path: Path) -> None:
    levels = {("Hopper-v5", "ppo"): [1.0, 2.0], ("Swimmer-v5", "amber"): [3.0, 4.0]}
    page = report(write_study(tmp_path / "study", levels), tmp_path / "out", "--partial")
    assert "No comparison: there is no task and seed that all of ppo, amber have." in page
    for row in ("| Hopper-v5 | ppo | 2 | 1.50 [", "| Swimmer-v5 | amber | 2 | 3.50 ["):
        assert row in page


def test_other_settings_than_the_papers_are_said_and_not_held_to_its_scores(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0, 3.0, 4.0, 5.0]})
    for run in (study / "paper" / "Hopper-v5").iterdir():
        edit(run / "config.json", gamma=0.5, epochs=10)
    page = report(study, tmp_path / "out")
    assert "not the paper's experiments: total_frames 1000 (the paper: 1000000)" in page
    assert "gamma 0.5 (the paper: 0.99)" in page
    assert "epochs" not in page
    assert "Agreement with the paper" not in page


def test_notes_in_another_encoding_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]})
    (study / "notes.md").write_bytes("Größe".encode("latin-1"))
    assert main(["report", str(study), "--out", str(tmp_path / "out")]) == 1
    assert f"error: {study}/notes.md is not UTF-8" in capsys.readouterr().err


def test_nothing_changes_where_a_report_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    levels = {("Hopper-v5", setup): [1.0, 2.0] for setup in ("ppo", "amber")}
    study, out = write_study(tmp_path / "study", levels), tmp_path / "out"
    report(study, out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    for run in (study / "paper/Hopper-v5").glob("ppo-*"):
        shutil.rmtree(run)
    written = report_module._write

    def fails_last(text: str, path: Path) -> Path:
        if path.name == "runs.csv":
            raise ZeroDivisionError(f"after {sorted(path.parents[1].rglob('*.png'))}")
        return written(text, path)

    with monkeypatch.context() as patch:
        patch.setattr(report_module, "_write", fails_last)
        with pytest.raises(ZeroDivisionError, match="active-batches"):
            report(study, out)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    page = report(study, out)
    assert "`amber` against `ppo`" not in page
    old = out / "tables" / "paper-amber-over-ppo-final.csv"
    assert f"{old} is not of this report: remove it" in caplog.text
    assert f"{out / 'tables' / 'runs.csv'} is not" not in caplog.text
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("made", ["tables", "results.md/"])
def test_what_is_in_the_way_is_named_before_anything_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: str
) -> None:
    study, out = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]}), tmp_path / "out"
    out.mkdir()
    (out / made).mkdir() if made.endswith("/") else (out / made).touch()
    assert main(["report", str(study), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert f"error: {out} cannot be written (" in error
    assert f"{out / made}): see to that, or name another folder, out=FOLDER" in error
    assert not [path for path in out.rglob("*") if path.is_file() and path.name != made]


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_folder_that_cannot_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    study, out = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]}), tmp_path / "file"
    out.touch()
    assert main([command, str(study), "--out", str(out)]) == 1
    assert f"error: {out} cannot be written (" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["results.md", "final-scores.png", "runs.csv"])
def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: str,
) -> None:
    """As on a full disk, where the error itself names no file."""
    study, out = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]}), tmp_path / "out"
    opened = io.open

    def full(file: object, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "w" in mode and str(file).endswith(end):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(file, mode, *rest, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", full)
    monkeypatch.setattr("io.open", full)
    assert main(["report", str(study), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "cannot be written (No space left on device: " in error
    assert f"{end}): see to that" in error
    assert not list(out.iterdir())


def test_ctrl_c_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report_module, "_save", interrupted)
    assert main(["report", str(study), "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "out").iterdir())


def test_figures_are_the_same_whatever_the_readers_settings(tmp_path: Path) -> None:
    run = write_run(tmp_path, "amber")
    (own,) = (file for file in plot_runs([run], tmp_path / "own") if "curves" in file.name)
    with matplotlib.rc_context({"font.size": 30, "savefig.facecolor": "black"}):
        (other,) = (file for file in plot_runs([run], tmp_path / "other") if "curves" in file.name)
    assert own.read_bytes() == other.read_bytes()


def test_a_plot_leaves_no_task_out_unsaid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    levels = {("Hopper-v5", "ppo"): [1.0], ("Hopper-v5", "amber"): [2.0]}
    study = write_study(tmp_path / "study", levels | {("Swimmer-v5", "amber"): [3.0]})
    out = tmp_path / "figures"
    assert main(["plot", str(study), "--out", str(out)]) == 1
    assert "error: paper: no run of ppo on Swimmer-v5: run it, or" in capsys.readouterr().err
    assert main(["plot", str(study), "--out", str(out), "--partial"]) == 0
    assert (out / "paper-learning-curves.png").exists()
    assert "left out of the figures: tasks without ppo: Swimmer-v5" in caplog.text
    shutil.rmtree(study / "paper/Hopper-v5/amber-seed0")
    assert main(["plot", str(study), "--out", str(out), "--partial"]) == 0
    assert "no figure of ['ppo', 'amber']: they have no task and seed in common" in caplog.text
    (study / "paper/Swimmer-v5/amber-seed0/summary.json").unlink()
    assert main(["plot", str(study), "--out", str(out), "--partial"]) == 0
    assert f"left out: {study}/paper/Swimmer-v5/amber-seed0: no summary.json" in caplog.text


def test_runs_that_were_resumed_otherwise_than_to_the_bit_are_listed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0, 2.0]})
    edit(study / "paper/Hopper-v5/ppo-seed1/summary.json", exactness="approximate")
    page = report(study, tmp_path / "out")
    assert "Resumed, or made, otherwise than to the bit: ppo on Hopper-v5, seed 1." in page
    assert "Of 1 runs, made before this was recorded, it is not known whether" in page
    table = pd.read_csv(tmp_path / "out" / "tables" / "runs.csv")
    assert table["exactness"].tolist() == ["not recorded", "approximate"]


def test_plot_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--out", str(tmp_path)]) == 1
    assert "error: no run is given: name run directories" in capsys.readouterr().err


def test_a_page_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {("Hopper-v5", "ppo"): [1.0]})
    command = [sys.executable, "-m", "amber_trl", "report", str(study), "--out", str(tmp_path)]
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert "2185 ± 371" in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_several_setups_and_protocols_have_their_sections(tmp_path: Path) -> None:
    levels = {
        ("Hopper-v5", setup): [level, level + 1]
        for setup, level in (("ppo", 1.0), ("amber", 2.0), ("mber", 3.0))
    }
    study = write_study(tmp_path / "study", levels)
    for seed in (0, 1):
        write_run(study, "ppo", seed, protocol="default", level=seed, task="Hopper-v5")
    page = report(study, tmp_path / "out")
    for heading in (
        "## Protocol `paper`",
        "## Protocol `default`",
        "### `amber` against `ppo`",
        "### `mber_l2` against `ppo`",
        "### Average normalised score",
    ):
        assert heading in page
    assert page.index("## Protocol `paper`") < page.index("## Protocol `default`")


FAULTS = {
    "nothing": "none of",
    "unfinished": "no summary.json",
    "unequal": "unequal seeds: amber on Hopper-v5 has no seed [2]",
    "nowhere": "is not there",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["report", "plot"])
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, command: str
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    if fault in ("unfinished", "unequal"):
        write_study(study, {("Hopper-v5", s): [1.0, 2.0] for s in ("ppo", "amber")})
    if fault == "unequal":
        write_run(study, "ppo", 2, task="Hopper-v5", level=3.0)
    if fault == "unfinished":
        (study / "paper/Hopper-v5/ppo-seed0/summary.json").unlink()
    if fault == "nowhere":
        study = study / "nowhere"
    assert main([command, str(study), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert FAULTS[fault] in error
    assert not (tmp_path / "out" / "results.md").exists()


@pytest.mark.parametrize("command", [[], ["plot"], ["report"]])
def test_help_everywhere(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: amber-trl" in capsys.readouterr().out


def test_the_command_runs_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["amber-trl", "report", "nowhere", "--out", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "amber_trl.__main__")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("amber_trl", run_name="__main__")
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error == "error: nowhere is not there: name a run directory, or a folder of some\n"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import amber_trl.evaluation

    monkeypatch.setitem(sys.modules, "pandas", None)
    for module in ("runs", "study", "report"):
        monkeypatch.delitem(sys.modules, f"amber_trl.evaluation.{module}", raising=False)
    with pytest.raises(
        ImportError, match=r'pandas, which is not installed: pip install "amber_trl\[study\]"'
    ):
        amber_trl.evaluation.read_run  # noqa: B018
