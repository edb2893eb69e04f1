"""A CSV file that grows row by row, and can be taken back to where it was."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO


class Table:
    """A CSV file whose columns the first row settles."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: tuple[str, ...] | None = None
        self.file: TextIO = path.open("a+", newline="", encoding="utf-8")
        self._writer = csv.writer(self.file, lineterminator="\n")

    def sync(self) -> dict[str, Any]:
        """Puts all rows on disk, and says where they end."""
        self.flush()
        os.fsync(self.file.fileno())
        size = os.fstat(self.file.fileno()).st_size
        return {"bytes": size, "sha256": self._digest(size)}

    def check(self, position: Mapping[str, Any]) -> None:
        """Refuses a table that no longer begins with the rows it had then."""
        if self._digest(position["bytes"]) != position["sha256"]:
            raise ValueError(
                f"{self.path} does not begin with the {position['bytes']} bytes that it had when "
                "the checkpoint was written: rows are missing or were edited; restore the file, or "
                "start the run again"
            )

    def _digest(self, size: int) -> str:
        with self.path.open("rb") as file:
            return hashlib.sha256(file.read(size)).hexdigest()

    def truncate(self, position: int) -> None:
        """Forgets what comes after that many bytes."""
        self.file.truncate(position)
        self.file.seek(0)
        header = self.file.readline().rstrip("\n")
        self._columns = tuple(header.split(",")) if header else None
        self.file.seek(0, os.SEEK_END)

    def start(self, columns: Iterable[str]) -> None:
        """Writes the header."""
        self._columns = tuple(columns)
        self._writer.writerow(self._columns)

    def append(self, row: Mapping[str, int | float | None]) -> None:
        """Writes a row, of the columns that the first one had."""
        if self._columns is None:
            self.start(row)
        if self._columns != tuple(row):
            raise ValueError(
                f"row of columns {list(row)} given to {self.path.name}, whose columns are "
                f"{list(self._columns or ())}: give every row the same columns in the same "
                "order, None where there is no value"
            )
        self._writer.writerow([int(v) if isinstance(v, bool) else v for v in row.values()])

    def flush(self) -> None:
        """Hands the rows to the system, so that a kill loses none."""
        self.file.flush()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()
