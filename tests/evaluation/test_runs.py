"""A run is read exactly, and one that is not whole is refused with its name."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from amber_trl.evaluation import RunError, UnfinishedRunError, find_runs, read_run
from tests.evaluation.runs import BATCH, FRAMES, LENGTH, edit, write_run


def test_a_run_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, "amber", 3, level=-0.1))
    assert run.labels == {
        "protocol": "paper",
        "task": "Pendulum-v1",
        "setup": "amber",
        "seed": 3,
    }
    assert run.final_score == pytest.approx(-0.1, abs=1e-15)
    assert run.speed_score == pytest.approx(-0.1, abs=1e-15)
    assert len(run.episodes) == FRAMES // LENGTH
    frames, curve = run.learning_curve
    assert frames.tolist() == list(range(BATCH, FRAMES + 1, BATCH))
    assert curve == pytest.approx(-0.1, abs=1e-15)


def test_floats_are_read_to_the_bit(tmp_path: Path) -> None:
    value = -1070.8873863518238  # pandas' own parser is off by one bit on some of such numbers
    run = read_run(write_run(tmp_path, level=value))
    assert set(run.episodes["return"]) == {value}


def test_a_compressed_run_is_the_same(tmp_path: Path) -> None:
    path = write_run(tmp_path, "amber", level=2.5)
    plain = read_run(path)
    for name in ("episodes", "iterations"):
        compress(path / f"{name}.csv")
    compressed = read_run(path)
    assert compressed.episodes.equals(plain.episodes)
    assert compressed.iterations.equals(plain.iterations)


def test_runs_are_found_at_any_depth_and_not_inside_each_other(tmp_path: Path) -> None:
    first, second = write_run(tmp_path, seed=0), write_run(tmp_path, seed=1)
    checkpoint = first / "checkpoints" / "000000001000"
    checkpoint.mkdir(parents=True)
    shutil.copy(first / "config.json", checkpoint)
    assert find_runs([tmp_path]) == [first, second]
    assert find_runs([first, tmp_path, first]) == [first, second]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="empty holds no run"):
        find_runs([tmp_path, tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_runs([tmp_path / "nowhere"])


def test_links_are_followed_and_a_run_is_found_once(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / "real", seed=seed) for seed in (0, 1))
    study = tmp_path / "study"
    study.mkdir()
    (study / "a").symlink_to(second, target_is_directory=True)
    (study / "loop").symlink_to(study, target_is_directory=True)
    assert find_runs([study]) == [study / "a"]
    (study / "b").symlink_to(tmp_path / "real", target_is_directory=True)
    found = find_runs([study, first])
    assert [path.resolve() for path in found] == [second, first]
    assert len(find_runs([second, study / "a"])) == 1


@pytest.mark.parametrize("name", ["config.json", "summary.json", "episodes.csv.gz"])
@pytest.mark.parametrize("where", [".", "paper", "paper/Pendulum-v1"])
def test_a_stray_file_hides_no_runs(tmp_path: Path, name: str, where: str) -> None:
    write_run(tmp_path)
    stray = tmp_path / where / name
    stray.write_text("{}")
    with pytest.raises(RunError, match=r"in a folder that holds other runs .*; remove") as caught:
        find_runs([tmp_path])
    assert str(caught.value).startswith(f"{stray}: ")


def test_a_folder_called_checkpoints_hides_no_runs(tmp_path: Path) -> None:
    write_run(tmp_path, name="checkpoints/ppo")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"summary\.json: a run's files, in a folder"):
        find_runs([tmp_path])


def compress(file: Path, keep: int | None = None) -> None:
    """Compresses a file, and keeps only the first bytes of the result."""
    packed = gzip.compress(file.read_bytes())
    file.with_name(f"{file.name}.gz").write_bytes(packed[:keep])
    file.unlink()


def drop_last_line(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


UNFINISHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda run: (run / "config.json").unlink(), "no config.json"),
    "no summary": (lambda run: (run / "summary.json").unlink(), "no summary.json"),
    "interrupted": (
        lambda run: edit(run / "summary.json", interrupted=True),
        "interrupted after 1000 frames",
    ),
    "too few frames": (lambda run: edit(run / "config.json", total_frames=2000), "1000 of 2000"),
}
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "half a json": (
        lambda run: (run / "summary.json").write_text('{"fin'),
        "summary.json is no JSON",
    ),
    "not an object": (lambda run: (run / "config.json").write_text("[]"), "config.json holds no"),
    "another recipe's": (lambda run: edit_away(run, "setup"), r"lacks \['setup'\]"),
    "a field missing": (lambda run: edit_away(run, "protocol"), r"lacks \['protocol'\]"),
    "a drop factor": (
        lambda run: edit(run / "config.json", drop_factor=0.1),
        r"config\.json: drop_factor=0\.1 with setup='ppo'",
    ),
    "another method": (lambda run: edit(run / "config.json", setup="trpo"), "setup='trpo'"),
    "no episodes": (lambda run: (run / "episodes.csv").unlink(), r"has neither episodes\.csv nor"),
    "twice": (lambda run: shutil.copy(run / "episodes.csv", run / "episodes.csv.gz"), "both"),
    "empty table": (lambda run: (run / "episodes.csv").write_text(""), "episodes.csv: cut off"),
    "half a line": (
        lambda run: (run / "episodes.csv").write_text("frame,return,length\n20,1.0,2x"),
        "episodes.csv: cut off",
    ),
    "half a number": (
        lambda run: (run / "iterations.csv").write_text((run / "iterations.csv").read_text()[:-1]),
        r"iterations\.csv: cut off or damaged \(its last row has no end\)",
    ),
    "half an archive": (lambda run: compress(run / "episodes.csv", 60), "episodes.csv.gz: cut off"),
    "a column missing": (
        lambda run: (run / "episodes.csv").write_text("frame,return,length\n20,1.0,20\n"),
        r"no column \['terminated', 'truncated'\]",
    ),
    "an episode missing": (
        lambda run: drop_last_line(run / "episodes.csv"),
        "number of episodes must be 49 by the other files, and summary.json says 50",
    ),
    "an iteration missing": (
        lambda run: drop_last_line(run / "iterations.csv"),
        "last frame of the iterations must be 900",
    ),
    "another run's return": (
        lambda run: edit(run / "summary.json", final_score=5.0),
        "final_score=5.0, its episodes give 1.0",
    ),
    "another run's versions": (
        lambda run: edit(run / "versions.json", torch="1.0"),
        "versions.json and summary.json differ: torch was 1.0, is 2.13.0: the run was resumed under",
    ),
    "no versions": (lambda run: (run / "versions.json").unlink(), "versions.json is missing"),
    "fewer frames asked for": (
        lambda run: edit(run / "config.json", total_frames=900),
        "frames, for that total_frames, must be 900",
    ),
    "another clip range": (
        lambda run: edit(run / "config.json", clip_epsilon=0.4),
        r"iterations\.csv: clip_epsilon begins at 0\.3, and config\.json says 0\.4",
    ),
    "another step size": (
        lambda run: edit(run / "config.json", learning_rate=1e-4),
        "learning_rate begins at 0.0003, and config.json says 0.0001",
    ),
    "a task that breaks tables": (
        lambda run: edit(run / "config.json", env_id="a|b"),
        r"config\.json: env_id='a\|b': it must be",
    ),
}


def edit_away(run: Path, name: str, file: str = "config.json") -> None:
    contents = json.loads((run / file).read_text())
    del contents[name]
    (run / file).write_text(json.dumps(contents))


def edit_cell(file: Path, row: int, column: str, value: float) -> None:
    table = pd.read_csv(file)
    table.loc[row, column] = value
    table.to_csv(file, index=False)


@pytest.mark.parametrize("fault", [*UNFINISHED, *DAMAGED])
def test_a_run_that_is_not_whole_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    damage, message = (UNFINISHED | DAMAGED)[fault]
    run = write_run(tmp_path)
    damage(run)
    with pytest.raises(RunError, match=message) as caught:
        read_run(run)
    assert str(run) in str(caught.value)
    assert isinstance(caught.value, UnfinishedRunError) == (fault in UNFINISHED)


def test_a_run_without_an_episode_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "episodes.csv").write_text("frame,return,length,terminated,truncated\n")
    edit(run / "summary.json", episodes=0, final_score=None, speed_score=None)
    with pytest.raises(UnfinishedRunError, match="no episode finished"):
        read_run(run)


@pytest.mark.parametrize(
    ("file", "field"),
    [
        *(("config.json", name) for name in ("num_envs", "time_limits", "seed", "gamma", "epochs")),
        *(("versions.json", name) for name in ("python", "torch", "numpy")),
        *(("summary.json", name) for name in ("seconds", "frames", "interrupted", "versions")),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, file: str, field: str) -> None:
    run = write_run(tmp_path)
    edit_away(run, field, file)
    with pytest.raises(RunError, match=re.escape(f"{run / file} lacks ['{field}']")):
        read_run(run)


@pytest.mark.parametrize(
    ("file", "field", "value", "rule"),
    [
        ("config.json", "total_frames", "1000000", "a whole number of at least 1"),
        ("config.json", "total_frames", 1e6, "a whole number of at least 1"),
        ("config.json", "frames_per_batch", None, "a whole number of at least 1"),
        ("config.json", "frames_per_batch", 0, "a whole number of at least 1"),
        ("config.json", "num_batches", True, "a whole number of at least 1"),
        ("config.json", "seed", "0", "a whole number of at least 0"),
        ("config.json", "seed", [0], "a whole number of at least 0"),
        ("config.json", "seed", 0.5, "a whole number of at least 0"),
        (
            "config.json",
            "env_id",
            ["a"],
            "printable text without |, which would break a table",
        ),
        ("config.json", "protocol", None, "one of ['default', 'paper']"),
        ("config.json", "protocol", "../paper", "one of ['default', 'paper']"),
        ("config.json", "setup", ["ppo"], "one of ['ppo', 'mber', 'amber']"),
        ("config.json", "clip_epsilon", "0.3", "a finite number above 0"),
        ("config.json", "clip_epsilon", -0.3, "a finite number above 0"),
        ("config.json", "learning_rate", 10**400, "a finite number above 0"),
        ("config.json", "drop_factor", "0.1", 'a finite number of at least 0, "inf" or null'),
        ("config.json", "drop_factor", -0.1, 'a finite number of at least 0, "inf" or null'),
        ("config.json", "max_grad_norm", 0, "a finite number above 0, or null"),
        ("config.json", "hidden_sizes", 64, "a list of whole numbers of at least 1"),
        ("config.json", "scale_minibatch", 1, "true or false"),
        ("summary.json", "final_score", "x", "a finite number, or null"),
        ("summary.json", "speed_score", float("nan"), "a finite number, or null"),
        ("summary.json", "seconds", "1", "a finite number of at least 0"),
        ("summary.json", "seconds", -1, "a finite number of at least 0"),
        ("summary.json", "frames", None, "a whole number of at least 0"),
        ("summary.json", "interrupted", "no", "true or false"),
        ("summary.json", "versions", [], "an object"),
        ("versions.json", "torch", 2, "text"),
        ("versions.json", "numpy", "", "text"),
    ],
)
def test_a_field_that_no_run_leaves_is_refused_with_its_rule(
    tmp_path: Path, file: str, field: str, value: Any, rule: str
) -> None:
    run = write_run(tmp_path)
    edit(run / file, **{field: value})
    with pytest.raises(RunError) as caught:
        read_run(run)
    said = str(caught.value)
    assert said.startswith(f"{run / file}: {field}=")
    assert said.endswith(f"it must be {rule}; make the run anew, or remove it")


@pytest.mark.parametrize(
    "changed", [{"scale_minibatch": False}, {"epochs": 3}, {"minibatch_size": 32}]
)
def test_settings_that_the_iterations_contradict_are_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    run = write_run(tmp_path, "mber", num_batches=4)
    edit(run / "config.json", **changed)
    with pytest.raises(RunError, match=r"iterations\.csv: .* where config\.json means"):
        read_run(run)


def test_episodes_of_several_environments_follow_upon_each_other_in_each(tmp_path: Path) -> None:
    table = write_run(tmp_path, protocol="default") / "episodes.csv"
    assert len(read_run(table.parent).episodes) == 8 * 6
    edit_cell(table, 9, "length", 40)
    with pytest.raises(RunError, match="length=40 in row 10, where its environment made 20 steps"):
        read_run(table.parent)


def test_a_resume_that_is_not_exact_leaves_running_episodes_out(tmp_path: Path) -> None:
    table = write_run(tmp_path) / "episodes.csv"
    edit_cell(table, 7, "length", 12)
    edit(table.with_name("summary.json"), exactness="approximate")
    assert read_run(table.parent).episodes["length"].min() == 12
    edit_cell(table, 7, "length", 21)
    with pytest.raises(RunError, match="length=21 in row 8, where its environment made 20 steps"):
        read_run(table.parent)


def test_a_batch_is_kept_whatever_its_staleness(tmp_path: Path) -> None:
    run = write_run(tmp_path, "amber", drop_factor="inf")
    assert read_run(run).setup.name == "amber_dropinf"


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (4, "frames", 400, "frames=400 in row 5, where 500 is due, as frames_per_batch=100"),
        (0, "frames", 0, "frames=0 in row 1, where 100 is due"),
        (4, "active_batches", 0, "active_batches=0 at frame 500, not from 1 to num_batches=8"),
        (4, "active_batches", 9, "active_batches=9 at frame 500"),
        (4, "active_batches", 1, "active_batches=1 at frame 500, where 3 batches are marked"),
        (4, "active_2", 0, "active_batches=3 at frame 500, where 2 batches are marked"),
        (4, "minibatch_size", 64, "minibatch_size=64 in row 5, where config.json means 192"),
        (4, "updates", 30, "updates=30 in row 5, where config.json means 10"),
        (0, "drop_factor", 0.1, "drop_factor begins at 0.1, and config.json says 0.25"),
        (1, "active_2", 0, "active_2=0 in row 2, where each stored batch is 1 or 0"),
        (4, "active_4", float("nan"), "active_4=nan in row 5, where each stored batch is 1 or 0"),
        (4, "staleness_1", 99, "staleness_1=99 in row 5, where it is R' - 1"),
        (4, "importance_ratio_1", -3, "importance_ratio_1=-3 in row 5, where R' is 1 or more"),
    ],
)
def test_iterations_that_no_run_logs_are_refused(
    tmp_path: Path, row: int, column: str, value: float, message: str
) -> None:
    table = write_run(tmp_path, "amber") / "iterations.csv"
    edit_cell(table, row, column, value)
    with pytest.raises(RunError, match=re.escape(f"{table}: {message}")):
        read_run(table.parent)


@pytest.mark.parametrize(
    ("moved", "message"),
    [
        ({"active_0": 0, "active_3": 1}, "active_0=0 in row 5, where the newest batch is in use"),
        ({"active_1": 0, "active_3": 1}, "active_1=0 in row 5, where the drop factor decides by"),
        (
            {"importance_ratio_2": 1.4, "staleness_2": 0.4},
            "active_2=1 in row 5, where the drop factor decides by staleness",
        ),
    ],
)
def test_verdicts_that_their_measurements_contradict_are_refused(
    tmp_path: Path, moved: dict[str, float], message: str
) -> None:
    table = write_run(tmp_path, "amber") / "iterations.csv"
    for column, value in moved.items():
        edit_cell(table, 4, column, value)
    with pytest.raises(RunError, match=re.escape(f"{table}: {message}")):
        read_run(table.parent)


def test_a_ratio_that_overflows_is_no_contradiction(tmp_path: Path) -> None:
    table = write_run(tmp_path, "amber") / "iterations.csv"
    for column in ("importance_ratio_4", "staleness_4"):
        edit_cell(table, 4, column, float("inf"))
    assert read_run(table.parent).iterations["staleness_4"].max() == float("inf")


def test_a_resume_without_old_batches_has_no_verdict_on_them(tmp_path: Path) -> None:
    table = write_run(tmp_path, "amber") / "iterations.csv"
    for column in ("active", "importance_ratio", "staleness"):
        edit_cell(table, 4, f"{column}_4", float("nan"))
    edit(table.with_name("summary.json"), exactness="approximate")
    assert pd.isna(read_run(table.parent).iterations["active_4"].iloc[4])


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (0, "frame", 0, "frame=0 in row 1, not from 1 to the run's last, 1000"),
        (49, "frame", 1001, "frame=1001 in row 50, not from 1"),
        (7, "frame", 20, "frame=20 in row 8 after 140, where frames ascend"),
        (7, "frame", 140, "frame=140 in row 8 after 140, where frames ascend"),
        (7, "frame", 159, "length=20 in row 8, where its environment made 19 steps"),
        (7, "length", -7, "length=-7 in row 8, where its environment made 20 steps"),
        (7, "terminated", 9, "an episode that was neither terminated nor truncated"),
        (7, "terminated", 0, "an episode that was neither terminated nor truncated"),
    ],
)
def test_episodes_that_no_run_logs_are_refused(
    tmp_path: Path, row: int, column: str, value: int, message: str
) -> None:
    table = write_run(tmp_path) / "episodes.csv"
    edit_cell(table, row, column, value)
    with pytest.raises(RunError, match=re.escape(f"{table}: {message}")):
        read_run(table.parent)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("active_", "used_", r"no column ['active_batches']"),
        ("active_7", "used_7", "no column active_7, and num_batches=8"),
        ("staleness_0", "age_0", "no column staleness_0, and num_batches=8"),
        ("staleness_7", "staleness_]", "no column staleness_7, and num_batches=8"),
        ("0.05", "small", "columns ['mean_abs_deviation'] hold something else than numbers"),
    ],
)
def test_a_ledger_that_no_run_logs_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    table = write_run(tmp_path, "amber") / "iterations.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(RunError, match=re.escape(f"{table}: {message}")):
        read_run(table.parent)


def test_more_batches_than_the_configuration_has_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "amber")
    edit(run / "config.json", num_batches=7)
    with pytest.raises(RunError, match="a column importance_ratio_7, and num_batches=7"):
        read_run(run)


@pytest.mark.parametrize("left", ["iterations.csv", "episodes.csv", "versions.json"])
def test_what_is_left_of_a_run_is_found(tmp_path: Path, left: str) -> None:
    run = write_run(tmp_path)
    for file in run.iterdir():
        if file.name != left:
            file.unlink()
    with pytest.raises(UnfinishedRunError, match=r"no config\.json"):
        read_run(*find_runs([tmp_path]))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    table = write_run(tmp_path) / "episodes.csv"
    compress(table)
    packed = table.with_name("episodes.csv.gz")
    contents = bytearray(packed.read_bytes())
    contents[20:60] = bytes(40)
    packed.write_bytes(contents)
    with pytest.raises(RunError, match=r"episodes\.csv\.gz: cut off or damaged"):
        read_run(table.parent)
