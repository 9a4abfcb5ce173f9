"""The footer of a Parquet file: read, moved to other places in a file, and written.

A footer is a `FileMetaData` in Thrift's compact protocol (Apache Thrift, compact protocol; Apache Parquet, parquet.thrift). It is
kept as it is but for what speaks of places: what no rule here knows goes through unchanged.

A Parquet file that grows by a row group at a time: what was written is never read or written again.

Most columns of a log's frames hold one value, or none at all, for a very long time. The pages of such a column are the same in
each row group of the same size: they are made once, and copied. So are those of columns that are the same (an event's own time,
and the time at which it stands).

Why not plain Polars: chunk files, joined at the end by its streaming sink, cost half as much again. `parse --output` of 75 MB (540,000
events, two cores, three runs in turn) took 1.5 s of CPU and 185 MB; with chunks in Parquet 2.1 s and 300 MB, in Arrow's own form 2.2 s.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import polars as pl

from parsers.reading.frames import CompactFrame, Value, repeated, stacked

__all__ = ["Footer", "RowGroups", "footer_of", "joined_footer"]
MAGIC = b"PAR1"

Struct = dict[int, tuple[int, Any]]
"""Field number to type and value."""

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12,
)  # fmt: skip
_INTEGERS = (_I16, _I32, _I64)
_LONG_DELTA, _LONG_LIST = 15, 15

# parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _BYTES, _GROUP_ROWS, _GROUP_OFFSET, _COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
_CHUNK_OFFSET, _METADATA = 2, 3
_PAGE_OFFSETS = (9, 10, 11)
_INDEXES, _BLOOM_FILTER = (4, 5, 6, 7), (14, 15)
_DATA_PAGE, _DICTIONARY_PAGE = 9, 11
_PATH, _CHUNK_BYTES, _CHUNK_COMPRESSED = 3, 6, 7


@dataclass(frozen=True, slots=True)
class Footer:
    """`document` is the file's metadata; the row groups' bytes stand from byte 4 to before `end`."""

    document: Struct
    end: int

    @property
    def groups(self) -> list[Struct]:
        """The row groups."""
        return list(self.document[_ROW_GROUPS][1][1])

    @property
    def rows(self) -> int:
        """How many rows the file has."""
        return int(self.document[_NUM_ROWS][1])


def footer_of(file: bytes | memoryview) -> Footer:
    """The footer of a whole Parquet file. Raises ValueError for what is none."""
    if bytes(file[-4:]) != MAGIC:
        raise ValueError("no Parquet file")
    (size,) = struct.unpack("<I", file[-8:-4])
    end = len(file) - 8 - size
    return Footer(_Reader(bytes(file[end:-8])).struct(), end)


def chunks_of(group: Struct) -> list[Struct]:
    """The columns of a row group, which Parquet calls column chunks, without the indexes that stand apart from their pages."""
    return [_alone(chunk) for chunk in group[_COLUMNS][1][1]]


def moved_chunk(chunk: Struct, by: int) -> Struct:
    """A column chunk whose bytes stand `by` bytes further."""
    found = _shifted(chunk, (_CHUNK_OFFSET,), by)
    kind, metadata = found[_METADATA]
    found[_METADATA] = (kind, _shifted(metadata, _PAGE_OFFSETS, by))
    return found


def span_of(chunk: Struct) -> tuple[int, int]:
    """Where the pages of a column chunk begin and end in its file; the first is its dictionary, where it has one."""
    metadata = chunk[_METADATA][1]
    start = min(metadata[place][1] for place in (_DATA_PAGE, _DICTIONARY_PAGE) if place in metadata)
    return start, start + int(metadata[_CHUNK_COMPRESSED][1])


def renamed_chunk(chunk: Struct, name: str) -> Struct:
    """The chunk as that of a column with another name, which is no list."""
    kind, metadata = chunk[_METADATA]
    path = (_LIST, (_BINARY, [name.encode()]))
    return {**chunk, _METADATA: (kind, {**metadata, _PATH: path})}


def row_group(chunks: Sequence[Struct], rows: int, ordinal: int) -> Struct:
    """The file's row group `ordinal`, of these columns."""
    each = [chunk[_METADATA][1] for chunk in chunks]
    return {
        _COLUMNS: (_LIST, (_STRUCT, list(chunks))),
        _BYTES: (_I64, sum(metadata[_CHUNK_BYTES][1] for metadata in each)),
        _GROUP_ROWS: (_I64, rows),
        _GROUP_OFFSET: (_I64, min(span_of(chunk)[0] for chunk in chunks)),
        _COMPRESSED: (_I64, sum(metadata[_CHUNK_COMPRESSED][1] for metadata in each)),
        _ORDINAL: (_I16, ordinal),
    }


def joined_footer(first: Footer, groups: Sequence[Struct], rows: int) -> bytes:
    """The end of a file with the schema of `first` and these row groups: footer, its length, the mark."""
    document = dict(first.document)
    document[_NUM_ROWS] = (_I64, rows)
    document[_ROW_GROUPS] = (_LIST, (_STRUCT, list(groups)))
    out = bytearray()
    _write_struct(out, document)
    return bytes(out) + struct.pack("<I", len(out)) + MAGIC


def _alone(chunk: Struct) -> Struct:
    kind, metadata = chunk[_METADATA]
    kept = {number: value for number, value in metadata.items() if number not in _BLOOM_FILTER}
    return {number: v for number, v in chunk.items() if number not in _INDEXES} | {_METADATA: (kind, kept)}


