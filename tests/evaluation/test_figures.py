"""Figures show the runs: what is drawn is compared with the tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from amber_trl.evaluation import (
    Selection,
    Study,
    active_batches,
    learning_curves,
    minibatch_ratios,
    ratio_by_age,
    read_study,
    scores_by_seed,
    scores_over,
)
from amber_trl.evaluation.drawing import colors, smooth
from amber_trl.evaluation.gallery import pictures
from tests.evaluation.runs import write_run, write_study

LEVELS = {
    (task, setup): [level * 1.0, level + 2.0]
    for task in ("Hopper-v5", "Swimmer-v5")
    for setup, level in (("ppo", 1), ("amber", 5))
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = write_study(tmp_path_factory.mktemp("study"), LEVELS)
    for task in ("Hopper-v5", "Swimmer-v5"):
        for seed, level in enumerate((2.0, 4.0)):
            for clip in (0.2, 0.4):
                add(folder, "ppo", seed, level + clip, task, clip_epsilon=clip)
                add(folder, "mber", seed, level - clip, task, clip_epsilon=clip)
            for drop in (0.1, 0.2):
                add(folder, "amber", seed, level + drop, task, drop_factor=drop)
            add(folder, "mber", seed, level, task, minibatches="episodic")
            add(folder, "mber", seed, level, task, clip_epsilon=0.2, scale_minibatch=False)
    return read_study([folder])


def add(folder: Path, setup: str, seed: int, level: float, task: str, **config: Any) -> None:
    name = f"{task}/{setup}-{config}-{seed}"
    write_run(folder, setup, seed, level=level, task=task, name=name, **config)


def select(study: Study, *setups: str) -> Selection:
    found = study.select("paper", setups)
    assert found is not None
    return found


def lines(axes: Any, name: str) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() == name]


def test_learning_curves_are_means_over_seeds(study: Study) -> None:
    figure = learning_curves(study, select(study, "ppo", "amber"))
    assert [axes.get_title() for axes in figure.axes] == ["Hopper-v5", "Swimmer-v5"]
    for axes in figure.axes:
        (line,) = lines(axes, "amber")
        assert set(line.get_ydata()) == {6}
        assert line.get_xdata()[-1] == pytest.approx(1000 / 1e6)
        assert len(axes.get_lines()) == 2 * (1 + 2)  # a mean and two seeds of either setup
        assert len(axes.collections) == 2  # bands


def test_the_legend_names_each_setup_once(study: Study) -> None:
    figure = learning_curves(study, select(study, "ppo", "amber"))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ppo", "amber"]
    assert figure.get_supxlabel() == "frames (millions)"
    assert "return" in figure.get_supylabel()


def test_every_seed_has_its_dot(study: Study) -> None:
    figure = scores_by_seed(select(study, "ppo", "amber"), study.setups, "final")
    dots = figure.axes[0].collections
    drawn = [set(np.asarray(d.get_offsets())[:, 1]) for d in dots if d.get_label() == "a run"]
    assert drawn == [{1, 3}, {5, 7}]
    (legend,) = figure.legends
    assert any("paper" in text.get_text() for text in legend.get_texts())


def test_active_batches_are_those_logged(study: Study) -> None:
    figure = active_batches(study, select(study, "amber"))
    (line,) = lines(figure.axes[0], "amber")
    assert line.get_ydata()[:4].tolist() == [1, 2, 3, 3]  # a short run, not smoothed


def test_each_age_has_its_line(study: Study) -> None:
    figure = ratio_by_age(study, select(study, "amber"))
    for age in range(1, 8):
        (line,) = lines(figure.axes[0], f"age {age}")
        assert line.get_ydata() == pytest.approx(np.full(10 - age, age / (1000 if age < 3 else 10)))
    (line,) = lines(figure.axes[0], "drop factor")
    assert line.get_ydata()[0] == 0.25
    with pytest.raises(ValueError, match="the figure is of one"):
        ratio_by_age(study, select(study, "ppo", "amber"))


def test_another_metric_of_staleness_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "amber", staleness_metric="kl")
    study = read_study([tmp_path])
    figure = ratio_by_age(study, select(study, "amber"))
    assert figure.get_supylabel() == "staleness (kl) (running mean)"
    (picture,) = [one for one in pictures(study, "paper") if one.name.startswith("ratio-by-age")]
    assert "staleness (kl), median over seeds" in picture.caption


def test_minibatch_ratios_need_their_column(study: Study) -> None:
    both = select(study, "mber_l2_clip0.2", "mber_l2_clip0.2_m64")
    (line,) = lines(minibatch_ratios(study, both).axes[0], "mber_l2_clip0.2_m64")
    assert line.get_ydata() == pytest.approx(np.full(10, 1.05))
    study.iterations["mean_abs_deviation"], kept = np.nan, study.iterations["mean_abs_deviation"]
    try:
        with pytest.raises(ValueError, match=r"no column mean_abs_deviation in .*Hopper"):
            minibatch_ratios(study, both)
    finally:
        study.iterations["mean_abs_deviation"] = kept


def test_scores_over_a_parameter_stand_beside_the_papers(study: Study) -> None:
    clips = select(study, "ppo_clip0.2", "ppo", "ppo_clip0.4", "mber_l2_clip0.2", "mber_l2")
    figure = scores_over(clips, study.setups, "clip_epsilon")
    here, paper = figure.axes[:2]
    ppo: Any = here.containers[0]
    assert ppo.lines[0].get_xdata().tolist() == pytest.approx([0.2, 0.3, 0.4], abs=0.02)
    assert lines(paper, "ppo")[0].get_ydata().tolist() == [
        -0.097,
        0.176,
        -0.011,
        -0.678,
        -1.018,
        -1.786,
    ]
    with pytest.raises(ValueError, match="parameter='gamma'"):
        scores_over(clips, study.setups, "gamma")
    with pytest.raises(ValueError, match="differ in drop_factor alone"):
        scores_over(clips, study.setups, "drop_factor")


def test_the_gallery_offers_every_figure_that_the_runs_allow(study: Study) -> None:
    found = {picture.name: picture for picture in pictures(study, "paper")}
    assert set(found) == {
        "learning-curves",
        "final-scores",
        "speed-scores",
        "active-batches",
        "active-batches-by-setup",
        "ratio-by-age-amber",
        "learning-curves-mber_l2_episodic",
        "learning-curves-mber_l2_clip0.2_m64",
        "minibatch-ratios-mber_l2_clip0.2_m64",
        "scores-over-clip-range",
        "scores-over-drop-factor",
    }


def test_more_setups_than_colours_have_the_figures_that_need_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the study's part on minibatches."""
    for batches in (2, 4, 6, 8):
        for scaled in (True, False):
            options: dict[str, Any] = {"num_batches": batches, "scale_minibatch": scaled}
            write_run(tmp_path, "mber", name=f"{batches}{scaled}", clip_epsilon=0.2, **options)
    found = {picture.name: picture for picture in pictures(read_study([tmp_path]), "paper")}
    for batches in (2, 4, 6, 8):
        assert f"learning-curves-mber_l{batches}_clip0.2_m64" in found
        assert f"minibatch-ratios-mber_l{batches}_clip0.2_m64" in found
    assert not {"learning-curves", "final-scores", "speed-scores"}.intersection(found)
    assert "no figure of learning curves: of 8 setups no more than 7" in caplog.text
    for picture in found.values():
        picture.draw()


def test_two_settings_are_no_sweep(tmp_path: Path) -> None:
    for clip in (0.3, 0.4):
        write_run(tmp_path, "ppo", name=str(clip), clip_epsilon=clip)
    names = [picture.name for picture in pictures(read_study([tmp_path]), "paper")]
    assert "scores-over-clip-range" not in names
    assert "learning-curves" in names


def test_colours_stay_apart() -> None:
    names = ["ppo", "amber", "mber_l2", "mber_l4", "mber_l6", "mber_l8", "amber_drop0.1"]
    found = colors(names)
    assert len({to_hex(color) for color in found.values()}) == len(names)
    assert colors(["amber"])["amber"] == found["amber"]
    with pytest.raises(ValueError, match="no more than"):
        colors([str(number) for number in range(9)])


def test_smoothing_is_over_the_past() -> None:
    short, curve = np.array([[1.0, 8.0, 2.0]]), np.arange(100.0)[None]
    assert smooth(short).tolist() == short.tolist()
    assert smooth(curve)[0, :3].tolist() == [0, 0.5, 1.5]  # windows of two points
    assert smooth(np.arange(1000.0)[None])[0, -1] == np.arange(990.0, 1000.0).mean()
