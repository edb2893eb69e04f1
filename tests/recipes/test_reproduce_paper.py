"""The study's grid: its runs by name, what has become of them, and their published form."""

import csv
import dataclasses
import fcntl
import gzip
import json
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reproduce_paper as recipe
import torch
import tyro
from ppo_amber_config import resolve
from study import grid, runs
from study.archive import archive as publish

from amber_trl.evaluation import Setup, UnfinishedRunError, read_run


def _grid(**options: Any) -> Any:
    given = {"tasks": ("Pendulum-v1",), "setups": ("amber",), "seeds": (0,)}
    return recipe.grid(recipe.Config(**given | options))


def _smoke(study: Path | str, *setups: str) -> list[str]:
    """The options of a grid of smoke runs such as ``finished`` is one of."""
    options = ["--study", str(study), "--tasks", "Pendulum-v1", "--seeds", "0", "--smoke"]
    return [*options, "--compile", "off", "--setups", *(setups or ("amber",))]


def _main(monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["reproduce_paper.py", *options])
    try:
        return recipe.main()
    except SystemExit as left:
        return left.code


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ppo", {"setup": "ppo"}),
        ("ppo_clip0.2", {"setup": "ppo", "clip_epsilon": 0.2}),
        ("mber_l4", {"setup": "mber", "num_batches": 4}),
        (
            "mber_l2_episodic",
            {"setup": "mber", "num_batches": 2, "minibatches": "episodic"},
        ),
        (
            "mber_l8_clip0.2_m64",
            {"setup": "mber", "num_batches": 8, "clip_epsilon": 0.2, "scale_minibatch": False},
        ),
        ("amber_drop0.1", {"setup": "amber", "drop_factor": 0.1}),
        ("amber_dropinf", {"setup": "amber", "drop_factor": float("inf")}),
        ("amber_lr4e-5", {"setup": "amber", "learning_rate": 4e-5}),
    ],
)
def test_a_setup_is_made_of_its_name(ppo: ModuleType, name: str, options: dict[str, Any]) -> None:
    assert grid.setup_options(name) == options
    (job,) = _grid(setups=(name,))
    assert job.name == f"paper/Pendulum-v1/{name}-seed0"
    effective = dataclasses.asdict(ppo.resolve(job.config))
    assert effective.items() >= options.items()
    assert Setup.from_config(effective).name == name


def test_one_run_has_one_directory_however_it_is_named() -> None:
    names = ("amber", "amber_clip0.4", "amber_l8_drop0.25", "mber_episodic", "mber_l2_episodic")
    found = [job.name for job in _grid(setups=names)]
    assert found == [f"paper/Pendulum-v1/{name}-seed0" for name in ("amber", "mber_l2_episodic")]


def test_the_text_counts_the_runs_of_each_part() -> None:
    for name, part in grid.PARTS.items():
        (line,) = [
            line for line in (recipe.__doc__ or "").splitlines() if line.startswith(f"  {name} ")
        ]
        count = 5 * len(grid.jobs(Path("study"), [part], [0], {}))
        assert str(count) in line.split(), (line, count)


def test_seeds_come_one_after_the_other() -> None:
    found = _grid(parts=("main", "mber"), setups=None, seeds=(3, 1))
    assert [job.name.rpartition("/")[2] for job in found] == [
        *("ppo-seed3", "amber-seed3", "ppo-seed1", "amber-seed1"),
        *("mber_l2-seed3", "mber_l2-seed1"),
    ]


