"""Events as typed Polars frames, one a family.

A log's frames have some forty columns, most of them with one value in all rows of a long stretch: those, and columns of a few texts
that come again and again, are made without a value for each row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers import families
from parsers.reading.events import Event, event_row
from parsers.records.dates import from_epoch_us, to_epoch_us

__all__ = [
    "COMMON",
    "Coded",
    "CompactFrame",
    "FrameBuilder",
    "Value",
    "columns_of",
    "fields_frame",
    "frames_of",
    "repeated",
    "stacked",
]
_MOST_TEXTS = 1 << 13

Schema = Mapping[str, pl.DataType]
Value = str | int | float | bool | None
"""What all rows of a frame may have in a column."""


class Coded(NamedTuple):
    """A column of few texts: a row has the text that its code is the place of."""

    texts: Sequence[str | None]
    codes: NDArray[np.uint32]

    def series(self, dtype: pl.DataType) -> pl.Series:
        """The column, with `dtype` `String`, or an `Enum` of the texts."""
        whole: pl.Series = pl.Series(self.texts, dtype=dtype).gather(pl.Series(self.codes))
        return whole

    def categories(self) -> pl.Series:
        """The column as an `Enum`, or as text where there are too many texts."""
        texts = [text for text in self.texts if text is not None]
        return self.series(pl.Enum(texts) if len(texts) <= _MOST_TEXTS else pl.String())


@dataclass(frozen=True, slots=True)
class CompactFrame:
    """A frame: what it lacks of a schema's columns is `coded`, or has the value of `same` in all rows, else null."""

    frame: pl.DataFrame
    same: Mapping[str, Value] = field(default_factory=dict)
    coded: Mapping[str, Coded] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.frame)

    def whole(self, schema: Schema) -> pl.DataFrame:
        """The frame in all columns of `schema`; those of one value as literals, which Polars keeps once."""
        if len(self.frame.columns) == len(schema):
            return self.frame
        coded = [c.series(schema[name]).alias(name) for name, c in self.coded.items()]
        frame = self.frame.with_columns(coded)
        return frame.select(
            pl.col(name) if name in frame.columns else pl.lit(self.same.get(name), dtype).alias(name)
            for name, dtype in schema.items()
        )

    def column(self, name: str, own: Mapping[str, pl.Series], dtype: pl.DataType) -> pl.Series:
        """A column that is not coded; `own` are those of the frame."""
        if name in own:
            return own[name]
        return repeated(self.same.get(name), len(self), dtype).alias(name)

    def part(self, start: int, end: int) -> CompactFrame:
        """The rows from `start` to before `end`."""
        coded = {name: Coded(c.texts, c.codes[start:end]) for name, c in self.coded.items()}
        return CompactFrame(self.frame[start:end], self.same, coded)

    def in_order(self, order: pl.Series) -> CompactFrame:
        """The rows in another order."""
        places = order.to_numpy()
        coded = {name: Coded(c.texts, c.codes[places]) for name, c in self.coded.items()}
        return CompactFrame(self.frame[order], self.same, coded)


def repeated(value: Value, size: int, dtype: pl.DataType) -> pl.Series:
    """A column of one value."""
    column: pl.Series = _single(value, dtype).new_from_index(0, size)
    return column


@lru_cache(maxsize=1 << 10, typed=True)
def _single(value: Value, dtype: pl.DataType) -> pl.Series:
    return pl.Series([value], dtype=dtype)


def stacked(frames: Sequence[CompactFrame], schema: Schema) -> CompactFrame:
    """Frames of the columns of `schema` as one."""
    if len(frames) == 1:
        return frames[0]
    own = [compact.frame.to_dict() for compact in frames]
    varied: list[pl.Series] = []
    same: dict[str, Value] = {}
    coded: dict[str, Coded] = {}
    for name, dtype in schema.items():
        kinds = {name in columns for columns in own}
        if any(name in compact.coded for compact in frames):
            coded[name] = _coded(name, frames, own)
        elif kinds == {False} and len({compact.same.get(name) for compact in frames}) == 1:
            same[name] = frames[0].same.get(name)
        else:
            each = [compact.column(name, c, dtype) for compact, c in zip(frames, own, strict=True)]
            varied.append(pl.concat(each))
    return CompactFrame(pl.DataFrame(varied), same, coded)


def _coded(name: str, frames: Sequence[CompactFrame], own: Sequence[Mapping[str, pl.Series]]) -> Coded:
    """One list of texts for a column of all frames."""
    places: dict[str | None, int] = {}
    codes = []
    for compact, columns in zip(frames, own, strict=True):
        column = compact.coded.get(name)
        if column is None and name in columns:  # a frame of single events
            texts = columns[name].drop_nulls().unique().to_list()
            kind = pl.Enum(texts)
            physical = columns[name].cast(kind).to_physical().fill_null(len(texts))
            column = Coded([*texts, None], physical.to_numpy())
        if column is None:
            place = places.setdefault(_text(compact.same.get(name)), len(places))
            codes.append(np.full(len(compact), place, np.uint32))
        else:
            mine = [places.setdefault(text, len(places)) for text in column.texts]
            codes.append(np.array(mine, np.uint32)[column.codes])
    return Coded(list(places), np.concatenate(codes))


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


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

    def add_frame(self, family: str, compact: CompactFrame) -> None:
        """Take numbered events of a family, in columns of `columns_of`; later than any frame before."""
        frame = self._arrived(compact).whole(columns_of(family))
        done = self._done.setdefault(family, [])
        if rows := self._rows.pop(family, None):
            done.append(_frame(family, rows))
            if rows[-1]["order"] > frame["order"][0]:
                frame = pl.concat((done.pop(), frame)).sort("order")
        done.append(frame)

    def _arrived(self, compact: CompactFrame) -> CompactFrame:
        """Numbered events, in their order."""
        self._awaited -= len(compact)
        order = compact.frame["order"]
        return compact if order.is_sorted() else compact.in_order(order.arg_sort())

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
