"""A whole input in memory: typed frames of its events, the lines that may serve as evidence, and what was lost.

The texts of many lines, by source and line: packed, because statistics lines are all alike and few are ever shown.

A span of time cut out of frames: what `--since` and `--until` leave of a log that was read as a whole.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

from logscope.evidence.finding import Evidence
from logscope.log.kept_rows import AnalysisRows
from logscope.log.span import Reading, Span, Wanted
from logscope.log.span_on_disk import read_span
from logscope.log.stored_rows import StoredRows
from parsers.reading.by_line import Keep
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk import read_frames
from parsers.records.dates import to_epoch_us

__all__ = ["EVIDENCE_FAMILIES", "SETUP_FAMILIES", "LineTexts", "LogFrames", "read", "read_log", "within_span"]

_ALL = Span()
_PACK = 512
"""So many lines are packed together, and unpacked to find one of them."""

Key = tuple[str, int]


@dataclass(slots=True)
class _OfSource:
    """One source's lines. `packs` hold texts joined by line feeds, `lines` their numbers, `first` the first of each pack.

    `loose` are lines behind those that are packed; `late` are lines before the last of them, which came after it.
    """

    first: list[int] = field(default_factory=list)
    lines: list[array[int]] = field(default_factory=list)
    packs: list[bytes] = field(default_factory=list)
    loose: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)

    def add(self, line: int, text: str) -> None:
        """Take a line."""
        if (self.lines and line <= self.lines[-1][-1]) or "\n" in text:
            self.late[line] = text
            return
        self.loose[line] = text
        self.late.pop(line, None)
        if len(self.loose) >= _PACK:
            self._pack()

    def get(self, line: int) -> str | None:
        """A line's text, None where it is not here."""
        if (late := self.late.get(line)) is not None:
            return late
        if (loose := self.loose.get(line)) is not None:
            return loose
        pack = bisect_right(self.first, line) - 1
        if pack < 0:
            return None
        lines = self.lines[pack]
        at = bisect_left(lines, line)
        return self._texts(pack)[at] if at < len(lines) and lines[at] == line else None

    def items(self) -> Iterator[tuple[int, str]]:
        """All lines, each pack unpacked once."""
        for pack, lines in enumerate(self.lines):
            for line, text in zip(lines, self._texts(pack), strict=True):
                if line not in self.late:
                    yield line, text
        for line, text in self.loose.items():
            if line not in self.late:
                yield line, text
        yield from self.late.items()

    def numbers(self) -> set[int]:
        """The lines' numbers."""
        return {*self.loose, *self.late}.union(*self.lines)

    def _pack(self) -> None:
        texts = dict(sorted(self.loose.items()))
        lines = array("q", texts)
        joined = "\n".join(texts.values())
        self.first.append(lines[0])
        self.lines.append(lines)
        self.packs.append(zlib.compress(joined.encode("utf-8", "surrogatepass"), 1))
        self.loose = {}

    def _texts(self, pack: int) -> list[str]:
        return zlib.decompress(self.packs[pack]).decode("utf-8", "surrogatepass").split("\n")


class LineTexts(MutableMapping[Key, str]):
    """Maps (source, line) to the line's text, as a dict would; lines that come in order take little room."""

    def __init__(self) -> None:
        self._sources: dict[str, _OfSource] = {}

    def __setitem__(self, key: Key, text: str) -> None:
        own = self._sources.get(key[0])
        if own is None:
            own = self._sources[key[0]] = _OfSource()
        own.add(key[1], text)

    def __getitem__(self, key: Key) -> str:
        text = self._sources[key[0]].get(key[1])
        if text is None:
            raise KeyError(key)
        return text

    def __delitem__(self, key: Key) -> None:
        raise TypeError("a line that was kept stays")

    def __iter__(self) -> Iterator[Key]:
        for source, own in self._sources.items():
            yield from ((source, line) for line in own.numbers())

    def __len__(self) -> int:
        return sum(len(own.numbers()) for own in self._sources.values())

    def of_sources(self, sources: set[str]) -> LineTexts:
        """The lines of some sources."""
        found = LineTexts()
        found._sources = {s: own for s, own in self._sources.items() if s in sources}
        return found

    def take(self, other: LineTexts) -> None:
        """Take another's lines."""
        for source, own in other._sources.items():
            if source in self._sources:
                self.update(((source, line), text) for line, text in own.items())
            else:
                self._sources[source] = own


EVIDENCE_FAMILIES = frozenset(("stats", "preemption", "kv_error", "kv_sizing", "runtime", "shutdown"))
# What a server says of itself stands before any span that a user asks for, and is needed all the same.
SETUP_FAMILIES = frozenset(("startup", "kv_sizing"))


# Of the ends of tracebacks the first and the last say why a server died.
_FIRST_EXCEPTIONS, _LAST_EXCEPTIONS = 1000, 100


