"""Whether the files of one run agree with each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from amber_trl._provenance import differences
from amber_trl.evaluation.run_files import RunError, UnfinishedRunError, table_file

if TYPE_CHECKING:
    from amber_trl.evaluation.runs import Run

_LEDGER = ("importance_ratio", "staleness", "active")
_SCHEDULED = ("learning_rate", "clip_epsilon", "drop_factor")
"""Settings that ``iterations.csv`` has a column of, which begins with the configuration's value."""


def check_agreement(run: Run) -> None:
    """Refuses a run whose files do not agree with each other, or hold what no run leaves.

    Args:
        run: all of its files as they are.

    Raises:
        UnfinishedRunError: if it has fewer frames than it was to have, or no episode of it ended.
        RunError: if something does not agree; the message names the file, the row and the way out.
    """
    config, summary, episodes = run.config, run.summary, run.episodes
    frames, every = summary["frames"], config["frames_per_batch"]
    last = 0 if run.iterations.empty else run.iterations["frames"].iloc[-1]
    _check(run, "last frame of the iterations", last, frames)
    _check(run, "iterations times frames_per_batch", len(run.iterations) * every, frames)
    _check(run, "number of episodes", len(episodes), summary["episodes"])
    if frames < (total := config["total_frames"]):
        raise UnfinishedRunError(f"{run.path}: {frames} of {total} frames; finish it")
    _check(run, "frames, for that total_frames,", -(-total // every) * every, frames)
    if not len(episodes):
        raise UnfinishedRunError(
            f"{run.path}: no episode finished, so there is no score; train for longer"
        )
    _check_iterations(run)
    _check_episodes(run)
    if changed := differences(run.versions, summary["versions"]):
        raise RunError(
            f"{run.path}: versions.json and summary.json differ: {', '.join(changed)}: the run was "
            "resumed under other versions, or the files are not of one run; make it anew"
        )
    for score in ("final_score", "speed_score"):
        stated, computed = summary[score], getattr(run, score)
        if stated is None or not np.isclose(stated, computed, rtol=1e-9, atol=0):
            raise RunError(
                f"{run.path}: summary.json says {score}={stated}, its episodes give {computed}: "
                "the files are not of one run"
            )


def _check(run: Run, what: str, found: Any, stated: Any) -> None:
    if found != stated:
        raise RunError(
            f"{run.path}: {what} must be {found} by the other files, and summary.json says "
            f"{stated}: the files are not of one run; restore them, or remove the run"
        )


def _check_iterations(run: Run) -> None:
    table, every, most = run.iterations, run.config["frames_per_batch"], run.setup.num_batches
    _check_ages(run)
    frames, active = table["frames"].to_numpy(), table["active_batches"].to_numpy()
    expected = every * np.arange(1, len(table) + 1)
    for row in np.flatnonzero(frames != expected)[:1]:
        found = f"frames={frames[row]} in row {row + 1}, where {expected[row]} is due"
        _refuse_table(run, "iterations", f"{found}, as frames_per_batch={every}")
    for row in np.flatnonzero((active < 1) | (active > most))[:1]:
        found = f"active_batches={active[row]} at frame {frames[row]}"
        _refuse_table(run, "iterations", f"{found}, not from 1 to num_batches={most}")
    in_use = table[[f"active_{age}" for age in range(most)]].sum(axis=1).to_numpy()
    for row in np.flatnonzero(active != in_use)[:1]:
        found = f"active_batches={active[row]} at frame {frames[row]}"
        _refuse_table(
            run, "iterations", f"{found}, where {in_use[row]:g} batches are marked active"
        )
    _check_settings(run)
    _check_ledger(run)


def _check_ages(run: Run) -> None:
    """Refuses a ledger that has not a column of every age."""
    most = run.setup.num_batches
    ages: dict[str, set[int]] = {name: set() for name in _LEDGER}
    for column in run.iterations:
        if found := re.fullmatch(r"(.+)_(\d+)", str(column)):
            ages.setdefault(found[1], set()).add(int(found[2]))
    for name, own in ages.items():
        if lacking := sorted(set(range(most)) - own):
            what = f"no column {name}_{lacking[0]}, and num_batches={most}"
            _refuse_table(run, "iterations", what)
        if beyond := sorted(own - set(range(most))):
            what = f"a column {name}_{beyond[0]}, and num_batches={most}"
            _refuse_table(run, "iterations", what)


def _check_ledger(run: Run) -> None:
    """Refuses verdicts on batches that are not there, or that their own measurements contradict."""
    ratio, staleness, active = (_by_age(run, name) for name in _LEDGER)
    age = np.arange(run.setup.num_batches)
    stored = age < np.arange(1, len(active) + 1)[:, None]
    if run.exactness == "approximate":
        stored &= ~np.isnan(active)  # a resume may have begun with no old batches
    _refuse_cell(run, "active", np.isin(active, (0, 1)) != stored, "each stored batch is 1 or 0")
    _refuse_cell(run, "active", (age == 0) & (active != 1), "the newest batch is in use")
    # Archived tables have six significant digits.
    _refuse_cell(run, "importance_ratio", ratio < 1 - 1e-5, "R' is 1 or more")
    if run.config["staleness_metric"] == "mean_abs_deviation":
        with np.errstate(invalid="ignore"):  # inf, where a frame's ratio overflows
            apart = np.abs(ratio - 1 - staleness) > 1e-5 * np.abs(ratio)
        _refuse_cell(run, "staleness", apart, "it is R' - 1")
    if run.setup.drop_factor is not None:
        drop = run.iterations[["drop_factor"]].to_numpy(np.float64)
        over, under = staleness > drop * (1 + 1e-5), staleness < drop * (1 - 1e-5)
        wrong = ((active == 1) & over & (age > 0)) | ((active == 0) & under)
        _refuse_cell(run, "active", wrong, "the drop factor decides by staleness")


def _by_age(run: Run, name: str) -> NDArray[np.float64]:
    columns = [f"{name}_{age}" for age in range(run.setup.num_batches)]
    return run.iterations[columns].to_numpy(np.float64)


def _refuse_cell(run: Run, name: str, wrong: NDArray[np.bool_], rule: str) -> None:
    for row, age in np.argwhere(wrong)[:1]:
        value = run.iterations[f"{name}_{age}"].iloc[row]
        what = f"{name}_{age}={value:g} in row {row + 1}, where {rule}"
        _refuse_table(run, "iterations", what)


def _check_settings(run: Run) -> None:
    """Refuses a table that was made with other settings than the configuration's."""
    config, active = run.config, run.iterations["active_batches"]
    size, whole = config["minibatch_size"], pd.Series(1, active.index)
    scale, passes = (active, whole) if config["scale_minibatch"] else (whole, active)
    updates = config["epochs"] * (config["frames_per_batch"] // size) * passes
    for name, due in (("minibatch_size", size * scale), ("updates", updates)):
        if name not in run.iterations:
            _refuse_table(run, "iterations", f"no column {name}")
        for row in np.flatnonzero(run.iterations[name] != due)[:1]:
            what = f"{name}={run.iterations[name][row]} in row {row + 1}"
            _refuse_table(run, "iterations", f"{what}, where config.json means {due[row]}")
    for name in _SCHEDULED:
        if (stated := getattr(run.setup, name)) is None:
            continue
        if name not in run.iterations:
            _refuse_table(run, "iterations", f"no column {name}")
        # Archived tables have six significant digits.
        if not np.isclose(found := run.iterations[name].iloc[0], stated, rtol=1e-5, atol=0):
            what = f"{name} begins at {found:g}, and config.json says {stated:g}"
            _refuse_table(run, "iterations", what)


def _check_episodes(run: Run) -> None:
    frames, last = run.episodes["frame"].to_numpy(), run.summary["frames"]
    length, ends = run.episodes["length"].to_numpy(), run.episodes[["terminated", "truncated"]]
    if not np.isfinite(run.episodes["return"]).all():
        _refuse_table(run, "episodes", "a return that is not finite")
    for row in np.flatnonzero((frames < 1) | (frames > last))[:1]:
        found = f"frame={frames[row]} in row {row + 1}"
        _refuse_table(run, "episodes", f"{found}, not from 1 to the run's last, {last}")
    for row in np.flatnonzero(np.diff(frames) <= 0)[:1]:
        found = f"frame={frames[row + 1]} in row {row + 2} after {frames[row]}"
        _refuse_table(run, "episodes", f"{found}, where frames ascend")
    if not ends.isin([0, 1]).all(axis=None) or (ends.sum(axis=1) == 0).any():
        _refuse_table(run, "episodes", "an episode that was neither terminated nor truncated")
    # Frames are counted environment by environment in each step, and in each of these episodes
    # follow upon each other; a resume that is not exact leaves out those that were running.
    step, lane = np.divmod(frames - 1, run.config["num_envs"])
    due = (pd.Series(step) - pd.Series(step).groupby(lane).shift(fill_value=-1)).to_numpy()
    fits = length == due
    if run.exactness == "approximate":
        fits = (length >= 1) & (length <= due)
    for row in np.flatnonzero(~fits)[:1]:
        found = f"length={length[row]} in row {row + 1}"
        _refuse_table(run, "episodes", f"{found}, where its environment made {due[row]} steps")


def _refuse_table(run: Run, name: str, what: str) -> NoReturn:
    raise RunError(
        f"{table_file(run.path, name)}: {what}: the table is damaged, or of another run; restore "
        "it, or remove the run"
    )
