"""A Parquet file that grows by a row group at a time: what was written is never read or written again.

Most columns of a log's frames hold one value, or none at all, for a very long time. The pages of such a column are the same in
each row group of the same size: they are made once, and copied.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import polars as pl

from logscope.parquet_footer import (
    MAGIC,
    Struct,
    chunks_of,
    footer_of,
    joined_footer,
    moved_chunk,
    row_group,
    span_of,
)
from logscope.stacking import Lean, stacked
from parsers.frames import Value, completed, repeated

__all__ = ["RowGroups"]

_LEVEL = 1  # of zstd: a tenth of the size, a third of the time of level 3
_MOST_MOULDS = 512


class _Pages(NamedTuple):
    """The bytes of a column in a row group, and its chunk as if they were the first in a file."""

    data: bytes
    chunk: Struct


class RowGroups:
    """Frames with the columns of `schema`, appended to a file at `path`, which is a Parquet file once `close` was called.

    A row group has `rows` rows, the last one fewer. A frame may have an `Enum` for a text column: that makes the same pages, sooner.
    All methods raise OSError where the file cannot be written.
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

    def append(self, frame: pl.DataFrame, same: Mapping[str, Value] = MappingProxyType({})) -> None:
        """Take the rows of `frame`; a column that it lacks has one value in all rows: that of `same`, else null."""
        self._held.append(Lean(frame, same))
        self._waiting += len(frame)
        if self._waiting < self._rows:
            return
        whole, same = stacked(self._held, self._schema)
        full = len(whole) - len(whole) % self._rows
        for at in range(0, full, self._rows):
            self._write(whole.slice(at, self._rows), same)
        self._held, self._waiting = [Lean(whole.slice(full), same)], len(whole) - full

    def close(self) -> None:
        """End the file."""
        if self._waiting:
            whole, same = stacked(self._held, self._schema)
            self._group(_pages(completed(whole, same, self._schema)), len(whole))
        empty = io.BytesIO()
        pl.DataFrame(schema=dict(self._schema)).write_parquet(empty)
        self._file.write(joined_footer(footer_of(empty.getbuffer()), self._groups, self._written))
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used."""
        self._file.close()

    def _write(self, frame: pl.DataFrame, same: Mapping[str, Value]) -> None:
        """Write a row group of the usual size."""
        level = {c.name: c[0] for c in frame.get_columns() if _is_level(c)}
        values = {name: same.get(name) for name in self._schema if name not in frame.columns}
        values |= level
        unknown = {name: v for name, v in values.items() if (name, v) not in self._moulds}
        if unknown:
            if len(self._moulds) > _MOST_MOULDS:
                self._moulds.clear()
                unknown = values
            single = pl.DataFrame(
                repeated(value, self._rows, self._schema[name]).alias(name)
                for name, value in unknown.items()
            )
            made = _pages(single)
            self._moulds |= {(name, value): made[name] for name, value in unknown.items()}
        pages = {name: self._moulds[name, value] for name, value in values.items()}
        varied = [column for column in frame.get_columns() if column.name not in level]
        self._group(pages | _pages(pl.DataFrame(varied)), len(frame))

    def _group(self, pages: Mapping[str, _Pages], rows: int) -> None:
        chunks = []
        for name in self._schema:
            data, chunk = pages[name]
            chunks.append(moved_chunk(chunk, self._at - len(MAGIC)))
            self._file.write(data)
            self._at += len(data)
        self._groups.append(row_group(chunks, rows, len(self._groups)))
        self._written += rows


def _is_level(column: pl.Series) -> bool:
    """Whether all rows have one value."""
    if column.null_count() or column.dtype.is_nested() or column.dtype.is_float():
        return column.null_count() == len(column)  # 0.0 and -0.0 are equal, and two values
    values = column.to_physical()
    return values[0] == values[-1] and bool((values == values[0]).all())


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
