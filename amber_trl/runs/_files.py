"""A table that is written row by row."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


class Table:
    """A CSV file with frames in its first column; the first row determines the columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: TextIO = path.open("a+", newline="", encoding="utf-8")
        self._writer = csv.writer(self.file, lineterminator="\n")
        self._columns: tuple[str, ...] = ()

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Writes rows and flushes them to the operating system, so that a kill loses none."""
        for row in rows:
            if not self._columns:
                self.start(*row)
            if self._columns != tuple(row):
                raise ValueError(
                    f"row of columns {list(row)} given to {self.path.name}, whose columns are "
                    f"{list(self._columns)}: give every row the same columns in the same order, "
                    "None for a missing value"
                )
            cells = [v.item() if hasattr(v, "item") else v for v in row.values()]
            self._writer.writerow([int(v) if isinstance(v, bool) else v for v in cells])
        self.file.flush()

    def start(self, *columns: str) -> None:
        """Writes the header."""
        self._columns = columns
        self._writer.writerow(columns)

    def rows(self) -> list[list[str]]:
        """The cells of each row, as text."""
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))[1:]

    def rewind(self, frames: int) -> int:
        """Removes the rows of later frames; returns the frame of the last remaining row.

        A row cut off by a crash counts as later.
        """
        with self.path.open("rb") as file:
            header = file.readline()
            kept, last = len(header), 0
            for line in file:
                frame = line.partition(b",")[0]
                if not (line.endswith(b"\n") and frame.isdigit() and int(frame) <= frames):
                    break
                kept, last = kept + len(line), int(frame)
        self.file.truncate(kept)
        self._columns = tuple(header.decode().strip().split(",")) if header else ()
        return last

    def sync(self) -> None:
        """Flushes all rows to the disk."""
        os.fsync(self.file.fileno())
