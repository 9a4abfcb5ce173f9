"""A whole input in memory: typed frames of its events, the lines that may serve as evidence, and what was lost.

A span of it (`--since`, `--until`) is read in bulk and in bounded memory: all events go to the disk first, then those that the span holds
come back. Whether an event lies in the span says its own time, else that of the last event before it; where the span counts from the
log's end, that is known once everything was read.
"""

from __future__ import annotations

import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import polars as pl

from logscope.atomic_files import prefix
from logscope.evidence.finding import Evidence
from logscope.log.kept_rows import AnalysisRows
from logscope.log.span import Reading, Span, Wanted
from logscope.log.stored_rows import FrameFiles, StoredRows
from parsers.envelopes.form import zone_of
from parsers.families.stats import MOST_SAID
from parsers.reading.by_line import Keep
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import CompactFrame, FrameBuilder
from parsers.reading.in_bulk import read_frames

if TYPE_CHECKING:
    from parsers.reading.in_bulk.reader import Evidence as TakesLine

__all__ = [
    "EVIDENCE_FAMILIES",
    "SETUP_FAMILIES",
    "LineTexts",
    "LogFrames",
    "believed_log",
    "read",
    "read_log",
    "within_span",
]

_ALL = Span()

Key = tuple[str, int]


class LineTexts(MutableMapping[Key, str]):
    """Maps (source, line) to the line's text."""

    def __init__(self, sources: dict[str, dict[int, str]] | None = None) -> None:
        self._sources = sources or {}

    def __setitem__(self, key: Key, text: str) -> None:
        self._sources.setdefault(key[0], {})[key[1]] = text

    def __getitem__(self, key: Key) -> str:
        return self._sources[key[0]][key[1]]

    def __delitem__(self, key: Key) -> None:
        del self._sources[key[0]][key[1]]

    def __iter__(self) -> Iterator[Key]:
        return ((source, line) for source, lines in self._sources.items() for line in lines)

    def __len__(self) -> int:
        return sum(map(len, self._sources.values()))

    def of_sources(self, sources: set[str]) -> LineTexts:
        """The lines of some sources."""
        return LineTexts({source: lines for source, lines in self._sources.items() if source in sources})


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
        _read_span(sources, reading, coverage, builder, line, lambda event: _take(found, builder, event))
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


_TOO_LARGE = f'"({"|".join(MOST_SAID)})":'


def believed_log(data: LogFrames) -> LogFrames:
    """The log without statistics lines that say what no server can have measured; they are counted in `coverage.unbelieved`."""
    stats = data.frames.get("stats")
    if stats is None:
        return data
    said = [pl.col(n).is_between(0, most).fill_null(value=True) for n, most in MOST_SAID.items() if n in stats.columns]
    # what did not fit into its column stands there
    said.append(~pl.col("extra").str.contains(_TOO_LARGE).fill_null(value=False))
    kept = stats.filter(pl.all_horizontal(said))
    lost = stats.height - kept.height
    if not lost:
        return data
    frames = {family: kept if family == "stats" else frame for family, frame in data.frames.items()}
    coverage = replace(data.coverage, unbelieved=data.coverage.unbelieved + lost)
    return replace(data, frames={f: frame for f, frame in frames.items() if frame.height}, coverage=coverage)


def within_span(data: LogFrames, span: Span) -> LogFrames:
    """What `span` holds of `data`; what the server says of itself stays, as do the counts of what was read."""
    if span.is_open:
        return data
    builder, found = FrameBuilder(), LogFrames({}, data.coverage, data.texts)
    events = sorted({row for f in data.frames.values() for row in f.select("source", "line", "order").iter_rows()})
    exceptions = [
        _Exception(_order_before(events, held), None, (place, held))
        for place, evidence in data.exceptions.items()
        for held in evidence
    ]

    def take(exception: tuple[tuple[int, int], Evidence]) -> None:
        place, evidence = exception
        found.exceptions.setdefault(place, []).append(evidence)

    end = 1 + max((order for *_, order in events), default=-1)
    cut = _Cut(span, {family: frame.lazy() for family, frame in data.frames.items()}, builder, SETUP_FAMILIES)
    cut.read(end, sorted(exceptions, key=lambda e: e.order), take)
    found.frames = builder.frames()
    return found


def _order_before(events: Sequence[tuple[str, int, int]], evidence: Evidence) -> int:
    """The `order` behind that of the last event before a line of the same source; 0 where there is none."""
    at = bisect_right(events, (evidence.source, evidence.line, sys.maxsize)) - 1
    return events[at][2] + 1 if at >= 0 and events[at][0] == evidence.source else 0


_EVENTS = 100_000
"""So many events are looked at at a time."""

_CLOCK: dict[str, pl.DataType] = {"order": pl.Int64(), "clock": pl.Datetime("us")}


@dataclass(frozen=True, slots=True)
class _Exception:
    """The end of a traceback: it stands before the event `order`, and may have a time of its own."""

    order: int
    clock: datetime | None
    content: Any


