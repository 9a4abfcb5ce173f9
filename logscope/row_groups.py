"""A Parquet file that grows by a row group at a time: what was written is never read or written again.

Most columns of a log's frames hold one value, or none at all, for a very long time. The pages of such a column are the same in
each row group of the same size: they are made once, and copied.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, NamedTuple

import polars as pl

from logscope.parquet_footer import (
    MAGIC,
    Footer,
    Struct,
    chunks_of,
    footer_of,
    joined_footer,
    moved_chunk,
    row_group,
)
from logscope.stacking import stacked, with_texts

__all__ = ["RowGroups"]

_LEVEL = 1  # of zstd: a tenth of the size, a third of the time of level 3
_MOST_MOULDS = 512


class _Pages(NamedTuple):
    """The bytes of some columns, and their chunks as if the bytes stood at the beginning of a file."""

    data: bytes
    chunks: list[Struct]


class RowGroups:
    """Frames of one schema, appended to a file at `path`, which is a Parquet file once `close` was called.

    A row group has `rows` rows, the last one fewer. A frame may have an `Enum` for a text column, which makes the same pages sooner.
    All methods raise OSError where the file cannot be written.
    """

    def __init__(self, path: Path, rows: int = 50_000) -> None:
        self._file: BinaryIO = path.open("wb")
        self._rows = rows
        self._held: list[pl.DataFrame] = []
        self._waiting = 0
        self._empty: Footer | None = None
        self._groups: list[Struct] = []
        self._written = 0
        self._moulds: dict[tuple[str, object], _Pages] = {}
        self._file.write(MAGIC)
        self._at = len(MAGIC)

    def append(self, frame: pl.DataFrame) -> None:
        """Take the rows of `frame`, whose columns are those of all frames before."""
        self._held.append(frame)
        self._waiting += len(frame)
        if self._waiting < self._rows:
            return
        whole = stacked(self._held)
        full = len(whole) - len(whole) % self._rows
        for at in range(0, full, self._rows):
            self._write(whole.slice(at, self._rows))
        self._held, self._waiting = [whole.slice(full)], len(whole) - full

    def close(self) -> None:
        """End the file; one that no frame was appended to is left empty of a footer, and is no Parquet file."""
        if self._held:
            self._write(stacked(self._held))
        if self._empty is not None:
            self._file.write(joined_footer(self._empty, self._groups, self._written))
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used."""
        self._file.close()

    def _write(self, frame: pl.DataFrame) -> None:
        """Write a row group."""
        if self._empty is None:
            self._empty = _footer(with_texts(frame.clear()))
        if not len(frame):
            return
        chunks: dict[str, Struct] = {}
        varied: list[str] = []
        for column in frame.get_columns():
            if len(frame) == self._rows and _is_constant(column):
                chunks[column.name] = self._copied(self._mould(column))[0]
            else:
                varied.append(column.name)
        if varied:
            pages = _pages(frame.select(varied))
            chunks.update(zip(varied, self._copied(pages), strict=True))
        in_order = [chunks[name] for name in frame.columns]
        self._groups.append(row_group(in_order, len(frame), len(self._groups)))
        self._written += len(frame)

    def _mould(self, column: pl.Series) -> _Pages:
        """The pages of a column of one value, in a row group of the usual size."""
        key = (column.name, column[0])
        if key not in self._moulds:
            if len(self._moulds) >= _MOST_MOULDS:
                self._moulds.clear()
            self._moulds[key] = _pages(column.to_frame())
        return self._moulds[key]

    def _copied(self, pages: _Pages) -> list[Struct]:
        """Write pages; gives their chunks where they stand now."""
        by = self._at - len(MAGIC)
        self._file.write(pages.data)
        self._at += len(pages.data)
        return [moved_chunk(chunk, by) for chunk in pages.chunks]


def _is_constant(column: pl.Series) -> bool:
    if column.null_count() or column.dtype.is_nested() or column.dtype.is_float():
        return column.null_count() == len(column)  # 0.0 and -0.0 are equal, and two values
    values = column.to_physical()
    return bool((values == values[0]).all())


def _pages(frame: pl.DataFrame) -> _Pages:
    part = io.BytesIO()
    frame.write_parquet(part, compression_level=_LEVEL, row_group_size=len(frame))
    with part.getbuffer() as file:
        footer = footer_of(file)
        (group,) = footer.groups
        return _Pages(bytes(file[len(MAGIC) : footer.end]), chunks_of(group))


def _footer(frame: pl.DataFrame) -> Footer:
    part = io.BytesIO()
    frame.write_parquet(part)
    return footer_of(part.getbuffer())
