"""Events as typed Polars frames, one a family."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from parsers import families
from parsers.reading.columns import Lean
from parsers.reading.events import Event, event_row
from parsers.records.dates import from_epoch_us, to_epoch_us

__all__ = ["COMMON", "FrameBuilder", "columns_of", "fields_frame", "frames_of"]

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

CHUNK = 10_000
"""So many rows wait as Python objects (some 2 kB each) before they become a frame."""


class FrameBuilder:
    """Collects events and builds each family's frame; memory goes with the events kept, not with the log."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._done: dict[str, list[pl.DataFrame]] = {}
        self._last: dict[tuple[int, str], datetime] = {}
        self._order = 0
        self._awaited = 0

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
        row = event_row(event)
        row["order"], row["at"], row["repeated"] = self._order, at, event.repeated
        rows.append(row)
        self._order += 1
        if len(rows) >= CHUNK and not self.awaits:
            self._done.setdefault(event.family, []).append(_frame(event.family, rows))
            self._rows[event.family] = []

    @property
    def awaits(self) -> bool:
        """Whether events that were numbered are still to come as a frame: those added meanwhile may belong behind them."""
        return self._awaited > 0

    def last_us(self, server: int, source: str) -> int | None:
        """The time (microseconds since the epoch) of the last event that had one."""
        last = self._last.get((server, source))
        return None if last is None else to_epoch_us(last)

    @property
    def order(self) -> int:
        """How many events were numbered: the next one's `order`."""
        return self._order

    def go_on_from(self, order: int) -> None:
        """Number the next event so."""
        self._order = order

    def last_times(self) -> dict[tuple[int, str], int]:
        """By server and source, the time (as `last_us`) of the last event that had one."""
        return {place: to_epoch_us(last) for place, last in self._last.items()}

    def set_last(self, server: int, source: str, last_us: int) -> None:
        """Tell of an event before the first one, with its time."""
        self._last[server, source] = from_epoch_us(last_us).replace(tzinfo=None)

    def number(self, count: int, server: int, source: str, last_us: int | None) -> int:
        """Number `count` events that come as a frame, the last time among them is `last_us`; gives the first's `order`."""
        if last_us is not None:
            self._last[server, source] = from_epoch_us(last_us).replace(tzinfo=None)
        order = self._order
        self._order += count
        self._awaited += count
        return order

    def add_frame(self, family: str, lean: Lean) -> None:
        """Take numbered events of a family, in columns of `columns_of`; later than any frame before."""
        frame = self._arrived(lean).whole(columns_of(family))
        done = self._done.setdefault(family, [])
        if rows := self._rows.pop(family, None):
            done.append(_frame(family, rows))
            if rows[-1]["order"] > frame["order"][0]:
                frame = pl.concat((done.pop(), frame)).sort("order")
        done.append(frame)

    def _arrived(self, lean: Lean) -> Lean:
        """Numbered events, in their order."""
        self._awaited -= len(lean)
        order = lean.frame["order"]
        return lean if order.is_sorted() else lean.in_order(order.arg_sort())

    def families(self) -> list[str]:
        """The families of which there are events."""
        return [f for f in {**self._done, **self._rows} if self._done.get(f) or self._rows.get(f)]

    def waiting(self, family: str) -> int:
        """How many events of a family are kept here."""
        return sum(map(len, self._done.get(family, ()))) + len(self._rows.get(family, ()))

    def taken_parts(self, family: str) -> list[pl.DataFrame]:
        """The events of a family in successive frames; they are then no longer kept."""
        parts = self._done.pop(family, [])
        if rows := self._rows.pop(family, None):
            parts.append(_frame(family, rows))
        return parts

    def taken(self, family: str) -> pl.DataFrame:
        """The events of a family, which are then no longer kept."""
        parts = self.taken_parts(family)
        return pl.concat(parts) if len(parts) != 1 else parts[0]

    def frames(self) -> dict[str, pl.DataFrame]:
        """One frame a family that had an event; columns: `COMMON`, the family's schema, and `extra` (fields that the schema lacks, as JSON)."""
        return {family: self.taken(family) for family in self.families()}


def frames_of(events: Iterable[Event]) -> dict[str, pl.DataFrame]:
    """Build the frames of a finite stream of events."""
    builder = FrameBuilder()
    for event in events:
        builder.add(event)
    return builder.frames()


def columns_of(family: str) -> dict[str, pl.DataType]:
    """The columns of a family's frame: `COMMON`, its schema, `extra`."""
    schema = families.schema(family)
    own = {name: dtype for name, dtype in schema.items() if name not in COMMON}
    return {**COMMON, **own, "extra": pl.String()}


def fields_frame(family: str, fields: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """The fields of a family's matches as columns of its schema, and `extra`; one row each."""
    schema = families.schema(family)
    own = {name: dtype for name, dtype in schema.items() if name not in COMMON}
    built = []
    rests = [{k: v for k, v in row.items() if k not in own} for row in fields]
    for name, dtype in own.items():
        values = [row.get(name) for row in fields]
        if any(value is not None for value in values):
            fitted = [_fit(value, dtype) for value in values]
            for rest, value, (_, fits) in zip(rests, values, fitted, strict=True):
                if not fits:
                    rest[name] = value
            built.append(pl.Series(name, [v for v, _ in fitted], dtype=dtype, strict=False))
        else:
            built.append(pl.Series(name, values, dtype=dtype))
    extra = [json.dumps(r, default=str, ensure_ascii=False) if r else None for r in rests]
    return pl.DataFrame([*built, pl.Series("extra", extra, dtype=pl.String())])


def _frame(family: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    common = [pl.Series(name, [row[name] for row in rows], dtype=dtype, strict=False) for name, dtype in COMMON.items()]
    return pl.DataFrame(common).hstack(fields_frame(family, [row["fields"] for row in rows]))


def _fit(value: Any, dtype: pl.DataType) -> tuple[Any, bool]:
    """Bring a value to its column's type; what does not fit goes to `extra`."""
    if value is None:
        return None, True
    if isinstance(dtype, pl.String):
        return (value, True) if isinstance(value, str) else (json.dumps(value, default=str, ensure_ascii=False), True)
    if isinstance(dtype, pl.Boolean):
        return (value, True) if isinstance(value, bool) else (None, False)
    if dtype.is_integer():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) >= 2**62:
            return None, False
        return (int(value), True) if int(value) == value else (None, False)
    if dtype.is_float():
        return (
            (float(value), True) if isinstance(value, (int, float)) and not isinstance(value, bool) else (None, False)
        )
    return value, True