def _read_span(
    sources: Sequence[Any],
    reading: Reading,
    coverage: Coverage,
    builder: FrameBuilder,
    evidence: TakesLine,
    exception: Callable[[Event], None],
) -> None:
    """Read `sources`, and give `builder` the events that the span holds, numbered through; what the server says of itself is held whole.

    `evidence` gets the texts of all events that have one, `exception` the ends of tracebacks within the span. Raises OSError where
    there is no room for temporary files.
    """
    exceptions: list[_Exception] = []
    with tempfile.TemporaryDirectory(prefix=prefix()) as folder, closing(FrameFiles(Path(folder))) as files:

        def take(event: Event) -> None:
            if event.family == "exception":
                exceptions.append(_Exception(files.order, reading.span.clock(event.time, event.outer_us), event))
                return
            files.add(event)
            if event.text:
                evidence(event.source, event.line, event.text)

        keep = Keep(exceptions=True)
        read_frames(sources, coverage, files, year=reading.year, keep=keep, take=take, evidence=evidence)
        scans = {Path(name).stem: pl.scan_parquet(Path(folder) / name) for name in files.finish()}
        _Cut(reading.span, scans, builder, SETUP_FAMILIES).read(files.order, exceptions, exception)


class _Cut:
    """Goes through the events in their order, and hands on those within the span."""

    def __init__(
        self, span: Span, scans: Mapping[str, pl.LazyFrame], builder: FrameBuilder, always: frozenset[str]
    ) -> None:
        self.span, self.builder, self.always = span, builder, always
        self.scans = scans
        self.since, self.until = span.bounds(self._end() if span.needs_end else None)
        self.last: datetime | None = None

    def read(self, events: int, exceptions: Sequence[_Exception], take: Callable[[Any], None]) -> None:
        """Hand on the events, of which there are so many, and the exceptions between them."""
        at = 0
        for low in range(0, events + 1, _EVENTS):
            before = self.last
            frames = {
                family: scan.filter(pl.col("order").is_between(low, low + _EVENTS, closed="left"))
                for family, scan in self.scans.items()
            }
            clocks = self._clocks(frames)
            self._hand_on(frames, clocks)
            while at < len(exceptions) and exceptions[at].order < low + _EVENTS:
                if self._holds_exception(exceptions[at], clocks, before):
                    take(exceptions[at].content)
                at += 1

    def _clocks(self, frames: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
        """Each event's time: its own, else that of the last one before it."""
        own = [frame.select("order", clock=self._clock()) for frame in frames.values()]
        clocks = pl.concat(own).collect().sort("order") if own else pl.DataFrame(schema=_CLOCK)
        clocks = clocks.with_columns(pl.col("clock").forward_fill().fill_null(pl.lit(self.last, pl.Datetime("us"))))
        if clocks.height:
            self.last = clocks["clock"][-1]
        return clocks

    def _hand_on(self, frames: Mapping[str, pl.LazyFrame], clocks: pl.DataFrame) -> None:
        held = clocks.filter(self._inside()).select("order")
        kept = {
            family: frame.collect()
            if family in self.always
            else frame.join(held.lazy(), on="order", how="semi").collect()
            for family, frame in frames.items()
        }
        kept = {family: frame for family, frame in kept.items() if frame.height}
        if not kept:
            return
        orders = pl.concat([frame["order"] for frame in kept.values()]).sort()
        first = self.builder.number(len(orders), -1, "", None)
        # Statistics lines first: others may be counted between them.
        for family in sorted(kept, key=lambda family: family != "stats"):
            frame = kept[family].sort("order")
            places = pl.Series("order", orders.search_sorted(frame["order"]), dtype=pl.Int64)
            self.builder.add_frame(family, CompactFrame(frame.with_columns(places + first)))

    def _holds_exception(self, found: _Exception, clocks: pl.DataFrame, before: datetime | None) -> bool:
        own = found.clock
        if own is None:
            place = int(clocks["order"].search_sorted(found.order)) - 1
            own = clocks["clock"][place] if place >= 0 else before
        return own is None or bool(
            (self.since is None or own >= self.since) and (self.until is None or own < self.until)
        )

    def _inside(self) -> pl.Expr:
        clock, inside = pl.col("clock"), pl.lit(value=True)
        if self.since is not None:
            inside &= clock >= pl.lit(self.since, pl.Datetime("us"))
        if self.until is not None:
            inside &= clock < pl.lit(self.until, pl.Datetime("us"))
        return inside | clock.is_null()

    def _clock(self) -> pl.Expr:
        """`Span.clock`."""
        own, outer = pl.col("time"), pl.col("outer_time")
        if self.span.zone is None:
            return own
        zone = zone_of(self.span.zone)
        if isinstance(zone, ZoneInfo):
            local = outer.dt.convert_time_zone(zone.key).dt.replace_time_zone(None)
        else:
            ahead = zone.utcoffset(None) or timedelta()
            local = outer.dt.replace_time_zone(None) + ahead
        return pl.coalesce(local, own)

    def _end(self) -> datetime | None:
        """The latest time of all events."""
        ends = [scan.select(self._clock().max()).collect().item() for scan in self.scans.values()]
        return max((end for end in ends if end is not None), default=None)
