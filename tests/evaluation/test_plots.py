"""Figures show what the runs have logged."""

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from amber_trl.__main__ import main
from amber_trl.evaluation import LoggedRun, plot_runs
from amber_trl.evaluation._drawing import colors, smooth
from amber_trl.evaluation._figures import (
    batches_in_use,
    iteration_means,
    learning_curves,
    staleness_by_age,
)
from amber_trl.runs import RunDirectory
from tests.evaluation.test_logged_runs import write_run


def run(level: float = 1.0, task: str = "Hopper-v5", count: int = 4) -> LoggedRun:
    """Iterations of ten frames; an episode ends after each."""
    frames = np.arange(1.0, count + 1) * 10
    iterations = {
        "frames": frames,
        "active_batches": np.minimum(frames / 10, 2),
        "drop_factor": 1 - frames / 100,
        "staleness_0": np.full(count, 0.1),
        "staleness_1": np.where(frames > 10, level / 10, np.nan),
    }
    episodes = {"frame": frames, "return": np.full(count, level)}
    return LoggedRun(Path(), {"env_id": task}, episodes, iterations)


def lines(axes: Any, name: str) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() == name]


def test_learning_curves_are_means_over_seeds() -> None:
    tasks = ("Hopper-v5", "Swimmer-v5")
    levels = {"ppo": (1.0, 3.0), "amber": (5.0, 7.0)}
    runs = {
        name: [run(level, task) for task in tasks for level in both]
        for name, both in levels.items()
    }
    figure = learning_curves(runs)
    assert [axes.get_title() for axes in figure.axes] == list(tasks)
    for axes in figure.axes:
        (line,) = lines(axes, "amber")
        assert line.get_xydata().tolist() == [[10, 6], [20, 6], [30, 6], [40, 6]]
        assert len(axes.get_lines()) == 2 * (1 + 2)  # a mean and two seeds for either setup
        assert len(axes.collections) == 2  # intervals
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ppo", "amber"]


def test_evaluations_are_drawn_beside_the_training_and_named() -> None:
    one, other = run(1.0), run(3.0, count=2)  # evaluated every two iterations, and every one
    columns = [np.array([np.nan, 4.0, np.nan, 6.0]), np.array([5.0, 8.0])]
    runs = [
        LoggedRun(Path(), each.config, each.episodes, {**each.iterations, "eval_return": column})
        for each, column in zip((one, other), columns, strict=True)
    ]
    figure = learning_curves({"ppo": [*runs, run(2.0)], "amber": [run(9.0)]})
    (line,) = lines(figure.axes[0], "ppo, evaluations")
    assert line.get_xydata().tolist() == [[10, 5], [20, 6], [40, 6]]  # means of those present
    assert (line.get_linestyle(), line.get_marker()) == ("--", "o")
    assert line.get_color() == lines(figure.axes[0], "ppo")[0].get_color()
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["ppo", "ppo, evaluations", "amber"]


def test_a_task_s_panel_has_the_setups_of_its_runs() -> None:
    runs = {"ppo": [run(), run(task="Swimmer-v5")], "amber": [run()]}
    hopper, swimmer = learning_curves(runs).axes
    assert [line.get_label() for line in hopper.get_lines()] == ["ppo", "amber"]
    assert [line.get_label() for line in swimmer.get_lines()] == ["ppo"]


def test_runs_with_other_batches_are_averaged_at_their_own_frames() -> None:
    coarse = LoggedRun(Path(), {}, run(3.0).episodes, {"frames": np.array([20.0, 40.0])})
    fine = LoggedRun(Path(), {}, run(1.0).episodes, {"frames": np.arange(10.0, 50, 10)})
    (axes,) = learning_curves({"mine": [fine, coarse]}).axes
    (line,) = lines(axes, "mine")
    assert line.get_xydata().tolist() == [[10, 1], [20, 2], [30, 1], [40, 2]]


def test_batches_in_use_and_other_columns_are_those_logged() -> None:
    runs = {"amber": [run(1.0), run(3.0)]}
    (line,) = lines(batches_in_use(runs).axes[0], "amber")
    assert line.get_ydata().tolist() == [1, 2, 2, 2]
    (line,) = lines(iteration_means(runs, "staleness_0", "x", offset=1.0).axes[0], "amber")
    assert line.get_ydata() == pytest.approx(np.full(4, 1.1))