@dataclass(slots=True)
class LogFrames:
    """`frames` by family; `texts` maps (source, line) to a line; `exceptions` are the unexplained ends of tracebacks by (server, run).

    Of a large family `frames` has the rows that stand for all (`logscope.log.kept_rows`); those are in `stored`, unless only findings
    were wanted. Of very many exceptions the first and the last ones are kept.
    """

    frames: dict[str, pl.DataFrame]
    coverage: Coverage
    texts: LineTexts = field(default_factory=LineTexts)
    exceptions: dict[tuple[int, int], list[Evidence]] = field(default_factory=dict)
    stored: dict[str, StoredRows] = field(default_factory=dict)


def read_log(
    sources: Sequence[Any], span: Span = _ALL, *, year: int | None = None, wanted: Wanted | None = "replay"
) -> LogFrames:
    """`read`, with what a `Reading` holds."""
    return read(sources, Reading(span, year, wanted))


def read(sources: Sequence[Any], reading: Reading) -> LogFrames:
    """Read `sources` to their end; the span cuts everything but the server's own description."""
    coverage = Coverage()
    builder = FrameBuilder() if reading.wanted is None else AnalysisRows(reading.wanted)
    found = LogFrames({}, coverage)

    def line(source: str, number: int, text: str) -> None:
        found.texts[source, number] = text

    if reading.span.is_open:
        read_frames(
            sources,
            coverage,
            builder,
            year=reading.year,
            keep=Keep(exceptions=True),
            take=lambda event: _take(found, builder, event),
            evidence=line,
        )
    else:
        read_span(
            sources,
            reading,
            coverage,
            builder,
            always=SETUP_FAMILIES,
            evidence=line,
            exception=lambda event: _take(found, builder, event),
        )
    found.frames = builder.frames()
    if isinstance(builder, AnalysisRows):
        found.stored = builder.stored
    return found


def _take(found: LogFrames, builder: FrameBuilder, event: Event) -> None:
    if event.family == "exception":
        place = found.exceptions.setdefault((event.server, event.run), [])
        place.append(Evidence(event.source, event.line, event.text))
        if len(place) > 2 * _FIRST_EXCEPTIONS:
            place[_FIRST_EXCEPTIONS:] = place[-_LAST_EXCEPTIONS:]
        return
    builder.add(event)
    if event.family in EVIDENCE_FAMILIES and event.text:
        found.texts[event.source, event.line] = event.text


def within_span(data: LogFrames, span: Span) -> LogFrames:
    """What `span` holds of `data`; what the server says of itself stays, as do the counts of what was read."""
    if span.is_open:
        return data
    clocks = list(_clocks(data, span))
    known = [time for *_, time in clocks if time is not None]
    end = max(known) if known else None
    kept: list[int] = []
    marks: dict[str, list[tuple[int, datetime | None]]] = {}
    last: datetime | None = None
    for order, source, line, time in clocks:
        last = time or last
        marks.setdefault(source, []).append((line, last))
        if span.holds(last, end):
            kept.append(order)
    inside = pl.Series("order", kept, dtype=pl.Int64)
    frames = {
        family: frame if family in SETUP_FAMILIES else frame.filter(pl.col("order").is_in(inside.implode()))
        for family, frame in data.frames.items()
    }
    exceptions = {
        place: held
        for place, evidence in data.exceptions.items()
        if (held := [e for e in evidence if span.holds(_clock_at(marks, e), end)])
    }
    found = {family: frame for family, frame in frames.items() if frame.height}
    return LogFrames(_numbered(found), data.coverage, data.texts, exceptions)


def _clocks(data: LogFrames, span: Span) -> Iterator[tuple[int, str, int, datetime | None]]:
    columns = ("order", "source", "line", "time", "outer_time")
    frames = [frame.select(columns) for frame in data.frames.values()]
    if not frames:
        return
    for order, source, line, time, outer in pl.concat(frames).sort("order").iter_rows():
        outer_us = None if outer is None else to_epoch_us(outer.replace(tzinfo=None))
        yield order, source, line, span.clock(time, outer_us)


def _clock_at(marks: dict[str, list[tuple[int, datetime | None]]], evidence: Evidence) -> datetime | None:
    """The time of the last event before a line."""
    own = marks.get(evidence.source, [])
    at = bisect_right([line for line, _ in own], evidence.line)
    return own[at - 1][1] if at else None


def _numbered(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Events numbered through again."""
    if not frames:
        return frames
    orders = pl.concat([frame["order"] for frame in frames.values()]).sort()
    place = pl.DataFrame({"order": orders, "place": pl.int_range(len(orders), eager=True)})
    return {
        family: frame.join(place, on="order", how="left", maintain_order="left")
        .with_columns(pl.col("place").cast(frame.schema["order"]).alias("order"))
        .drop("place")
        for family, frame in frames.items()
    }
