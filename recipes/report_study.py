"""Write the results page of a study: results.md, its tables as CSV, and its figures.

    python recipes/report_study.py docs/data/study --out docs

The study is a folder of run directories as reproduce_paper.py leaves them, at any depth, also in zip
archives. Setup, task, protocol and seed of a run come from its config.json. Runs of the main recipe
with a different option are setups of their own, such as `ppo_gamma=0.9`, and so are runs of other
recipes. A comparison uses all runs on the tasks that all of its setups have; the page lists the runs
left out. The same runs give the same bytes. Needs matplotlib and pandas.

If the study has a notes.md, the page begins with its first paragraph, then the first figure, then the
rest of the notes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import tyro
from tyro.conf import Positional

from amber_trl._terminal import say

try:
    from matplotlib import style
    from study.figures import pictures
    from study.read import Study, read_study
    from study.results import Tables, of_the_paper, paragraphs

    from amber_trl.evaluation._drawing import save
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}: pip install matplotlib pandas")

_HOW_TO_READ = """\
## How to read this page

`python recipes/report_study.py` makes this page from the files of the runs. The folder `tables/` has \
the numbers behind every table. The paper is Han & Sung, \
[arXiv 1710.04423](https://arxiv.org/abs/1710.04423): ten seeds, one environment, time limits terminal.

Intervals are 95 % bootstrap intervals over seeds, resampled within each task (100 000 resamples with a \
fixed seed; 4 000 for average normalised scores and for bands in figures), with percentiles expanded for few seeds \
(Hesterberg, [arXiv 1411.5279](https://arxiv.org/abs/1411.5279)). Another resampling would move their \
ends by about one per cent of their width. P is the probability that a run of the setup named first scores above a run \
of the other; ties count half. The paper's P is what its means and deviations imply for Gaussian scores.

With few seeds, the interval of a single task is too narrow. If scores are Gaussian, it covers the mean in \
75 % of cases with three seeds, 87 % with four, 92 % with five and 95 % with ten. It covers the mean less \
often if some seeds learn a task and others do not. Read intervals of fewer than five seeds as ranges. With \
five Gaussian seeds each, the interval of a difference excludes 0 by chance on one task in seventeen if both \
setups spread alike, and on one in ten if they do not."""


def write_report(study: Path, out: Path) -> Path:
    """Writes the page with its tables and figures, and returns its path.

    Files from an earlier report that this one does not write are reported.

    Raises:
        FileNotFoundError: if the folder holds no run.
        RunError: as :func:`read_study` raises it.
    """
    read = read_study([study])
    made: set[Path] = set()
    for folder in ("tables", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    with style.context("default", after_reset=True):  # independent of the user's settings
        text = "\n\n".join(_page(read, study, out, made)) + "\n"
    (page := out / "results.md").write_text(text, encoding="utf-8")
    for file in sorted({*out.glob("tables/*.csv"), *out.glob("figures/*.png")} - made):
        sys.stderr.write(f"{file} is not part of this report; remove it if it is out of date\n")
    return page


def _page(read: Study, study: Path, out: Path, made: set[Path]) -> Iterator[str]:
    """The paragraphs of the page; also writes the tables and figures."""
    yield "# Results"
    bodies = [part for protocol in read.versions for part in _protocol(read, protocol, out, made)]
    first = next((part for part in bodies if part.startswith("!")), None)
    notes = study / "notes.md"
    opening, _, rest = (notes.read_text("utf-8") if notes.exists() else "").partition("\n\n")
    yield from filter(None, (opening.strip(), first, rest.strip()))
    yield from of_the_paper(read)
    yield _HOW_TO_READ
    yield from (part for part in bodies if part is not first)
    if read.left_out:
        yield "## Left out"
        yield "\n".join(f"- {words}" for words in read.left_out)
    paths = [Path(path).relative_to(study) for path in read.runs["path"]]
    file = out / "tables" / "runs.csv"
    made.add(file)
    read.runs.assign(path=paths).to_csv(file, index=False)


def _protocol(read: Study, protocol: str, out: Path, made: set[Path]) -> Iterator[str]:
    tables: Tables = {}
    yield f"## Protocol `{protocol}`"
    yield from paragraphs(read, protocol, tables)
    for name, table in tables.items():
        file = out / "tables" / f"{protocol}-{_word(name)}.csv"
        made.add(file)
        table.to_csv(file, index=False, float_format="%.10g")  # the same on every machine
    for picture in pictures(read, protocol):
        file = save(picture.draw(), out / "figures" / f"{protocol}-{_word(picture.name)}.png")
        made.add(file)
        yield f"![{picture.caption}](figures/{file.name})\n\n*{picture.caption}*"


def _word(name: str) -> str:
    """A setup's name as part of a file name; option values may hold any character."""
    return re.sub(r"[^\w.=-]+", "_", name)


def main(study: Positional[Path], out: Path) -> None:
    """Runs the command line.

    Args:
        study: folder that holds the runs.
        out: folder for results.md, tables/ and figures/.
    """
    try:
        say(str(write_report(study, out)))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
