"""Archives finished runs for publication: one zip per protocol and task."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from amber_trl.checkpoints.checkpoint_file import write_whole
from study.grid import Job

_FILES = ("config.json", "episodes.csv", "iterations.csv", "summary.json", "versions.json")


def archive(job: Job, directory: Path) -> None:
    """Adds a finished run to ``directory/PROTOCOL/ENV_ID.zip``, as ``SETUP-seedSEED/``.

    Episodes are stored exactly, floats of the iterations with six significant digits, and the
    configuration with the run's name as its directory. Timing, policy, log and checkpoints are left
    out. A kill or a full disk leaves the zip as it was.

    Raises:
        FileExistsError: if the zip holds another run under this name.
    """
    texts = {name: (job.run_dir / name).read_text() for name in _FILES}
    config = json.loads(texts["config.json"]) | {"run_dir": job.name}
    texts["config.json"] = json.dumps(config, indent=2, allow_nan=False) + "\n"
    texts["iterations.csv"] = _rounded(texts["iterations.csv"])
    path, folder = _place(job, directory)
    run = {f"{folder}/{name}": text.encode() for name, text in texts.items()}
    published = _read(path)
    if f"{folder}/config.json" in published:
        if differing := [name for name in run if published.get(name) != run[name]]:
            raise FileExistsError(
                f"{path} already holds another run as {folder} ({', '.join(differing)} differ): "
                "name another archive, or remove that run from it"
            )
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_zip(path, published | run)


def is_archived(job: Job, directory: Path) -> bool:
    """Whether an archive holds a run of this name."""
    path, folder = _place(job, directory)
    return path.exists() and zipfile.Path(path, f"{folder}/config.json").exists()


def write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes a zip whole or not at all; equal files give equal bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for name in sorted(files):
            member = zipfile.ZipInfo(name)  # dated 1980, not now
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            zipped.writestr(member, files[name], compresslevel=9)
    write_whole(path, content.getbuffer())


def _place(job: Job, directory: Path) -> tuple[Path, str]:
    task, _, folder = job.name.rpartition("/")
    return directory / f"{task}.zip", folder


def _read(path: Path) -> dict[str, bytes]:
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def _rounded(table: str) -> str:
    header, *rows = csv.reader(io.StringIO(table))
    rounded = io.StringIO()
    writer = csv.writer(rounded, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_six_digits(cell) for cell in row] for row in rows)
    return rounded.getvalue()


def _six_digits(cell: str) -> str:
    is_float = "." in cell or "e" in cell  # not an integer, inf, nan or empty
    return f"{float(cell):.6g}" if is_float else cell
