"""Which figures the runs of a study allow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from matplotlib.figure import Figure

from amber_trl.evaluation import drawing, figures, ledger_figures
from amber_trl.evaluation.comparisons import main_setups, pairs, swept
from amber_trl.evaluation.study import Selection, Study
from amber_trl.evaluation.tables import METRICS

_LOG = logging.getLogger(__name__)
_BAND = "Thick lines: mean over seeds, with 95 % bootstrap intervals of several; thin lines: seeds."
_SMOOTH = "Running means over ten iterations (fewer in short runs)."


class Picture(NamedTuple):
    """A figure that can be drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def pictures(study: Study, protocol: str) -> Iterator[Picture]:
    """The figures that a protocol's runs allow.

    Args:
        study: all runs.
        protocol: which of them.

    Returns:
        The figures in the order of a page.

    Raises:
        RunError: as :meth:`Study.select` says.
    """
    yield from _main(study, protocol)
    yield from _ledger(study, protocol)
    yield from _ablations(study, protocol)
    yield from _sweeps(study, protocol)


def _main(study: Study, protocol: str) -> Iterator[Picture]:
    names = main_setups(study.setups_of(protocol))
    if (main := study.select(protocol, names, all_tasks=True)) is None:
        _LOG.warning("no figure of %s: they have no task and seed in common", names)
        return
    for words in main.left_out:
        _LOG.warning("left out of the figures: %s", words)
    if _fit(main.setups, "learning curves"):
        draw = partial(figures.learning_curves, study, main)
        yield Picture("learning-curves", f"Return over training. {_BAND}", draw)
    every = list(study.setups_of(protocol))
    if len(main.setups) < len(every) and _fit(every, "learning curves of all setups"):
        if (one := _select(study, protocol, every)) is None:
            _LOG.warning("no learning curves of all of %s: they have no task in common", every)
        else:
            draw = partial(figures.learning_curves, study, one)
            yield Picture("learning-curves-by-setup", f"Return over training. {_BAND}", draw)
    for metric in METRICS if _fit(main.setups, "scores by seed") else ():
        draw = partial(figures.scores_by_seed, main, study.setups, metric)
        yield Picture(f"{metric}-scores", f"{metric.capitalize()} score of every run.", draw)


def _ledger(study: Study, protocol: str) -> Iterator[Picture]:
    amber = [name for name, setup in study.setups_of(protocol).items() if setup.method == "amber"]
    for name, names in {"": amber[:1], "-by-setup": amber}.items():
        if name and (len(names) < 2 or not _fit(names, "batches in use by setup")):
            continue
        if one := _select(study, protocol, names):
            draw = partial(ledger_figures.active_batches, study, one)
            yield Picture(f"active-batches{name}", f"Batches in use. {_BAND} {_SMOOTH}", draw)
    for name in (*amber[:1], "mber_l8"):
        if one := _select(study, protocol, [name]):
            caption = (
                f"How far stored batches are from the current policy, by age, for `{name}`: "
                f"{ledger_figures.staleness_words(study, one)}, median over seeds. "
                "AMBER uses the batches below the dashed line. " + _SMOOTH
            )
            draw = partial(ledger_figures.ratio_by_age, study, one)
            yield Picture(f"ratio-by-age-{name}", caption, draw)


def _ablations(study: Study, protocol: str) -> Iterator[Picture]:
    for better, than in pairs(study.setups_of(protocol)):
        both = f"`{better}` and `{than}`"
        if study.setups[than].ablated_from is None:
            continue
        if (one := _select(study, protocol, [better, than])) is None:
            continue
        draw = partial(figures.learning_curves, study, one)
        yield Picture(f"learning-curves-{than}", f"Return over training, {both}. {_BAND}", draw)
        if study.setups[than].scale_minibatch:
            continue
        if ledger_figures.lacks_minibatch_ratio(study, one):
            _LOG.warning("no figure of minibatch ratios of %s: not all runs logged them", both)
            continue
        caption = f"Average importance ratio of minibatches, {both}. {_BAND} {_SMOOTH}"
        draw = partial(ledger_figures.minibatch_ratios, study, one)
        yield Picture(f"minibatch-ratios-{than}", caption, draw)


def _sweeps(study: Study, protocol: str) -> Iterator[Picture]:
    setups = study.setups_of(protocol)
    for parameter, words in (("clip_epsilon", "clip range"), ("drop_factor", "drop factor")):
        names = list(chain(*swept(list(setups), setups, parameter).values()))
        # The average normalised scores of two setups are 1 and -1, whatever they scored.
        if len(names) > 2 and (one := _select(study, protocol, names)):
            caption = (
                f"Average normalised score over the {words}. Left: here, relative to "
                f"{', '.join(names)}. Right: the paper's, relative to its 35 setups."
            )
            draw = partial(figures.scores_over, one, study.setups, parameter)
            yield Picture(f"scores-over-{words.replace(' ', '-')}", caption, draw)


def _fit(names: Sequence[str], what: str) -> bool:
    """Whether there is a colour for each setup; says so where there is none."""
    if len(names) > drawing.MOST_COLORS:
        _LOG.warning(
            "no figure of %s: of %d setups no more than %d can be told apart; give fewer at a time",
            *(what, len(names), drawing.MOST_COLORS),
        )
    return len(names) <= drawing.MOST_COLORS


def _select(study: Study, protocol: str, names: Sequence[str]) -> Selection | None:
    there = study.setups_of(protocol)
    whole = bool(names) and all(name in there for name in names)
    return study.select(protocol, names) if whole else None
