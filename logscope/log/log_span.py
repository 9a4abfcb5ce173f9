"""A span of time cut out of frames: what `--since` and `--until` leave of a log that was read as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime

import polars as pl

from logscope.evidence.finding import Evidence
from logscope.log.frames import SETUP_FAMILIES, LogFrames
from logscope.log.span import Span
from parsers.records.dates import to_epoch_us

__all__ = ["within_span"]


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
        family: frame
        if family in SETUP_FAMILIES
        else frame.filter(pl.col("order").is_in(inside.implode()))
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


def _clock_at(
    marks: dict[str, list[tuple[int, datetime | None]]], evidence: Evidence
) -> datetime | None:
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
