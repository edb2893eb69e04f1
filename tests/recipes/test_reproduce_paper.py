"""The study's grid: its runs by name, their states, and their published form."""

import csv
import dataclasses
import io
import json
import shlex
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import reproduce_paper as recipe
import tyro
from comparators import acer, trpo
from comparators.common import ComparatorConfig, settle
from ppo_amber_config import Config, resolve
from study import archive, grid, pools, runs
from study.read import read_finished_run
from study.setups import Setup

from amber_trl.runs import RunDirectory
from tests.recipes.conftest import RECIPES, run_main


def _grid(**options: Any) -> list[grid.Job]:
    given = {"tasks": ("Pendulum-v1",), "setups": ("amber",), "seeds": (0,)}
    return recipe.grid(recipe.Config(**given | options))["main"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ppo", {"setup": "ppo"}),
        ("ppo_clip0.2", {"setup": "ppo", "clip_epsilon": 0.2}),
        ("mber_l4", {"setup": "mber", "num_batches": 4}),
        ("mber_l2_episodic", {"setup": "mber", "num_batches": 2, "minibatches": "episodic"}),
        (
            "mber_l8_clip0.2_m64",
            {"setup": "mber", "num_batches": 8, "clip_epsilon": 0.2, "scale_minibatch": False},
        ),
        ("amber_dropinf", {"setup": "amber", "drop_factor": float("inf")}),
        ("amber_lr4e-5", {"setup": "amber", "learning_rate": 4e-5}),
        ("ppo_n512", {"setup": "ppo", "frames_per_batch": 512}),
        ("amber_n512_gipo", {"setup": "amber", "frames_per_batch": 512, "loss": "gipo"}),
        ("amber_sigma0.3_gipo", {"setup": "amber", "loss": "gipo", "sigma": 0.3}),
        ("amber_use3", {"setup": "amber", "batches_in_use": 3}),
        ("disc_l8_scaled", {"setup": "disc", "num_batches": 8, "reward_scaling": True}),
        ("geppo", {"setup": "geppo"}),
        ("disc_use3", {"setup": "disc", "batches_in_use": 3}),
        (
            "amber_n1024_l16_perdim_drop0.1",
            {
                "setup": "amber",
                "frames_per_batch": 1024,
                "num_batches": 16,
                "staleness_metric": "per_dimension",
                "drop_factor": 0.1,
            },
        ),
    ],
)
def test_a_setup_is_built_from_its_name(name: str, options: dict[str, Any]) -> None:
    assert grid.setup_options(name) == options
    (job,) = _grid(setups=(name,))
    assert job.name == f"paper/Pendulum-v1/{name}-seed0"
    effective = dataclasses.asdict(job.config)
    assert effective.items() >= options.items()
    assert Setup.from_config(effective).name == name


def test_one_run_has_one_directory_however_its_setup_is_written() -> None:
    names = ("amber", "amber_clip0.4", "amber_l8_drop0.25", "mber_episodic", "mber_l2_episodic")
    found = {job.name for job in _grid(setups=names)}
    assert found == {f"paper/Pendulum-v1/{name}-seed0" for name in ("amber", "mber_l2_episodic")}


def test_implied_options_are_not_named() -> None:
    (job,) = _grid(setups=("amber_use3",))
    config = dataclasses.asdict(job.config)
    assert config["max_drop_factor"] == 1
    assert Setup.from_config(config, ["max_drop_factor", "gamma"]).name == "amber_use3"
    assert Setup.from_config(config | {"gamma": 0.9}, ["gamma"]).name == "amber_use3_gamma=0.9"


def test_changes_are_those_of_the_base() -> None:
    parts = recipe.grid(recipe.Config(parts=("screen_one",), base="amber_n1024_l16", seeds=(100,)))
    names = {job.name.rpartition("/")[2] for job in parts["screen_one"]}
    assert len(names) == 9
    assert {
        f"amber_n1024_l16_{word}-seed100" for word in ("use3", "disc", "perdim_drop0.1")
    } < names


def test_every_part_can_be_made() -> None:
    counts = {"main": 120, "control": 60, "episodic": 30, "minibatch": 27, "mber": 36}
    counts |= {"length": 27, "step": 12, "default": 36, "clip": 36, "drop": 12, "drop_per_clip": 12}
    counts |= {"screen_n": 48, "screen_one": 72, "authors": 16}
    counts |= {"age": 27, "trpo": 24, "acer": 12}
    parts = recipe.grid(recipe.Config(dry_run=True))
    assert {name: len(found) for name, found in parts.items()} == counts
    protocols = {
        name: {job.name.partition("/")[0] for job in found} for name, found in parts.items()
    }
    assert protocols == {name: {"paper"} for name in counts} | {"default": {"default"}}