def _shifted(fields: Struct, places: Sequence[int], by: int) -> Struct:
    """Zero stands for a place that is not told."""
    return {
        number: (kind, value + by if number in places and value else value) for number, (kind, value) in fields.items()
    }


class _Reader:
    """Reads one struct of the compact protocol."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0
        self.readers: dict[int, Callable[[], Any]] = {
            _BYTE: lambda: self.bytes(1),
            **dict.fromkeys(_INTEGERS, self.integer),
            _DOUBLE: lambda: self.bytes(8),
            _BINARY: lambda: self.bytes(self.number()),
            _LIST: self.list,
            _SET: self.list,
            _STRUCT: self.struct,
        }

    def struct(self) -> Struct:
        fields: Struct = {}
        text, number = self.text, 0
        while head := text[self.at]:
            self.at += 1
            kind, delta = head & 15, head >> 4
            number = number + delta if delta else self.integer()
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self.readers[kind]()
            fields[number] = (kind, value)
        self.at += 1
        return fields

    def list(self) -> tuple[int, list[Any]]:
        head = self.byte()
        kind, size = head & 15, head >> 4
        if size == _LONG_LIST:
            size = self.number()
        read = self.byte if kind in (_TRUE, _FALSE) else self.readers[kind]
        return kind, [read() for _ in range(size)]

    def byte(self) -> int:
        self.at += 1
        return self.text[self.at - 1]

    def bytes(self, size: int) -> bytes:
        self.at += size
        return self.text[self.at - size : self.at]

    def number(self) -> int:
        text, at = self.text, self.at
        found, shift = text[at] & 127, 7
        while text[at] & 128:
            at += 1
            found |= (text[at] & 127) << shift
            shift += 7
        self.at = at + 1
        return found

    def integer(self) -> int:
        found = self.number()
        return found >> 1 ^ -(found & 1)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        told = (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind
        delta = number - last
        if 0 < delta <= _LONG_DELTA:
            out.append(delta << 4 | told)
        else:
            out.append(told)
            _write_number(out, number << 1 ^ number >> 63)
        if kind not in (_TRUE, _FALSE):
            _write(out, kind, value)
        last = number
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _write_number(out, value << 1 if value >= 0 else ~(value << 1))
    elif kind == _BINARY:
        _write_number(out, len(value))
        out += value
    elif kind in (_LIST, _SET):
        item, values = value
        size = len(values)
        out.append(min(size, _LONG_LIST) << 4 | item)
        if size >= _LONG_LIST:
            _write_number(out, size)
        for one in values:
            if item in (_TRUE, _FALSE):
                out.append(one)
            else:
                _write(out, item, one)
    elif kind == _STRUCT:
        _write_struct(out, value)
    else:
        out += value


def _write_number(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


_LEVEL = 1  # of zstd: a tenth of the size, a third of the time of level 3
_MOST_LEVEL_PAGES = 512


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
        self._held: list[CompactFrame] = []
        self._waiting = 0
        self._groups: list[Struct] = []
        self._written = 0
        self._level_pages: dict[tuple[str, Value], _Pages] = {}
        self._file.write(MAGIC)
        self._at = len(MAGIC)

    def append(self, frame: CompactFrame) -> None:
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
        held = stacked(self._held, self._schema).whole(self._schema) if self._waiting else None
        if held is not None and not self._groups:  # the whole file is one row group, as Polars writes it
            written = io.BytesIO()  # Polars has no OSError for a disk that is full
            held.write_parquet(written, compression_level=_LEVEL, row_group_size=len(held))
            self._file.seek(0)
            self._file.write(written.getbuffer())
            self._file.close()
            return
        if held is not None:
            self._group(_pages(held), len(held))
        empty = io.BytesIO()
        pl.DataFrame(schema=dict(self._schema)).write_parquet(empty)
        self._file.write(joined_footer(footer_of(empty.getbuffer()), self._groups, self._written))
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used."""
        with suppress(OSError):  # what is in its buffer may not fit either
            self._file.close()

    def _write(self, compact: CompactFrame) -> None:
        """Write a row group of the usual size."""
        level, alike = _level_and_alike(compact.frame)
        varied = [c for c in compact.frame.get_columns() if c.name not in {**level, **alike}]
        varied += [column.categories().alias(name) for name, column in compact.coded.items()]
        made = _pages(pl.DataFrame(varied))
        made |= {name: made[earlier].named(name) for name, earlier in alike.items()}
        values = {n: level.get(n, compact.same.get(n)) for n in self._schema if n not in made}
        self._group(self._pages_of_level(values) | made, len(compact))

    def _pages_of_level(self, values: Mapping[str, Value]) -> dict[str, _Pages]:
        """The pages of columns that have one value each."""
        unknown = {name: v for name, v in values.items() if (name, v) not in self._level_pages}
        if len(self._level_pages) + len(unknown) > _MOST_LEVEL_PAGES:
            self._level_pages.clear()
            unknown = dict(values)
        made = _pages(
            pl.DataFrame(repeated(value, self._rows, self._schema[name]).alias(name) for name, value in unknown.items())
        )
        self._level_pages |= {(name, value): made[name] for name, value in unknown.items()}
        return {name: self._level_pages[name, value] for name, value in values.items()}

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
        earlier = seen.setdefault((column.dtype, first, last), column)
        if earlier is not column and earlier.equals(column):
            alike[column.name] = earlier.name
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