def test_each_age_has_its_line_and_the_drop_factor_one() -> None:
    (axes,) = staleness_by_age([run(1.0), run(2.0), run(9.0)]).axes
    (line,) = lines(axes, "age 1")
    assert list(line.get_ydata())[1:] == pytest.approx([0.2] * 3)  # the median
    assert not lines(axes, "age 0")
    (line,) = lines(axes, "drop factor")
    assert line.get_ydata() == pytest.approx([0.9, 0.8, 0.7, 0.6])


def test_an_infinite_drop_factor_and_staleness_can_be_drawn(tmp_path: Path) -> None:
    one = run()
    columns = {"drop_factor": np.full(4, np.inf), "staleness_1": np.full(4, np.inf)}
    endless = LoggedRun(Path(), one.config, one.episodes, {**one.iterations, **columns})
    staleness_by_age([endless]).savefig(tmp_path / "figure.png")


def test_plot_draws_the_available_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "5,1.5,5,1,0\n", "4,1,0.1,\n8,2,0.1,0.2\n"
    for gamma in (0.9, 0.99):
        length = "inf" if gamma < 0.95 else 8
        write_run(tmp_path / str(gamma), *rows, setup="amber", gamma=gamma, total_frames=length)
    with RunDirectory(tmp_path / "new") as new:
        new.write_config({"env_id": "Hopper-v5", "setup": "ppo"})
    files = plot_runs([tmp_path], tmp_path / "figures")
    assert [file.name for file in files] == [
        "learning-curves.png",
        "batches-in-use.png",
        "staleness-by-age-amber_gamma=0.9.png",
        "staleness-by-age-amber_gamma=0.99.png",
    ]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)
    assert str(tmp_path / "new") in caplog.text
    assert f"as far as they have come: {tmp_path}/0.9 (8 of inf frames)\n" in caplog.text
    with pytest.raises(ValueError, match="new"):
        plot_runs([tmp_path / "new"], tmp_path / "figures")


def test_figures_are_the_same_whatever_the_users_settings(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "5,1.5,5,1,0\n", "4,1,0.1,\n8,2,0.1,0.2\n")
    own = plot_runs([folder], tmp_path / "own")
    with matplotlib.rc_context({"font.size": 30, "savefig.facecolor": "black"}):
        other = plot_runs([folder], tmp_path / "other")
    assert [file.read_bytes() for file in own] == [file.read_bytes() for file in other]


def test_the_command_names_its_files_and_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", "5,1.5,5,1,0\n", "4,1,0.1,\n")
    out = tmp_path / "figures"
    assert main(["plot", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}/learning-curves.png\n")
    for words in ([], [str(out)], [str(tmp_path / "none")]):
        assert main(["plot", *words, "--out", str(out)]) == 1
        assert capsys.readouterr().err.startswith("error: ")


def test_colours_can_be_told_apart() -> None:
    names = ["ppo", "amber", "mber_l2", "mber_l4", "mber_l6", "mber_l8", "amber_drop0.1"]
    found = colors(names)
    assert len({to_hex(color) for color in found.values()}) == len(names)
    assert colors(["amber"])["amber"] == found["amber"]
    assert len(set(map(to_hex, colors([str(n) for n in range(20)]).values()))) == 20


def test_smoothing_is_over_the_past() -> None:
    short = np.array([1.0, np.nan, 2.0])
    assert smooth(short) == pytest.approx(short, nan_ok=True)
    assert smooth(np.arange(100.0))[:3].tolist() == [0, 0.5, 1.5]  # windows of two points
    assert smooth(np.arange(1000.0))[-1] == np.arange(990.0, 1000.0).mean()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import amber_trl.evaluation

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for module in ("_figures", "_drawing"):
        monkeypatch.delitem(sys.modules, f"amber_trl.evaluation.{module}", raising=False)
        monkeypatch.delattr(amber_trl.evaluation, module, raising=False)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_runs([], "figures")
