"""A Parquet file that grows by a row group at a time: what was written is never read or written again.

Most columns of a log's frames hold one value, or none at all, for a very long time. The pages of such a column are the same in
each row group of the same size: they are made once, and copied. So are those of columns that are the same (an event's own time,
and the time at which it stands).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import polars as pl

from logscope.log.parquet import (
    MAGIC,
    Struct,
    chunks_of,
    footer_of,
    joined_footer,
    moved_chunk,
    renamed_chunk,
    row_group,
    span_of,
)
from parsers.reading.columns import Lean, Value, repeated, stacked

__all__ = ["RowGroups"]

_LEVEL = 1  # of zstd: a tenth of the size, a third of the time of level 3
_MOST_MOULDS = 512


class _Pages(NamedTuple):
    """The bytes of a column in a row group, and its chunk as if they were the first in a file."""

    data: bytes
    chunk: Struct

    def named(self, name: str) -> _Pages:
        """The same as the pages of another column."""
        return _Pages(self.data, renamed_chunk(self.chunk, name))


class RowGroups:
    """Frames with the columns of `schema`, appended to a file at `path`, which is a Parquet file once `close` was called.

    A row group has `rows` rows, the last one fewer. All methods raise OSError where the file cannot be written.
    """

    def __init__(self, path: Path, schema: Mapping[str, pl.DataType], rows: int = 50_000) -> None:
        self._file: BinaryIO = path.open("wb")
        self._schema, self._rows = schema, rows
        self._held: list[Lean] = []
        self._waiting = 0
        self._groups: list[Struct] = []
        self._written = 0
        self._moulds: dict[tuple[str, Value], _Pages] = {}
        self._file.write(MAGIC)
        self._at = len(MAGIC)

    def append(self, frame: Lean) -> None:
        """Take the rows of a frame."""
        self._held.append(frame)
        self._waiting += len(frame)
        if self._waiting < self._rows:
            return
        whole = stacked(self._held, self._schema)
        full = len(whole) - len(whole) % self._rows
        for at in range(0, full, self._rows):
            self._write(whole.part(at, at + self._rows))
        self._held, self._waiting = [whole.part(full, len(whole))], len(whole) - full

    def close(self) -> None:
        """End the file."""
        if self._waiting:
            whole = stacked(self._held, self._schema).whole(self._schema)
            self._group(_pages(whole), len(whole))
        empty = io.BytesIO()
        pl.DataFrame(schema=dict(self._schema)).write_parquet(empty)
        self._file.write(joined_footer(footer_of(empty.getbuffer()), self._groups, self._written))
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used."""
        with suppress(OSError):  # what is in its buffer may not fit either
            self._file.close()

    def _write(self, lean: Lean) -> None:
        """Write a row group of the usual size."""
        level, alike = _level_and_alike(lean.frame)
        varied = [c for c in lean.frame.get_columns() if c.name not in {**level, **alike}]
        varied += [column.categories().alias(name) for name, column in lean.coded.items()]
        made = _pages(pl.DataFrame(varied))
        made |= {name: made[twin].named(name) for name, twin in alike.items()}
        values = {n: level.get(n, lean.same.get(n)) for n in self._schema if n not in made}
        self._group(self._moulded(values) | made, len(lean))

    def _moulded(self, values: Mapping[str, Value]) -> dict[str, _Pages]:
        """The pages of columns that have one value each."""
        unknown = {name: v for name, v in values.items() if (name, v) not in self._moulds}
        if len(self._moulds) + len(unknown) > _MOST_MOULDS:
            self._moulds.clear()
            unknown = dict(values)
        made = _pages(
            pl.DataFrame(
                repeated(value, self._rows, self._schema[name]).alias(name)
                for name, value in unknown.items()
            )
        )
        self._moulds |= {(name, value): made[name] for name, value in unknown.items()}
        return {name: self._moulds[name, value] for name, value in values.items()}

    def _group(self, pages: Mapping[str, _Pages], rows: int) -> None:
        chunks = []
        for name in self._schema:
            data, chunk = pages[name]
            chunks.append(moved_chunk(chunk, self._at - len(MAGIC)))
            self._file.write(data)
            self._at += len(data)
        self._groups.append(row_group(chunks, rows, len(self._groups)))
        self._written += rows


def _level_and_alike(frame: pl.DataFrame) -> tuple[dict[str, Value], dict[str, str]]:
    """The columns that have one value in all rows, with it, and those that are the same as an earlier one, with its name."""
    level: dict[str, Value] = {}
    alike: dict[str, str] = {}
    seen: dict[tuple[object, ...], pl.Series] = {}
    for column, first, last in zip(frame, frame.row(0), frame.row(-1), strict=True):
        if column.dtype.is_nested() or column.dtype.is_float():
            continue  # 0.0 and -0.0 are equal, and two values
        if first == last and _is_level(column):
            level[column.name] = first
            continue
        twin = seen.setdefault((column.dtype, first, last), column)
        if twin is not column and twin.equals(column):
            alike[column.name] = twin.name
    return level, alike


def _is_level(column: pl.Series) -> bool:
    nulls = column.null_count()
    return nulls == len(column) if nulls else bool((column == column[0]).all())


def _pages(frame: pl.DataFrame) -> dict[str, _Pages]:
    """A frame's columns as they stand in a row group."""
    if not len(frame.columns):
        return {}
    part = io.BytesIO()
    frame.write_parquet(part, compression_level=_LEVEL, row_group_size=len(frame))
    with part.getbuffer() as file:
        (group,) = footer_of(file).groups
        pages = {}
        for name, chunk in zip(frame.columns, chunks_of(group), strict=True):
            start, end = span_of(chunk)
            pages[name] = _Pages(bytes(file[start:end]), moved_chunk(chunk, len(MAGIC) - start))
        return pages