def test_seeds_come_one_after_the_other() -> None:
    found = _grid(setups=("ppo", "amber"), seeds=(3, 1))
    names = [job.name.rpartition("/")[2] for job in found]
    assert names == ["ppo-seed3", "amber-seed3", "ppo-seed1", "amber-seed1"]


def test_the_command_line_makes_the_run() -> None:
    names = ("mber_l8_clip0.2_m64", "mber_l2_episodic", "amber_drop0.1_lr4e-5", "ppo")
    for job in _grid(setups=names, smoke=True, total_frames=512, compile="off"):
        program, file, *words = shlex.split(runs.command_line(job))
        assert (program, file) == ("python", "recipes/ppo_amber_mujoco.py")
        made = resolve(tyro.cli(Config, args=words))
        assert made == dataclasses.replace(job.config, progress=False)


@pytest.mark.parametrize(("name", "kind"), [("trpo", trpo.Config), ("acer", acer.Config)])
def test_a_comparator_has_its_own_recipe(name: str, kind: type[ComparatorConfig]) -> None:
    (job,) = _grid(setups=(name,), total_frames=512, compile="off")
    assert job.name == f"paper/Pendulum-v1/{name}-seed0"
    program, file, *words = shlex.split(runs.command_line(job))
    assert (program, file) == ("python", f"recipes/comparators/{name}.py")
    assert (RECIPES / "comparators" / f"{name}.py").is_file()
    made = settle(tyro.cli(kind, args=words), name)
    assert made == dataclasses.replace(job.config, progress=False)


def test_a_comparator_is_made_by_the_same_pool(tmp_path: Path) -> None:
    (job,) = _grid(study=tmp_path, setups=("acer",), total_frames=250)
    assert list(pools.make([job], 1, 0)) == [pools.Ended(job, None)]
    assert runs.state(job) == "finished"
    archive.archive(job, tmp_path / "archive")
    assert archive.is_archived(job, tmp_path / "archive")
    assert read_finished_run(job.run_dir).row["setup"] == "acer"
    (longer,) = _grid(study=tmp_path, setups=("acer",), total_frames=500)
    assert runs.other_options(longer) == ["total_frames=250 instead of 500"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parts", "all"], "parts=['all']: choose from ['main'"),
        (["--setups", "sac"], "setup='sac': choose one of"),
        (["--setups", "amber_fast"], "unknown change 'fast'"),
        (["--setups", "amber_l2.5"], "unknown change 'l2.5'"),
        (["--setups", "mber_l2_l4"], "gives num_batches twice"),
        (["--setups", "ppo_drop0.1"], "setup 'ppo_drop0.1': drop_factor=0.1 with setup='ppo'"),
        (["--setups", "amber_clip2"], "clip_epsilon=2.0"),
        (["--setups", "acer", "--protocol", "default"], "with setup 'acer'"),
        (["--seeds", "-1"], "seeds=(-1,)"),
        (["--workers", "2", "--ray-address", "auto"], "leave out one of the two"),
    ],
)
def test_wrong_arguments_are_refused_before_any_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run_main(recipe, "--tasks", "Pendulum-v1", *options)
    assert code.startswith("error: ")
    assert message in code
    assert not (tmp_path / "study").exists()


