"""Lines that are told by comparing bytes: the same process says the same thing in the same words, time after time.

A log has few different beginnings of records, and few different ends of access lines. Each is parsed once, and remembered from
block to block; the lines that share it are found by comparing eight bytes at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers.reading.in_bulk.block import Alphabet, Block, Mask, Rows
from parsers.reading.in_bulk.digits import STAMP_SIZE, stamps
from parsers.reading.in_bulk.prefixes import ACCESS, CLIENT_CHARS, HEADER, MAX_HEAD
from parsers.records.dates import Stamps

__all__ = ["AccessLines", "Alike", "Beginning", "Known", "Speech", "alike_in"]

_LONGEST_CLIENT = 64
_MOST_KNOWN = 64
_MOST_MISSES = 16
_FEWEST = 4  # lines alike, or it is not worth remembering
_HEADER = re.compile(HEADER.encode())
_ACCESS = re.compile(ACCESS.encode())
_VERBS = re.compile(
    rb"(?:Received|Added|Aborted|Finished) request |(?:Engine \d{1,9}: )?(?:Iteration\(|Avg prompt throughput: )"
)
_CLIENT = Alphabet(CLIENT_CHARS)


class Beginning(NamedTuple):
    """What records alike begin with: `before` the stamp and `after` it, as far as the first words of the message.

    `message` is where in the line the message begins, `verb` those first words.
    """

    before: bytes
    after: bytes
    process: str | None
    pid: int | None
    level: str
    origin: str
    message: int
    verb: str

    @property
    def size(self) -> int:
        """How many bytes all of them share, the stamp included."""
        return len(self.before) + STAMP_SIZE + len(self.after)


class AccessEnd(NamedTuple):
    """What follows the client in access lines alike."""

    text: bytes
    method: str
    path: str
    status: int


class AccessHead(NamedTuple):
    """What stands before the client, and the ends seen with it."""

    text: bytes
    process: str | None
    pid: int | None
    ends: list[AccessEnd]


@dataclass(slots=True)
class Known:
    """The beginnings and ends seen so far in a source: the records' by what stands before the stamp."""

    records: dict[bytes, list[Beginning]] = field(default_factory=dict)
    access: dict[bytes, AccessHead] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        ends = sum(len(head.ends) for head in self.access.values())
        return ends + sum(map(len, self.records.values()))


class Speech(NamedTuple):
    """The lines of a block that have a beginning."""

    beginning: Beginning
    rows: Rows


class AccessLines(NamedTuple):
    """The access lines of a block that are alike but for their clients."""

    rows: Rows
    clients: pl.Series
    head: AccessHead
    end: AccessEnd


@dataclass(slots=True)
class Alike:
    """Records and access lines of a block that were found by their likeness; masks have one place a line."""

    header: Mask
    reached: Mask
    stamps: Stamps
    speeches: list[Speech] = field(default_factory=list)
    access: list[AccessLines] = field(default_factory=list)


def alike_in(block: Block, known: Known) -> Alike:
    """Find the lines that begin alike; what is seen for the first time is added to `known`."""
    count = len(block)
    found = Alike(np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.int64))
    todo: Rows = np.arange(count)
    for before, beginnings in known.records.items():
        todo = _records(found, block, todo, before, beginnings)
    for head in known.access.values():
        todo = _accesses(found, block, todo, head)
    misses = 0
    while len(todo) and misses < _MOST_MISSES and known.count < _MOST_KNOWN:
        row = int(todo[len(todo) // 2])  # what is common stands in the middle too
        left = _learned(found, block, todo, row, known)
        misses += len(todo) - len(left) < _FEWEST
        todo = left[left != row]
    return found


def _learned(found: Alike, block: Block, todo: Rows, row: int, known: Known) -> Rows:
    """What is left of the lines without those that are like line `row`."""
    line = block.line(row)
    access = _ACCESS.match(line)
    if access is not None:
        text, process, pid = access["head"], access["process"], access["pid"]
        end = AccessEnd(
            line[access.end("client") :],
            access["method"].decode(),
            access["path"].decode(),
            int(access["status"]),
        )
        name, number = process.decode() if process else None, int(pid) if pid else None
        left = _accesses(found, block, todo, AccessHead(text, name, number, [end]))
        if len(todo) - len(left) >= _FEWEST:
            known.access.setdefault(text, AccessHead(text, name, number, [])).ends.append(end)
        return left
    beginning = _beginning_of(line)
    if beginning is None:
        return todo
    left = _records(found, block, todo, beginning.before, [beginning])
    if len(todo) - len(left) >= _FEWEST:
        known.records.setdefault(beginning.before, []).append(beginning)
    return left


def _beginning_of(line: bytes) -> Beginning | None:
    header = _HEADER.match(line)
    verb = _VERBS.match(line, header.end("head")) if header else None
    if header is None or verb is None or verb.end() > MAX_HEAD:
        return None
    process, pid, origin = (
        header["process"],
        header["pid"],
        header["origin"] or header["origin_old"],
    )
    return Beginning(
        before=line[: header.start("stamp")],
        after=line[header.end("stamp") : verb.end()],
        process=process.decode() if process else None,
        pid=int(pid) if pid else None,
        level=header["level"].decode(),
        origin=origin.decode(),
        message=header.end("head"),
        verb=verb[0].decode(),
    )


def _records(
    found: Alike, block: Block, todo: Rows, before: bytes, beginnings: list[Beginning]
) -> Rows:
    """Take the records with these beginnings; gives the lines that have none of them."""
    starts = block.starts[todo]
    rows = todo[block.equal(starts, before)]
    if not len(rows):
        return todo
    moments, good = stamps(block, block.starts[rows] + len(before))
    rows, moments = rows[good], moments[good]
    for beginning in beginnings:
        places = block.starts[rows]
        same = block.equal(places + (len(before) + STAMP_SIZE), beginning.after)
        same &= block.ends[rows] > places + beginning.size
        if not same.any():
            continue
        mine = rows[same]
        found.header[mine] = True
        found.stamps[mine] = moments[same]
        found.speeches.append(Speech(beginning, mine))
        rows, moments = rows[~same], moments[~same]
        if not len(rows):
            break
    return todo[~found.header[todo]]


def _accesses(found: Alike, block: Block, todo: Rows, head: AccessHead) -> Rows:
    """Take the access lines with this head and its ends; gives the lines that are none of them."""
    rows = todo[block.equal(block.starts[todo], head.text)]
    for end in head.ends:
        if not len(rows):
            break
        places = block.starts[rows] + len(head.text)
        sizes = block.ends[rows] - len(end.text) - places
        same = (sizes > 0) & (sizes <= _LONGEST_CLIENT)
        same[same] = block.equal((places + sizes)[same], end.text)
        good, clients = block.strings(places[same], sizes[same], _CLIENT)
        mine = rows[same]
        if not good.all():
            mine, clients = mine[good], clients.filter(pl.Series(good))
        if len(mine):
            found.reached[mine] = True
            found.access.append(AccessLines(mine, clients, head, end))
        rows = rows[~same]
    return todo[~found.reached[todo]]
