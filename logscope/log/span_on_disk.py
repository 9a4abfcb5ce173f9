"""A span of a log, read in bulk and in bounded memory: all events go to the disk first, then those that the span holds come back.

Whether an event lies in the span says its own time, else that of the last event before it; where the span counts from the log's
end, that is known once everything was read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from logscope.atomic_files import prefix
from logscope.log.span import Reading, Span
from logscope.log.stored_rows import FrameFiles
from parsers.envelopes.stamps import zone_of
from parsers.reading.by_line import Keep
from parsers.reading.columns import Lean
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk import read_frames
from parsers.reading.in_bulk.reader import Evidence as TakesLine

__all__ = ["read_span"]

_EVENTS = 100_000
"""So many events are looked at at a time."""

_CLOCK: dict[str, pl.DataType] = {"order": pl.Int64(), "clock": pl.Datetime("us")}


@dataclass(frozen=True, slots=True)
class _Exception:
    """The end of a traceback: it stands before the event `order`."""

    order: int
    event: Event


def read_span(
    sources: Sequence[Any],
    reading: Reading,
    coverage: Coverage,
    builder: FrameBuilder,
    *,
    always: frozenset[str],
    evidence: TakesLine,
    exception: Callable[[Event], None],
) -> None:
    """Read `sources`, and give `builder` the events that the span holds, numbered through; families of `always` are held whole.

    `evidence` gets the texts of all events that have one, `exception` the ends of tracebacks within the span. Raises OSError where
    there is no room for temporary files.
    """
    exceptions: list[_Exception] = []
    with tempfile.TemporaryDirectory(prefix=prefix()) as folder, closing(FrameFiles(Path(folder))) as files:

        def take(event: Event) -> None:
            if event.family == "exception":
                exceptions.append(_Exception(files.order, event))
                return
            files.add(event)
            if event.text:
                evidence(event.source, event.line, event.text)

        keep = Keep(exceptions=True)
        read_frames(sources, coverage, files, year=reading.year, keep=keep, take=take, evidence=evidence)
        paths = {Path(name).stem: Path(folder) / name for name in files.finish()}
        _Cut(reading.span, paths, builder, always).read(files.order, exceptions, exception)


class _Cut:
    """Goes through the events in their order, and hands on those within the span."""

    def __init__(self, span: Span, paths: Mapping[str, Path], builder: FrameBuilder, always: frozenset[str]) -> None:
        self.span, self.builder, self.always = span, builder, always
        self.scans = {family: pl.scan_parquet(path) for family, path in paths.items()}
        self.since, self.until = span.bounds(self._end() if span.needs_end else None)
        self.last: datetime | None = None

    def read(self, events: int, exceptions: Sequence[_Exception], take: Callable[[Event], None]) -> None:
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
                    take(exceptions[at].event)
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
            self.builder.add_frame(family, Lean(frame.with_columns(places + first)))

    def _holds_exception(self, found: _Exception, clocks: pl.DataFrame, before: datetime | None) -> bool:
        own = self.span.clock(found.event.time, found.event.outer_us)
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
