"""Exports that come newest first (web viewers, Loki, gcloud) are turned round.

Whether a source is one is seen in its first block: nearly all changes of its clock go back. Then its entries
are written to a temporary file and read again from the end, so that memory stays bounded.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from operator import attrgetter
from typing import IO

from parsers.lines_part import JsonRecord, Line, Outer

__all__ = ["TooLargeError", "goes_back", "inner_clocks", "newest_last"]

_IN_MEMORY = 32 << 20
_LARGEST = 4 << 30
_BLOCK = 1 << 20
_FEWEST = 3  # changes of the clock that make a direction
_RECORD_CLOCK = re.compile(
    rb"^[^\n]{0,160}?(?:INFO|DEBUG|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) ", re.M
)


class TooLargeError(Exception):
    """A newest-first source is larger than the space given to turn it round."""


def goes_back(clocks: Sequence[int] | Sequence[bytes]) -> bool:
    """Whether a series of times falls: at least three falls, and ten for each rise."""
    falls = rises = 0
    for before, after in pairwise(clocks):
        falls += after < before  # type: ignore[operator]
        rises += after > before  # type: ignore[operator]
    return falls >= _FEWEST and falls >= 10 * rises


def inner_clocks(data: bytes) -> list[bytes]:
    """The records' own clocks (`MM-DD HH:MM:SS`, which sorts as text) in plain text."""
    return _RECORD_CLOCK.findall(data)


def newest_last(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of all entries from the last entry to the first; the lines within an entry keep their order.

    Raises `TooLargeError` when they take more than 4 GiB.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        for _, entry in groupby(lines, key=attrgetter("number")):
            spool.write(json.dumps([_packed(line) for line in entry]).encode() + b"\n")
            if spool.tell() > _LARGEST:
                raise TooLargeError
        for packed in _backwards(spool):
            yield from map(_unpacked, json.loads(packed))


def _packed(line: Line) -> list[object]:
    record = line.record and [line.record.time and line.record.time.isoformat(), *line.record]
    return [line.number, line.text, line.outer, record and [*record[:2], None, *record[3:]]]


def _unpacked(values: list[list[object]]) -> Line:
    number, text, outer, record = values
    stamp = record[0] if record else None
    return Line(
        number,  # type: ignore[arg-type]
        text,  # type: ignore[arg-type]
        Outer(*outer) if outer else None,  # type: ignore[arg-type]
        JsonRecord(*record[1:])._replace(  # type: ignore[arg-type]
            time=datetime.fromisoformat(stamp) if isinstance(stamp, str) else None
        )
        if record
        else None,
    )


def _backwards(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file from the last to the first."""
    at = file.seek(0, 2)
    rest = b""
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        first, *others = (file.read(size) + rest).split(b"\n")
        yield from (line for line in reversed(others) if line)
        rest = first
    if rest:
        yield rest
