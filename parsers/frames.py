"""Events as typed Polars frames, one a family."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import polars as pl

from parsers import families
from parsers.clock import from_epoch_us
from parsers.events import Event

__all__ = ["COMMON", "FrameBuilder", "frames_of"]

COMMON: dict[str, pl.DataType] = {
    "order": pl.Int64(),
    "source": pl.String(),
    "line": pl.Int64(),
    "time": pl.Datetime("us"),
    "outer_time": pl.Datetime("us", "UTC"),
    "at": pl.Datetime("us"),
    "process": pl.String(),
    "pid": pl.Int64(),
    "server": pl.Int32(),
    "run": pl.Int32(),
    "engine_index": pl.Int32(),
    "level": pl.String(),
    "origin": pl.String(),
    "host": pl.String(),
    "unit": pl.String(),
    "pod": pl.String(),
    "container": pl.String(),
    "stream": pl.String(),
    "repeated": pl.Int32(),
    "variant": pl.String(),
}
"""Columns of every family: `order` counts the input's events, `time` is the record's own clock (local, no zone), `outer_time`
the envelope's; `at` is the record's own time, else that of the last record before it in the same server's stream."""

CHUNK = 50_000


class FrameBuilder:
    """Collects events and builds each family's frame; memory goes with the events kept, not with the log."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._done: dict[str, list[pl.DataFrame]] = {}
        self._last: dict[tuple[int, str], datetime] = {}
        self._order = 0

    def add(self, event: Event) -> None:
        """Take one event, in the order of the input."""
        key = (event.server, event.source)
        at = event.time
        if at is not None:
            self._last[key] = at
        else:
            at = self._last.get(key)
            if at is None and event.outer_us is not None:
                at = from_epoch_us(event.outer_us).replace(tzinfo=None)
        rows = self._rows.setdefault(event.family, [])
        rows.append(_row(event, self._order, at))
        self._order += 1
        if len(rows) >= CHUNK:
            self._done.setdefault(event.family, []).append(_frame(event.family, rows))
            self._rows[event.family] = []

    def frames(self) -> dict[str, pl.DataFrame]:
        """One frame a family that had an event; columns: `COMMON`, the family's schema, and `extra` (fields that the schema lacks, as JSON)."""
        out = {}
        for family in {**self._done, **self._rows}:
            parts = [*self._done.get(family, [])]
            if rows := self._rows.get(family):
                parts.append(_frame(family, rows))
            if parts:
                out[family] = pl.concat(parts) if len(parts) > 1 else parts[0]
        return out


def frames_of(events: Iterable[Event]) -> dict[str, pl.DataFrame]:
    """Build the frames of a finite stream of events."""
    builder = FrameBuilder()
    for event in events:
        builder.add(event)
    return builder.frames()


def _row(event: Event, order: int, at: datetime | None) -> dict[str, Any]:
    outer = (
        None if event.outer_us is None else from_epoch_us(event.outer_us).astimezone(timezone.utc)
    )
    return {
        "order": order,
        "source": event.source,
        "line": event.line,
        "time": event.time,
        "outer_time": outer,
        "at": at,
        "process": event.process,
        "pid": event.pid,
        "server": event.server,
        "run": event.run,
        "engine_index": event.engine_index,
        "level": event.level,
        "origin": event.origin,
        "host": event.host,
        "unit": event.unit,
        "pod": event.pod,
        "container": event.container,
        "stream": event.stream,
        "repeated": event.repeated,
        "variant": event.variant,
        "fields": event.fields,
    }


def _frame(family: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = families.schema(family)
    columns: dict[str, list[Any]] = {name: [] for name in (*COMMON, *schema, "extra")}
    for row in rows:
        fields = row["fields"]
        for name in COMMON:
            columns[name].append(row[name])
        rest = {k: v for k, v in fields.items() if k not in schema or k in COMMON}
        for name, dtype in schema.items():
            if name not in COMMON:
                value, fits = _fit(fields.get(name), dtype)
                columns[name].append(value)
                if not fits:
                    rest[name] = fields[name]
        columns["extra"].append(json.dumps(rest, default=str, ensure_ascii=False) if rest else None)
    types = {**{k: v for k, v in schema.items() if k not in COMMON}, **COMMON, "extra": pl.String()}
    return pl.DataFrame(
        {k: pl.Series(k, v, dtype=types[k], strict=False) for k, v in columns.items()}
    )


def _fit(value: Any, dtype: pl.DataType) -> tuple[Any, bool]:
    """Bring a value to its column's type; what does not fit goes to `extra`."""
    if value is None:
        return None, True
    if dtype == pl.String():
        return (
            (value, True)
            if isinstance(value, str)
            else (json.dumps(value, default=str, ensure_ascii=False), True)
        )
    if dtype == pl.Boolean():
        return (value, True) if isinstance(value, bool) else (None, False)
    if dtype.is_integer():
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value
            or abs(value) >= 2**62
        ):
            return None, False
        return (int(value), True) if int(value) == value else (None, False)
    if dtype.is_float():
        return (
            (float(value), True)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else (None, False)
        )
    return value, True
