"""What an envelope hands on: a payload line, and the facts of the envelope around it.

Both are named tuples: a log has millions of lines, and a tuple is built in a third of a frozen dataclass's time.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

__all__ = ["JsonRecord", "Line", "Outer"]


class Outer(NamedTuple):
    """The facts that an envelope (journal, container runtime, log shipper) gives about a line.

    `time_us` is UTC in microseconds since the epoch; an outer clock without zone is read in the
    zone given to `expand` (UTC without one), one without year gets the year nearest to the file's time.
    In nested envelopes `envelope` and each fact are the outermost's, `time_us` is the innermost's:
    the nearer to the process, the more exact.
    """

    envelope: str
    time_us: int | None = None
    host: str | None = None
    unit: str | None = None
    pod: str | None = None
    container: str | None = None
    stream: str | None = None
    pid: int | None = None

    def completed(self, other: Outer) -> Outer:
        """These facts, with the other's where there is none."""
        return Outer(
            self.envelope,
            other.time_us if self.time_us is None else self.time_us,
            self.host or other.host,
            self.unit or other.unit,
            self.pod or other.pod,
            self.container or other.container,
            self.stream or other.stream,
            other.pid if self.pid is None else self.pid,
        )


class JsonRecord(NamedTuple):
    """A record that a JSON formatter wrote: the facts that stand in a text record's prefix.

    `time` is the record's own clock, local and without zone; `logger` the dotted module name.
    """

    level: str | None
    time: datetime | None
    logger: str | None
    process: str | None
    pid: int | None
    message: str


class Line(NamedTuple):
    """One payload line: `text` without its line end, `number` the physical line (from 1) at which it starts."""

    number: int
    text: str
    outer: Outer | None = None
    record: JsonRecord | None = None
