"""The page's figures, and which of them the runs allow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study.figures import pictures, scores_by_seed, scores_over
from study.read import Selection, Study, read_study

from tests.recipes.study.runs import write_run


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("study")
    changes: list[tuple[str, dict[str, Any]]] = [
        *(("ppo", {"clip_epsilon": clip}) for clip in (0.2, 0.4)),
        ("mber", {"clip_epsilon": 0.2}),
        ("mber", {"clip_epsilon": 0.2, "scale_minibatch": False}),
    ]
    for task in ("BipedalWalkerHardcore-v3", "Pendulum-v1"):
        for seed in (0, 1):
            for setup, level in (("ppo", 1.0), ("amber", 5.0), ("mber", 2.0)):
                write_run(folder, setup, seed, level=level + 2 * seed, task=task)
            for setup, config in changes:
                name = f"{task}/{setup}-{config}-{seed}"
                write_run(folder, setup, seed, task=task, name=name, **config)
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


def test_ablations_and_sweeps_have_their_figures(study: Study) -> None:
    found = {picture.name: picture for picture in pictures(study, "paper")}
    assert found["learning-curves-minibatch"].draw().axes
    assert found["scores-over-clip-range"].draw().axes
    assert {"learning-curves-episodic", "learning-curves-clip"} < found.keys()
    assert "learning-curves-by-setup" not in found  # each setup is of a part
    for words, kept in (
        ("64-frames", "mber_l2_clip0.2_m64"),
        ("64-frames-per-batch", "mber_l2_clip0.2"),
    ):
        figure = found[f"minibatch-ratios-{words}"].draw()
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ppo_clip0.2", kept]
        lines: Any = figure.axes[0].get_lines()
        assert lines[-1].get_ydata() == pytest.approx(np.full(10, 1.05))


def test_two_settings_are_not_a_sweep(tmp_path: Path) -> None:
    for clip in (0.3, 0.4):
        write_run(tmp_path, "ppo", name=str(clip), clip_epsilon=clip)
    names = [picture.name for picture in pictures(read_study([tmp_path]), "paper")]
    assert "scores-over-clip-range" not in names
    assert "learning-curves" in names