_SMOKE = ["--tasks", "Pendulum-v1", "--seeds", "0", "--smoke", "--compile", "off"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> grid.Job:
    """A run of a study, made by the main recipe's command."""
    (job,) = _grid(study=tmp_path_factory.mktemp("study"), smoke=True, compile="off")
    assert runs.state(job) == "new"
    assert list(pools.make([job], 1, 0)) == [pools.Ended(job, None)]
    return job


def _copy(finished: grid.Job, study: Path) -> grid.Job:
    shutil.copytree(finished.run_dir, study / finished.name)
    return dataclasses.replace(finished, run_dir=study / finished.name)


def test_finished_runs_are_left_alone(
    finished: grid.Job, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--study", str(finished.run_dir.parents[2]), *_SMOKE, "--setups", "amber"]
    before = {path: path.stat().st_mtime_ns for path in finished.run_dir.iterdir()}
    assert run_main(recipe, *options) == 0
    assert run_main(recipe, *options, "ppo", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "finished    paper/Pendulum-v1/amber-seed0\n" in shown
    assert "new         paper/Pendulum-v1/ppo-seed0 python recipes/ppo_amber_mujoco.py" in shown
    assert "1 finished, 1 new" in shown.splitlines()[-1]
    assert before == {path: path.stat().st_mtime_ns for path in finished.run_dir.iterdir()}


def test_a_run_with_other_options_is_never_replaced(
    finished: grid.Job, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--study", str(finished.run_dir.parents[2]), *_SMOKE, "--setups", "amber"]
    options += ["--total-frames", "512"]
    code = run_main(recipe, *options)
    assert f"{finished.run_dir} holds a run with total_frames=2560 instead of 512" in code
    assert run_main(recipe, *options, "--dry-run") == 0
    assert "other       paper/Pendulum-v1/amber-seed0\n" in capsys.readouterr().out
    assert run_main(recipe, *options, "--archive", str(finished.run_dir)) == 1
    assert "total_frames=2560 instead of 512\n1 other" in capsys.readouterr().out
    assert runs.state(finished) == "finished"


@pytest.mark.parametrize("summary", [None, True])
def test_an_interrupted_run_is_resumed_or_starts_again(
    finished: grid.Job, tmp_path: Path, summary: bool | None
) -> None:
    job = _copy(finished, tmp_path)
    path = job.run_dir / "summary.json"
    said = json.loads(path.read_text())
    path.unlink()
    if summary is not None:
        path.write_text(json.dumps(said | {"interrupted": summary}))
    assert runs.state(job) == "interrupted"
    assert runs.arguments(job) == ["--resume", str(job.run_dir), "--no-progress"]
    shutil.rmtree(job.run_dir / "checkpoints")
    assert "--overwrite" in runs.arguments(job)


def test_a_run_that_another_process_has_open_is_left_to_it(
    finished: grid.Job, tmp_path: Path
) -> None:
    job = _copy(finished, tmp_path)
    (job.run_dir / "summary.json").unlink()
    shutil.rmtree(job.run_dir / "checkpoints")  # so that it would be overwritten
    with RunDirectory(job.run_dir, resume=True):
        before = (job.run_dir / "episodes.csv").read_bytes()
        (ended,) = pools.make([job], 1, 2)
        assert "in use" in str(ended.problem)
        assert not ended.again
        assert (job.run_dir / "episodes.csv").read_bytes() == before


def test_the_archive_holds_the_run_and_is_the_same_each_time(
    finished: grid.Job, tmp_path: Path
) -> None:
    study = str(finished.run_dir.parents[2])
    options = ["--study", study, *_SMOKE, "--setups", "amber", "ppo", "--archive"]
    for name in ("one", "one", "two"):
        assert run_main(recipe, *options, str(tmp_path / name)) == 0
    one, two = (tmp_path / name / "paper/Pendulum-v1.zip" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as zipped:
        held = {name: zipped.read(name).decode() for name in zipped.namelist()}
    made = {path.name: path for path in finished.run_dir.iterdir()}
    files = {name.removeprefix("amber-seed0/"): text for name, text in held.items()}
    for name in ("episodes.csv", "summary.json", "versions.json"):
        assert files.pop(name) == made[name].read_text()
    config = json.loads(made["config.json"].read_text()) | {"run_dir": finished.name}
    assert json.loads(files.pop("config.json")) == config
    exact = list(csv.reader(io.StringIO(made["iterations.csv"].read_text())))
    rounded = list(csv.reader(io.StringIO(files.pop("iterations.csv"))))
    assert rounded[0] == exact[0]
    for row, other in zip(exact[1:], rounded[1:], strict=True):
        for cell, short in zip(row, other, strict=True):
            assert len(short) <= max(len(cell), 12)
            assert (cell == short == "") or float(short) == pytest.approx(float(cell), rel=5e-6)
    assert not files


def test_a_published_run_is_never_replaced_and_others_are_added(
    finished: grid.Job, tmp_path: Path
) -> None:
    published = tmp_path / "archive"
    archive.archive(finished, published)
    assert archive.is_archived(finished, published)
    path = published / "paper/Pendulum-v1.zip"
    before = path.read_bytes()
    other = _copy(finished, tmp_path / "study")
    with (other.run_dir / "episodes.csv").open("a") as table:
        table.write("2560,-1.0,200,0,1\n")
    with pytest.raises(FileExistsError, match=r"amber-seed0 .*episodes.csv"):
        archive.archive(other, published)
    assert path.read_bytes() == before
    ppo = dataclasses.replace(other, name="paper/Pendulum-v1/ppo-seed0")
    assert not archive.is_archived(ppo, published)
    archive.archive(ppo, published)
    assert archive.is_archived(finished, published)
    assert archive.is_archived(ppo, published)


def test_a_kill_while_archiving_leaves_the_zip_unchanged(
    finished: grid.Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive.archive(finished, tmp_path)
    path = tmp_path / "paper/Pendulum-v1.zip"
    before = path.read_bytes()
    ppo = dataclasses.replace(finished, name="paper/Pendulum-v1/ppo-seed0")

    def kill(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", kill)
        with pytest.raises(KeyboardInterrupt):
            archive.archive(ppo, tmp_path)
    assert path.read_bytes() == before
    archive.archive(ppo, tmp_path)
    assert archive.is_archived(ppo, tmp_path)
