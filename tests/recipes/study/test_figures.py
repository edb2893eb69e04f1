"""The page's own figures, and which of them the runs allow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study.figures import pictures, scores_by_seed, scores_over
from study.read import Selection, Study, read_study

from tests.recipes.study.runs import write_run, write_study

LEVELS = {
    (task, setup): [level * 1.0, level + 2.0]
    for task in ("Hopper-v5", "Swimmer-v5")
    for setup, level in (("ppo", 1), ("amber", 5))
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = write_study(tmp_path_factory.mktemp("study"), LEVELS)
    changes: list[tuple[str, float, dict[str, Any]]] = [
        *(("ppo", clip, {"clip_epsilon": clip}) for clip in (0.2, 0.4)),
        *(("mber", -clip, {"clip_epsilon": clip}) for clip in (0.2, 0.4)),
        *(("amber", drop, {"drop_factor": drop}) for drop in (0.1, 0.2)),
        ("mber", 0.0, {"minibatches": "episodic"}),
        ("mber", 0.0, {"clip_epsilon": 0.2, "scale_minibatch": False}),
    ]
    for task in ("Hopper-v5", "Swimmer-v5"):
        for seed in (0, 1):
            for setup, shift, config in changes:
                name, level = f"{task}/{setup}-{config}-{seed}", 2 + 2 * seed + shift
                write_run(folder, setup, seed, level=level, task=task, name=name, **config)
    return read_study([folder])


def select(study: Study, *setups: str) -> Selection:
    found = study.select("paper", setups)
    assert found is not None
    return found


def test_every_seed_has_its_dot(study: Study) -> None:
    figure = scores_by_seed(select(study, "ppo", "amber"), study.setups, "final")
    dots = figure.axes[0].collections
    drawn = [set(np.asarray(d.get_offsets())[:, 1]) for d in dots if d.get_label() == "a run"]
    assert drawn == [{1, 3}, {5, 7}]
    (legend,) = figure.legends
    assert any("paper" in text.get_text() for text in legend.get_texts())


def test_scores_over_a_parameter_are_beside_the_papers(study: Study) -> None:
    clips = select(study, "ppo_clip0.2", "ppo", "ppo_clip0.4", "mber_l2_clip0.2", "mber_l2")
    here, paper = scores_over(clips, study.setups, "clip_epsilon").axes[:2]
    ppo: Any = here.containers[0]
    assert ppo.lines[0].get_xdata().tolist() == pytest.approx([0.2, 0.3, 0.4], abs=0.02)
    (line,) = [line for line in paper.get_lines() if line.get_label() == "ppo"]
    scores: Any = line.get_ydata()
    assert scores.tolist() == [-0.097, 0.176, -0.011, -0.678, -1.018, -1.786]


def test_every_figure_that_the_runs_allow_can_be_drawn(study: Study) -> None:
    found = {picture.name: picture for picture in pictures(study, "paper")}
    assert set(found) == {
        "learning-curves",
        "learning-curves-by-setup",
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
    figure = found["minibatch-ratios-mber_l2_clip0.2_m64"].draw()
    lines: Any = figure.axes[0].get_lines()
    assert lines[-1].get_ydata() == pytest.approx(np.full(10, 1.05))
    for name in ("learning-curves-by-setup", "active-batches-by-setup", "ratio-by-age-amber"):
        assert found[name].draw().axes


def test_two_settings_are_not_a_sweep(tmp_path: Path) -> None:
    for clip in (0.3, 0.4):
        write_run(tmp_path, "ppo", name=str(clip), clip_epsilon=clip)
    names = [picture.name for picture in pictures(read_study([tmp_path]), "paper")]
    assert "scores-over-clip-range" not in names
    assert "learning-curves" in names