def test_the_command_line_makes_the_same_run(ppo: ModuleType) -> None:
    names = ("mber_l8_clip0.2_m64", "mber_l2_episodic", "amber_drop0.1_lr4e-5", "ppo")
    for job in _grid(setups=names, smoke=True, total_frames=512, compile="off"):
        command = grid.command_line(job.config)
        program, file, *words = shlex.split(command)
        assert (program, file) == ("python", "recipes/ppo_amber_mujoco.py")
        assert tyro.cli(ppo.Config, args=words) == job.config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", "all"], "parts ['all'] are none: choose from ['main'"),
        (["--setups", "sac"], "setup 'sac': setup='sac': choose one of"),
        (["--setups", "amber_fast"], "setup 'amber_fast': 'fast' is no change to one"),
        (["--setups", "amber_clipx"], "'clipx' is no change"),
        (["--setups", "amber_l2.5"], "'l2.5' is no change"),
        (["--setups", "mber_l2_l4"], "gives num_batches twice"),
        (["--setups", "ppo_drop0.1"], "setup 'ppo_drop0.1': drop_factor=0.1 with setup='ppo'"),
        (["--setups", "amber_clip2"], "clip_epsilon=2.0: choose a value in (0, 1]"),
        (["--seeds", "-1"], "seeds=(-1,): choose a value"),
        (["--seeds"], "seeds is empty: name at least one"),
        (["--setups"], "setups is empty: name at least one"),
        (["--dry-run", "--archive", "published"], "dry_run=True with archive=published"),
        (["--study", __file__], "is a file: name a directory, or one to be made"),
        (["--tasks", "Pendulum-v9"], "Pendulum-v1"),
        (["--workers", "2", "--ray-address", "auto", "--dry-run"], "leave out one of the two"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--tasks", "Pendulum-v1", *options]
    code = _main(monkeypatch, *options)
    assert code.startswith("error: ")
    assert message in code
    assert not (tmp_path / "study").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a study, made in this process."""
    (job,) = _grid(study=tmp_path_factory.mktemp("study"), smoke=True, compile="off")
    assert runs.state(job) == "new"
    assert runs.make(job) is None
    return job


def _copied_study(finished: Any, folder: Path) -> Path:
    return Path(shutil.copytree(finished.run_dir.parents[2], folder / "study"))


def _add_ppo(study: Path, finished: Any, **options: Any) -> Path:
    """A run directory of ppo beside amber's, made with the options of a smoke run or others."""
    run = Path(shutil.copytree(study / finished.name, study / "paper/Pendulum-v1/ppo-seed0"))
    (job,) = _grid(study=study, setups=("ppo",), smoke=True, compile="off", **options)
    made = dataclasses.asdict(resolve(job.config))
    (run / "config.json").write_text(json.dumps(made, default=str))
    return run


def test_a_finished_run_is_left_alone(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = str(finished.run_dir.parents[2])
    before = {path: path.stat().st_mtime_ns for path in finished.run_dir.iterdir()}
    options = ["--study", study, "--tasks", "Pendulum-v1", "--seeds", "0", "--smoke"]
    options += ["--compile", "off"]
    assert _main(monkeypatch, *options, "--setups", "amber") == 0
    assert f"1 runs in {study}: 1 finished" in capsys.readouterr().out
    assert _main(monkeypatch, *options, "--setups", "amber", "ppo", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "finished    paper/Pendulum-v1/amber-seed0: python recipes/ppo_amber" in shown
    assert "new         paper/Pendulum-v1/ppo-seed0: python recipes/ppo_amber_mujoco.py" in shown
    assert "--env-id Pendulum-v1 --setup ppo" in shown
    assert runs.make(finished) is None
    assert before == {path: path.stat().st_mtime_ns for path in finished.run_dir.iterdir()}


def test_another_run_in_the_directory_is_refused(
    finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = str(finished.run_dir.parents[2])
    options = ["--study", study, "--tasks", "Pendulum-v1", "--seeds", "0"]
    code = _main(monkeypatch, *options)
    assert f"{finished.run_dir} holds a run with " in code
    assert "name another study directory" in code


def test_a_grid_with_another_run_can_be_looked_at(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _copied_study(finished, tmp_path)
    other = _add_ppo(study, finished, total_frames=512)
    options = _smoke(study, "ppo", "amber")
    said = f"{other} holds a run with total_frames=512, and 2560 is asked for"
    assert said in _main(monkeypatch, *options)
    assert _main(monkeypatch, *options, "--dry-run") == 1
    shown = capsys.readouterr().out
    assert f"another: paper/Pendulum-v1/ppo-seed0: {said}" in shown
    assert "finished    paper/Pendulum-v1/amber-seed0: " in shown
    assert _main(monkeypatch, *options, "--archive", str(tmp_path / "archive")) == 1
    assert "left out, as it is another: paper/Pendulum-v1/ppo-seed0" in capsys.readouterr().out
    assert (tmp_path / "archive" / finished.name / "summary.json").exists()


@pytest.mark.parametrize("lock_file", ["run.lock", "timing.csv"])  # the study's, any training's
def test_a_run_of_another_process_is_left_to_it(
    finished: Any,
    lock_file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = str(finished.run_dir.parents[2])
    options = _smoke(study)
    with (finished.run_dir / lock_file).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _main(monkeypatch, *options) == 1
        assert f"1 runs in {study}: 1 in use" in capsys.readouterr().out
        assert _main(monkeypatch, *options, "--dry-run") == 0
        assert "in use      paper/Pendulum-v1/amber-seed0: python" in capsys.readouterr().out
    assert _main(monkeypatch, *options) == 0


def test_a_published_run_is_never_replaced_by_another(
    finished: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study, archive = finished.run_dir.parents[2], tmp_path / "archive"
    options = [*_smoke(study), "--archive", str(archive)]
    assert _main(monkeypatch, *options) == 0
    assert _main(monkeypatch, *options) == 0  # the same again
    published = archive / finished.name / "episodes.csv.gz"
    other = gzip.compress(b"of another run")
    published.write_bytes(other)
    said = f"error: {published.parent} holds another run already (its episodes.csv.gz differs)"
    assert _main(monkeypatch, *options).startswith(said)
    assert published.read_bytes() == other


def test_an_archive_that_cannot_be_is_named(
    finished: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    options = [*_smoke(finished.run_dir.parents[2]), "--archive", str(tmp_path / "file")]
    code = _main(monkeypatch, *options)
    assert code.startswith(f"error: archive='{tmp_path}/file' cannot be written (Not a directory")


def test_a_run_of_other_versions_is_not_gone_on_with(
    finished: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = _copied_study(finished, tmp_path)
    run = study / finished.name
    (run / "summary.json").unlink()
    (job,) = _grid(study=study, smoke=True, compile="off")
    assert runs.state(job) == "interrupted"
    versions = json.loads((run / "versions.json").read_text())
    (run / "versions.json").write_text(json.dumps(versions | {"torch": "1.0"}))
    code = _main(monkeypatch, *_smoke(study))
    assert f"{run} was made under other versions (torch was 1.0, is {torch.__version__})" in code
    shutil.rmtree(run / "checkpoints")
    assert runs.state(job) == "interrupted"  # and starts anew


def test_a_finished_run_without_a_score_is_not_archived_nor_called_damaged(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _copied_study(finished, tmp_path)
    run = study / finished.name
    header = (run / "episodes.csv").read_text().splitlines(keepends=True)[0]
    (run / "episodes.csv").write_text(header)
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"episodes": 0, "final_score": None, "speed_score": None}
    (run / "summary.json").write_text(json.dumps(summary))
    options = [*_smoke(study), "--archive", str(tmp_path / "archive")]
    assert _main(monkeypatch, *options) == 0
    assert f"left out: {run}: no episode finished" in capsys.readouterr().out
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(("asked", "same"), [("auto", True), ("on", False)])
def test_what_counts_is_whether_a_run_was_compiled(finished: Any, asked: str, same: bool) -> None:
    config = dataclasses.replace(finished.config, compile=asked)
    job = dataclasses.replace(finished, config=config)
    if same:
        assert runs.state(job) == "finished"
    else:
        with pytest.raises(ValueError, match="holds a run with compile='off', and 'on' is asked"):
            runs.state(job)


def _copy(finished: Any, run_dir: Path) -> Any:
    shutil.copytree(finished.run_dir, run_dir)
    job = dataclasses.replace(
        finished, config=dataclasses.replace(finished.config, run_dir=run_dir)
    )
    assert runs.state(job) == "finished"
    return job


@pytest.mark.parametrize("damage", ["no summary", "interrupted"])
def test_what_is_not_finished_goes_on(finished: Any, tmp_path: Path, damage: str) -> None:
    job = _copy(finished, tmp_path / "run")
    summary = job.run_dir / "summary.json"
    if damage == "no summary":
        summary.unlink()
    else:
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"interrupted": True}))
    assert runs.state(job) == "interrupted"


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        (
            "iterations.csv",
            lambda text: text[: text[:-1].rindex("\n") + 1],
            "no whole row of frame",
        ),
        ("iterations.csv", lambda text: text[:-1], "no whole row of frame 2560: restore it"),
        ("iterations.csv", None, "iterations.csv of a finished run is missing: restore it"),
        ("episodes.csv", None, "episodes.csv of a finished run is missing: restore it"),
        ("episodes.csv", lambda text: "", "episodes.csv of a finished run has 0 whole rows, and"),
        ("episodes.csv", lambda text: text[:-1], "whole rows, and summary.json says"),
        ("config.json", None, "and no config.json: restore it"),
        ("config.json", lambda text: "{}", "config.json lacks ['checkpoint_interval'"),
    ],
)
def test_a_finished_run_that_was_damaged_is_never_made_anew(
    finished: Any, tmp_path: Path, file: str, damage: Any, said: str
) -> None:
    job = _copy(finished, tmp_path / "run")
    path = job.run_dir / file
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text()))
    before = {path: path.read_bytes() for path in job.run_dir.iterdir() if path.is_file()}
    assert said in (runs.make(job) or "")
    assert (
        before.items()
        <= {path: path.read_bytes() for path in job.run_dir.iterdir() if path.is_file()}.items()
    )


def test_no_run_is_made_in_a_published_study(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, archive = finished.run_dir.parents[2], tmp_path / "archive"
    options = ["--tasks", "Pendulum-v1", "--seeds", "0", "--smoke", "--compile", "off"]
    options += ["--setups", "amber"]
    assert _main(monkeypatch, "--study", str(study), *options, "--archive", str(archive)) == 0
    before = sorted(path.name for path in (archive / finished.name).iterdir())
    assert _main(monkeypatch, "--study", str(archive), *options) == 1
    assert "holds compressed tables, as a published run does" in capsys.readouterr().out
    assert set(before) == {path.name for path in (archive / finished.name).iterdir()} - {"run.lock"}


def test_an_archive_that_is_killed_leaves_no_run_of_two(
    finished: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(finished, tmp_path)
    replaced = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.name == "iterations.csv.gz":
            raise KeyboardInterrupt
        return replaced(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(finished, tmp_path)
    with pytest.raises(UnfinishedRunError, match=r"no summary\.json"):
        read_run(tmp_path / finished.name)
    publish(finished, tmp_path)
    assert read_run(tmp_path / finished.name).summary["frames"] == 2560


def test_a_damaged_file_is_named(finished: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    config = dataclasses.replace(finished.config, run_dir=tmp_path)
    with pytest.raises(ValueError, match=r"config.json is no JSON .*: remove that run"):
        runs.state(dataclasses.replace(finished, config=config))


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no object"),
        ("{}", "interrupted is not there, and must be true or false"),
        ('{"interrupted": 0}', "interrupted is 0, and must be true or false"),
    ],
)
def test_a_damaged_run_is_told_and_the_others_go_on(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    contents: str,
    said: str,
) -> None:
    study = _copied_study(finished, tmp_path)
    broken = _add_ppo(study, finished) / "summary.json"
    broken.write_text(contents)
    options = _smoke(study, "ppo", "amber")
    assert _main(monkeypatch, *options) == 1
    shown = capsys.readouterr().out
    assert f"damaged: paper/Pendulum-v1/ppo-seed0: {broken}" in shown
    assert said in shown
    assert "remove that run" in shown
    assert f"2 runs in {study}: 1 damaged, 1 finished" in shown
    archive = tmp_path / "archive"
    assert _main(monkeypatch, *options, "--archive", str(archive)) == 1
    assert "left out, as it is damaged: paper/Pendulum-v1/ppo-seed0" in capsys.readouterr().out
    assert (archive / finished.name / "summary.json").exists()


@pytest.mark.parametrize(
    ("file", "contents"),
    [
        ("episodes.csv", b"frame,return,length,terminated,truncated\n200,-900.5,20"),
        ("iterations.csv", b"\xff"),
        ("versions.json", b"{{"),
    ],
)
def test_no_damaged_run_is_archived(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    contents: bytes,
) -> None:
    study = _copied_study(finished, tmp_path)
    damaged = study / finished.name / file
    if file == "iterations.csv":  # in its middle, as its last row is read for the frames
        before = damaged.read_bytes()
        contents = before[: len(before) // 2] + contents + before[len(before) // 2 :]
    damaged.write_bytes(contents)
    options = [*_smoke(study), "--archive", str(tmp_path / "archive")]
    assert _main(monkeypatch, *options) == 1
    shown = capsys.readouterr().out
    assert f"damaged: {finished.name}: {study / finished.name}" in shown
    assert file in shown
    assert not (tmp_path / "archive").exists()


def test_a_blank_line_ends_no_study(finished: Any, tmp_path: Path) -> None:
    shutil.copytree(finished.run_dir, tmp_path / "run")
    config = dataclasses.replace(finished.config, run_dir=tmp_path / "run")
    job = dataclasses.replace(finished, config=config)
    table = tmp_path / "run" / "iterations.csv"
    whole = table.read_text()
    table.write_text(f"{whole}\n")
    assert runs.frames(job) == 2560
    assert runs.state(job) == "finished"
    table.write_text(f"{whole}x,y\n")
    assert runs.frames(job) == 0
    with pytest.raises(runs.DamagedRunError, match="no whole row of frame 2560"):
        runs.state(job)


def test_a_run_that_another_process_began_meanwhile_is_left_to_it(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As where two processes make one study at once: neither saw the other when it looked."""
    (job,) = _grid(study=tmp_path, smoke=True, compile="off")
    job.run_dir.mkdir(parents=True)
    with (job.run_dir / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert runs.make(job) is None
        assert [path.name for path in job.run_dir.iterdir()] == ["run.lock"]
        looks = iter([False])
        monkeypatch.setattr(runs, "in_use", lambda job: next(looks, True))
        assert _main(monkeypatch, *_smoke(tmp_path)) == 1
    shown = capsys.readouterr().out
    assert "[1/1] in use      paper/Pendulum-v1/amber-seed0: another process makes it" in shown
    assert shown.endswith("1 in use\n")


def test_no_runs_are_added_to_finished_ones_of_other_versions(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _copied_study(finished, tmp_path)
    versions = study / finished.name / "versions.json"
    made = json.loads(versions.read_text())
    versions.write_text(json.dumps({n: v for n, v in made.items() if n != "box2d"}))
    grown = _smoke(study, "amber", "ppo")
    assert _main(monkeypatch, *grown, "--dry-run") == 0  # as a report takes it
    versions.write_text(json.dumps(made | {"torch": "1.0"}))
    assert _main(monkeypatch, *_smoke(study)) == 0  # nothing is added
    said = f"{versions.parent} was made under other versions (torch was 1.0, is"
    assert said in _main(monkeypatch, *grown)
    capsys.readouterr()
    assert _main(monkeypatch, *grown, "--dry-run") == 1
    assert f"another: paper/Pendulum-v1/amber-seed0: {said}" in capsys.readouterr().out


def test_frames_count_whole_rows_of_this_session(finished: Any, tmp_path: Path) -> None:
    job = dataclasses.replace(
        finished, config=dataclasses.replace(finished.config, run_dir=tmp_path)
    )
    assert runs.frames(job) == 0
    table = tmp_path / "iterations.csv"
    table.write_text("frames,loss\n")
    assert runs.frames(job) == 0
    table.write_text("frames,loss\n256,1.5\n512,1.")
    assert runs.frames(job) == 256
    table.write_text("frames,loss\n" + "".join(f"{n},{'1' * 60}\n" for n in range(1000)))
    assert runs.frames(job) == 999
    assert runs.frames(job, since=table.stat().st_mtime + 1) == 0


def test_the_archive_holds_what_the_run_does(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--study", str(finished.run_dir.parents[2]), "--tasks", "Pendulum-v1"]
    options += ["--seeds", "0", "1", "--setups", "amber", "--smoke", "--compile", "off"]
    contents = []
    for archive in (tmp_path / "one", tmp_path / "two"):
        assert _main(monkeypatch, *options, "--archive", str(archive)) == 0
        shown = capsys.readouterr().out
        assert "left out, as it is new: paper/Pendulum-v1/amber-seed1" in shown
        (directory,) = (archive / "paper" / "Pendulum-v1").iterdir()
        contents.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert contents[0] == contents[1]
    names = {"config.json", "versions.json", "summary.json"}
    assert set(contents[0]) == names | {"episodes.csv.gz", "iterations.csv.gz"}
    run_dir, files = finished.run_dir, contents[0]
    assert gzip.decompress(files["episodes.csv.gz"]) == (run_dir / "episodes.csv").read_bytes()
    config = json.loads((run_dir / "config.json").read_text())
    assert json.loads(files["config.json"]) == config | {"run_dir": finished.name}
    for name in names - {"config.json"}:
        assert files[name] == (run_dir / name).read_bytes()
    exact = list(csv.reader((run_dir / "iterations.csv").read_text().splitlines()))
    rounded = list(csv.reader(gzip.decompress(files["iterations.csv.gz"]).decode().splitlines()))
    assert rounded[0] == exact[0]
    for row, other in zip(exact[1:], rounded[1:], strict=True):
        for cell, short in zip(row, other, strict=True):
            assert len(short) <= max(len(cell), 12)
            assert (cell == short == "") or float(short) == pytest.approx(float(cell), rel=5e-6)


@pytest.mark.parametrize("archive", ["study", "study/archive", ".", "link"])
def test_an_archive_that_would_mix_with_the_study_is_refused(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    archive: str,
) -> None:
    shutil.copytree(finished.run_dir.parents[2], tmp_path / "study")
    (tmp_path / "link").symlink_to("study")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    options = ["--tasks", "Pendulum-v1", "--seeds", "0", "--setups", "amber", "--smoke"]
    code = _main(monkeypatch, *options, "--compile", "off", "--archive", archive)
    assert code.startswith(f"error: archive={archive} with study=study: neither may be in the")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_lacks_what_is_archived_is_named_and_passed_over(
    finished: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _copied_study(finished, tmp_path)
    (study / finished.name / "versions.json").unlink()
    options = [*_smoke(study), "--archive", str(tmp_path / "archive")]
    assert _main(monkeypatch, *options) == 1
    shown = capsys.readouterr().out
    assert f"damaged: {finished.name}: {study / finished.name}/versions.json is missing" in shown
    assert f"left out, as it is damaged: {finished.name}" in shown
