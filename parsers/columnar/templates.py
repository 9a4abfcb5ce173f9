"""Lines that are told by comparing bytes: the same process says the same thing in the same words, time after time.

A block has few different beginnings of records, and few different ends of access lines. Each is parsed once; the lines that
share it are found by comparing eight bytes at a time, and only what lies between is looked at line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.clock import Stamps
from parsers.columnar.column import Mask, Rows
from parsers.columnar.prefixes import ACCESS, CLIENT, HEADER

__all__ = ["Alike", "alike_in"]

_WIDTH = 128  # bytes of a line's beginning that are compared
_MOST_TEMPLATES = 64
_MOST_MISSES = 16
_FEWEST = 8  # lines alike: the dearer way costs less for fewer
_HEADER = re.compile(HEADER.encode())
_ACCESS = re.compile(ACCESS.encode())
_VERBS = re.compile(
    rb"(?:Received|Added|Aborted|Finished) request |(?:Engine \d{1,9}: )?(?:Iteration\(|Avg prompt throughput: )"
)
_DIGITS = [0, 1, 3, 4, 6, 7, 9, 10, 12, 13]
# Least and most of month, day, hour, minute, second.
_LEAST, _MOST = np.array([1, 1, 0, 0, 0]), np.array([12, 31, 23, 59, 60])


@dataclass(slots=True)
class Alike:
    """Records and access lines of a block that were found by their likeness; masks have one place a line.

    `records` maps what a message begins with (`Added request `) to frames with `row`, `process`, `pid`, `level`,
    `origin`, `line`, `start` (where in the line the message begins); `access` are access lines with their parts.
    """

    header: Mask
    reached: Mask
    stamps: Stamps
    records: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    access: list[pl.DataFrame] = field(default_factory=list)


class _Bytes:
    """A block's bytes, the places of its lines, and comparison of many lines at once.

    `heads` has the first `_WIDTH` bytes from each line's beginning on side by side: each line is fetched from memory once.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        padded = data + bytes(_WIDTH + 8)
        shape = (len(padded) - 7,)
        self.words: NDArray[np.uint64] = np.ndarray(shape, "<u8", padded, strides=(1,))
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        self.ends = ends
        self.starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
        heads = np.ndarray((len(data),), f"V{_WIDTH}", padded, strides=(1,))[self.starts]
        self.heads: NDArray[np.uint8] = heads.view(np.uint8).reshape(len(ends), _WIDTH)

    def line(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]]

    def begin_with(self, rows: Rows, text: bytes, at: int = 0) -> Rows:
        """Those of `rows` where `text` stands `at` bytes after the line's beginning."""
        count = len(self.heads)
        for part, want, mask in _parts(text):
            column: NDArray[np.uint64] = np.ndarray(
                (count,), "<u8", self.heads, offset=at + part, strides=(_WIDTH,)
            )
            rows = rows[(column[rows] & mask) == want]
        return rows

    def end_with(self, rows: Rows, text: bytes) -> Rows:
        """Those of `rows`, none shorter than `text`, that end with it."""
        for part, want, mask in _parts(text):
            places = self.ends[rows] + (part - len(text))
            rows = rows[(self.words[places] & mask) == want]
        return rows

    def stamps(self, rows: Rows, at: int) -> tuple[Stamps, Mask]:
        """The stamps `at` bytes after the lines' beginnings, and which of them are stamps."""
        text = self.heads[rows, at : at + 14]
        digits = text[:, _DIGITS] - np.uint8(48)
        good = (digits <= 9).all(axis=1)
        for place, mark in ((2, b"-"), (5, b" "), (8, b":"), (11, b":")):
            good &= text[:, place] == mark[0]
        stamps = digits[:, ::2].astype(np.int64) * 10 + digits[:, 1::2]
        good &= ((stamps >= _LEAST) & (stamps <= _MOST)).all(axis=1)
        return stamps, good


def _parts(text: bytes) -> Iterator[tuple[int, np.uint64, np.uint64]]:
    """A text as words of eight bytes, each with its place and the mask of the bytes that count."""
    for at in range(0, len(text), 8):
        part = text[at : at + 8]
        mask = (1 << 8 * len(part)) - 1
        yield at, np.uint64(int.from_bytes(part, "little")), np.uint64(mask)


