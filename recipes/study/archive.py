"""Finished runs as small compressed files, to be published."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path

from study.grid import Job


def archive(job: Job, directory: Path) -> int:
    """Copies a finished run to ``directory/PROTOCOL/ENV_ID/SETUP-seedSEED``.

    Episodes are kept exactly, the floats of iterations to six significant digits, and the
    configuration with its run directory relative to ``directory``. The same run gives the same
    bytes. Timing, policy and log are left out.

    Args:
        job: a finished run.
        directory: of all archived runs.

    Returns:
        Bytes of the copy.

    Raises:
        FileExistsError: if another run is archived there.
        OSError: if the copy cannot be written.
    """
    source, target = job.run_dir, directory / job.name
    config = json.loads((source / "config.json").read_text()) | {"run_dir": job.name}
    files = {
        "config.json": (json.dumps(config, indent=2, allow_nan=False) + "\n").encode(),
        "versions.json": (source / "versions.json").read_bytes(),
        "episodes.csv.gz": _compressed((source / "episodes.csv").read_text()),
        "iterations.csv.gz": _compressed(_rounded((source / "iterations.csv").read_text())),
        "summary.json": (source / "summary.json").read_bytes(),
    }
    _refuse_another(target, files)
    try:
        target.mkdir(parents=True, exist_ok=True)
        # Gone first and there last, so that files of two runs are never taken for a whole one.
        (target / "summary.json").unlink(missing_ok=True)
        for name, contents in files.items():
            part = target / f"{name}.part"
            part.write_bytes(contents)
            part.replace(target / name)
    except OSError as error:
        raise OSError(
            f"archive={str(directory)!r} cannot be written ({error.strerror}: {error.filename}): "
            "see to that, or name another folder"
        ) from error
    return sum(map(len, files.values()))


def _refuse_another(target: Path, files: Mapping[str, bytes]) -> None:
    if not (target / "summary.json").exists():
        return  # the copy was cut short
    for name, contents in files.items():
        if not (target / name).exists() or (target / name).read_bytes() != contents:
            raise FileExistsError(
                f"{target} holds another run already (its {name} differs): name another archive, "
                "or remove that run from it"
            )


def _compressed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)  # no time stamp: equal contents, equal bytes


def _rounded(table: str) -> str:
    header, *rows = csv.reader(io.StringIO(table))
    rounded = io.StringIO()
    writer = csv.writer(rounded, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_six_digits(cell) for cell in row] for row in rows)
    return rounded.getvalue()


def _six_digits(cell: str) -> str:
    is_float = "." in cell or "e" in cell  # not an integer, inf or nan, nor empty
    return f"{float(cell):.6g}" if is_float else cell
