"""The page of results of a study, and its figures, from run directories."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EISDIR
from os import PathLike
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from amber_trl.evaluation import sections
from amber_trl.evaluation.comparisons import main_setups, pairs
from amber_trl.evaluation.gallery import pictures
from amber_trl.evaluation.references import reference_returns
from amber_trl.evaluation.run_files import RunError
from amber_trl.evaluation.study import Selection, Study, read_study

_LOG = logging.getLogger(__name__)
_NOTES = "notes.md"


def plot_runs(
    runs: Iterable[str | PathLike[str]], out: str | PathLike[str], *, partial: bool = False
) -> list[Path]:
    """Draws every figure that some training runs allow.

    Args:
        runs: run directories, or folders that hold some.
        out: folder for the figures; made if it is not there.
        partial: as for :func:`read_study`.

    Returns:
        The files, PNG.

    Raises:
        FileNotFoundError: if a path does not exist.
        RunError: as :func:`read_study` and :meth:`Study.select` say.
        OSError: if nothing can be written to ``out``.

    Examples:
        >>> from amber_trl.evaluation import plot_runs
        >>> plot_runs(["runs/halfcheetah"], "figures")  # doctest: +SKIP
    """
    study = read_study(runs, partial=partial)
    for words in study.left_out:
        _LOG.warning("left out: %s", words)
    names = []
    with _published(Path(out)) as folder:
        for protocol in study.settings:
            for picture in pictures(study, protocol):
                names.append(f"{protocol}-{picture.name}.png")
                _save(picture.draw(), folder / names[-1])
    return [Path(out, name) for name in names]


def write_report(
    study: str | PathLike[str], out: str | PathLike[str], *, partial: bool = False
) -> Path:
    """Writes the page of results of a study, with its tables and figures.

    Args:
        study: folder that holds the run directories, at any depth. The text of a ``notes.md`` in
            it comes first on the page.
        out: folder for ``results.md``, ``tables/`` and ``figures/``; made if it is not there.
            Nothing in it changes before all of them are made. What an earlier report left there,
            and this one does not make, stays, with a warning.
        partial: as for :func:`read_study`; the page lists what was left out.

    Returns:
        The page.

    Raises:
        FileNotFoundError: if the folder does not exist.
        RunError: as :func:`read_study` and :meth:`Study.select` say.
        OSError: if nothing can be written to ``out``.

    Examples:
        >>> from amber_trl.evaluation import write_report
        >>> write_report("docs/data/study", "docs")  # doctest: +SKIP
    """
    study, out = Path(study), Path(out)
    read = read_study([study], partial=partial)
    with _published(out) as folder:
        _write("\n\n".join(_page(read, study, folder)) + "\n", folder / "results.md")
        made = {file.relative_to(folder) for file in folder.rglob("*")}
    for file in sorted({*out.glob("tables/*.csv"), *out.glob("figures/*.png")}):
        if file.relative_to(out) not in made:
            _LOG.warning("%s is not of this report: remove it, if an earlier one left it", file)
    return out / "results.md"


def _page(read: Study, study: Path, folder: Path) -> Iterator[str]:
    """The paragraphs of the page; its tables and figures are written to a folder."""
    yield "# Results"
    yield _introduction()
    if (study / _NOTES).exists():
        yield _read_notes(study / _NOTES)
    for protocol in read.settings:
        tables: sections.Tables = {}
        yield f"## Protocol `{protocol}`"
        yield from _protocol(read, protocol, tables)
        for picture in pictures(read, protocol):
            file = _save(picture.draw(), folder / "figures" / f"{protocol}-{picture.name}.png")
            yield f"![{picture.caption}](figures/{file.name})"
            yield f"*{picture.caption}*"
        for name, table in tables.items():
            _write(table.to_csv(index=False), folder / "tables" / f"{protocol}-{name}.csv")
    if read.left_out:
        yield "## Left out"
        yield "\n".join(f"- {words}" for words in read.left_out)
    runs = read.runs.assign(path=[Path(path).relative_to(study) for path in read.runs["path"]])
    _write(runs.to_csv(index=False), folder / "tables" / "runs.csv")


@contextmanager
def _published(out: Path) -> Iterator[Path]:
    """A folder whose files are moved to ``out`` at the end, the page last; not after an error."""
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        making = tempfile.TemporaryDirectory(dir=out, prefix=".making-")
    # A figure is the same whatever the settings of the one who makes it.
    with making as name, style.context("default", after_reset=True):
        folder = Path(name)
        yield folder
        files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        with _writing(out):
            for file in files:
                (out / file).parent.mkdir(parents=True, exist_ok=True)
                if (out / file).is_dir():
                    raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(out / file))
            for file in sorted(files, key=lambda file: (file.name == "results.md", file)):
                (folder / file).replace(out / file)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = path if error.filename is None else error.filename
        raise OSError(
            f"{path} cannot be written ({error.strerror}: {where}): see to that, or name another "
            "folder, out=FOLDER (--out FOLDER)"
        ) from error


def _introduction() -> str:
    return (
        "Made from the runs' own files by `amber-trl report`; the numbers behind every table are "
        "in `tables/`. Intervals are 95 % bootstrap intervals over seeds, resampled within each "
        "task, with percentiles expanded for few seeds (`amber_trl.evaluation.bootstrap`). P is "
        "the probability that a run of the one setup scores above a run of the other; the paper's "
        "P is the one that its means and deviations imply for Gaussian scores. The paper is Han & Sung, "
        "[arXiv 1710.04423](https://arxiv.org/abs/1710.04423): ten seeds, one environment, time "
        "limits terminal."
    )


def _protocol(study: Study, protocol: str, tables: sections.Tables) -> Iterator[str]:
    setups = study.setups_of(protocol)
    yield from sections.what_was_run(study, protocol)
    each = [one for name in setups if (one := study.select(protocol, [name])) is not None]
    yield from sections.scores(each, setups, tables)
    if not study.departures(protocol):
        yield from sections.agreement(tables)
    yield from sections.reuse(study, protocol, tables)
    names = main_setups(setups)
    main = study.select(protocol, names, all_tasks=True)
    if main is None:
        yield f"No comparison: there is no task and seed that all of {', '.join(names)} have."
    else:
        yield from sections.aggregates(main, tables)
        yield from _left_out(main)
        for task in main.tasks:
            if task not in reference_returns().index:
                _LOG.warning("%s is in no normalised score: it has no reference returns", task)
    for better, than in pairs(setups):
        if (pair := study.select(protocol, [better, than])) is not None:
            yield f"### `{better}` against `{than}`"
            yield from _left_out(pair)
            yield from sections.improvement(pair, setups, better, than, tables)
    whole = [name for name in setups if main is not None and _has_all(study, protocol, name, main)]
    if len(whole) > 2 and (all_setups := study.select(protocol, whole)) is not None:
        yield from sections.average_normalized(all_setups, setups, tables)
        yield from _left_out(all_setups)


def _left_out(selection: Selection) -> Iterator[str]:
    if selection.left_out:
        yield f"Left out: {'; '.join(selection.left_out)}."


def _has_all(study: Study, protocol: str, name: str, main: Selection) -> bool:
    rows = study.runs[(study.runs["protocol"] == protocol) & (study.runs["setup"] == name)]
    return set(main.tasks) <= set(rows["task"])


def _read_notes(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise RunError(f"{file} is not UTF-8 ({error}): save it as such") from error


def _save(figure: Figure, path: Path) -> Path:
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Software": None})
    return path


def _write(text: str, path: Path) -> Path:
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path