def alike_in(data: bytes, lines: pl.Series) -> Alike:
    """Find the lines of `data` (`lines` are the same lines) that begin alike."""
    block = _Bytes(data)
    count = len(lines)
    found = Alike(
        np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros((count, 5), np.int64)
    )
    todo, misses = np.arange(count), 0
    while len(todo) and misses < _MOST_MISSES:
        row = int(todo[len(todo) // 2])  # what is common stands in the middle too
        line = block.line(row)
        access = _ACCESS.match(line)
        header = None if access else _HEADER.match(line)
        verb = header and _VERBS.match(line, header.end("head"))
        if access:
            rows = block.begin_with(todo, line[: access.end("head")])
            _accesses(found, block, lines, rows, access)
        elif header and verb and verb.end() <= _WIDTH - 8:
            rows = _records(found, block, lines, todo, header, verb)
        else:
            rows = todo[:0]
        misses += len(rows) < _FEWEST
        left = np.zeros(count, np.bool_)
        left[todo] = True
        left[rows] = False
        left[row] = False
        todo = np.flatnonzero(left)
    return found


def _records(
    found: Alike,
    block: _Bytes,
    lines: pl.Series,
    todo: Rows,
    header: re.Match[bytes],
    verb: re.Match[bytes],
) -> Rows:
    """The records that have the header's parts but for the stamp, and begin with the same words."""
    line = header.string
    before, after, upto = header.start("stamp"), header.end("stamp"), verb.end()
    rows = block.begin_with(todo, line[:before])
    rows = block.begin_with(rows, line[after:upto], after)
    stamps, good = block.stamps(rows, before)
    good &= block.ends[rows] > block.starts[rows] + upto
    rows, stamps = rows[good], stamps[good]
    origin = header["origin"] or header["origin_old"]
    process, pid = header["process"], header["pid"]
    table = pl.DataFrame({"row": rows, "line": _at(lines, rows)}).select(
        pl.col("row"),
        pl.lit(process and process.decode()).cast(pl.String()).alias("process"),
        pl.lit(pid and int(pid)).cast(pl.Int64()).alias("pid"),
        pl.lit(header["level"].decode()).alias("level"),
        pl.lit(origin.decode()).alias("origin"),
        pl.col("line"),
        pl.lit(header.end("head"), pl.Int64()).alias("start"),
    )
    found.header[rows] = True
    found.stamps[rows] = stamps
    found.records.setdefault(verb[0].decode(), []).append(table)
    return rows


def _accesses(
    found: Alike, block: _Bytes, lines: pl.Series, rows: Rows, first: re.Match[bytes]
) -> None:
    """The access lines among lines that begin alike, by what follows the client's address."""
    process, pid, head = first["process"], first["pid"], first.end("head")
    todo = rows
    for _ in range(_MOST_TEMPLATES):
        if not len(todo):
            return
        access = _ACCESS.match(block.line(int(todo[0])))
        if access is None or access.end("head") != head:
            todo = todo[1:]
            continue
        tail = access.string[access.end("client") :]
        sizes = block.ends - block.starts - len(tail) - head
        rows = block.end_with(todo[sizes[todo] > 0], tail)
        table = pl.DataFrame(
            {
                "row": rows,
                "line": _at(lines, rows),
                "size": sizes[rows],
            }
        ).select(
            pl.col("row"),
            pl.lit(process and process.decode()).cast(pl.String()).alias("process"),
            pl.lit(pid and int(pid)).cast(pl.Int64()).alias("pid"),
            pl.col("line").str.slice(head, pl.col("size")).alias("client"),
            pl.lit(access["method"].decode()).alias("method"),
            pl.lit(access["path"].decode()).alias("path"),
            pl.lit(access["status"].decode()).alias("status"),
        )
        table = table.filter(pl.col("client").str.contains(f"^{CLIENT}$"))
        taken = table["row"].to_numpy()
        found.reached[taken] = True
        found.access.append(table)
        left = np.zeros(len(block.ends), np.bool_)
        left[todo] = True
        left[rows] = False
        todo = np.flatnonzero(left)


def _at(lines: pl.Series, rows: Rows) -> pl.Series:
    return lines.gather(pl.Series(rows, dtype=pl.UInt32()))
