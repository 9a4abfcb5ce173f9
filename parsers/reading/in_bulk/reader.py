"""From sources to frames: blocks in bulk, and line by line where a block holds what columns cannot tell.

A log that is read on: its blocks in bulk, up to the last lines, which are left to who has to remember where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsers.lines import Line, Outer, TextBlock
from parsers.reading.by_line import SourceReader
from parsers.reading.events import Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk.block import Block, Mask
from parsers.reading.in_bulk.block_rows import BlockRows, Evidence
from parsers.reading.in_bulk.envelope_facts import EnvelopeFacts, KnownEnvelopes, joined_facts
from parsers.reading.in_bulk.messages import Memory, messages_of
from parsers.reading.in_bulk.templates import Structure, alike_in, mark_client_text, mark_cut, mark_tails, structure_of
from parsers.records.prefix import Header, parse_header, strip_ansi
from parsers.records.record import (
    Assembler,
    Assemblers,
    Record,
    continues_client_text,
    in_line_order,
    is_open,
    place_of,
)

__all__ = ["Bulk", "Evidence", "ReadOn", "SourceInBulk"]
BLOCK = 1 << 23
_FEWEST = 8  # shorter stretches are read line by line
_CHUNK = 256


class _Held(NamedTuple):
    """A block that can be read in bulk, and the facts of the envelopes that were taken off its lines."""

    block: TextBlock
    facts: EnvelopeFacts | None

    def continues(self, other: _Held) -> bool:
        """Whether both can be read as one."""
        if self.facts is None or other.facts is None:
            return self.facts is other.facts
        return self.facts.outer == other.facts.outer


class SourceInBulk:
    """Reads one source; `reader` keeps clock, servers and counts for both ways of reading."""

    def __init__(
        self,
        reader: SourceReader,
        builder: FrameBuilder,
        take: Callable[[Event], None],
        evidence: Evidence | None,
        chars: bool,
    ) -> None:
        self.reader, self.builder, self.take, self.evidence = reader, builder, take, evidence
        self.chars = chars
        self.assemblers = Assemblers(Assembler)
        self.here = self.assemblers.at(None)  # that of the place of the lines in hand
        self.memory = Memory()
        self.envelopes = KnownEnvelopes()

    def read(self, pieces: Iterator[TextBlock | list[Line]]) -> None:
        """Read the source, which comes in pieces."""
        held: list[_Held] = []  # to be read as one
        for piece in pieces:
            one = self._in_bulk(piece)
            if held and (one is None or not one.continues(held[-1])):
                held = self._read(held, more=False)
            if one is None:
                for line in piece.lines() if isinstance(piece, TextBlock) else piece:
                    self._feed(line)
                continue
            held.append(one)
            if sum(len(other.block) for other in held) >= BLOCK:
                held = self._read(held, more=True)
        self._read(held, more=False)
        for assembler in in_line_order(self.assemblers.values()):
            self._records(assembler.end())

    def _in_bulk(self, piece: TextBlock | list[Line]) -> _Held | None:
        """A piece that can be read in bulk."""
        if not isinstance(piece, TextBlock):
            return None
        if piece.envelopes is None:
            return _Held(piece, None)
        facts = self.envelopes.facts_of(piece)
        return None if facts is None else _Held(piece, facts)

    # -- line by line --------------------------------------------------------------------------------

    def _feed(self, line: Line) -> None:
        self.reader.count(line)
        self._records(self.assemblers.feed(line))

    def _records(self, records: Iterable[Record]) -> None:
        for record in records:
            for event in self.reader.events(record):
                self.take(event)

    def _is_done(self, text: str, outer: Outer | None, *, header: bool) -> bool:
        """Whether no line from `text` on belongs to what has been read line by line."""
        pending = self.here.pending
        if self.here.first or self.here.held or self.here.cut:
            return False
        if pending is None:
            return True
        if is_open(pending) or self.assemblers.waiting() is not None:
            return False
        if not header:  # an access line after an access line
            return outer is None and len(self.assemblers) == 1 and pending.header is not None
        text = strip_ansi(text)
        prefix = parse_header(text)
        return prefix is not None and not self._goes_on(prefix, text[prefix.start :], outer)

    def _goes_on(self, prefix: Header, message: str, outer: Outer | None) -> bool:
        pending = self.here.pending
        assert pending is not None
        return self.here.continues(prefix, message, outer) or continues_client_text(pending, prefix, message)

    # -- in bulk -------------------------------------------------------------------------------------

    def _read(self, held: Sequence[_Held], *, more: bool) -> list[_Held]:
        """Read successive blocks as one; where `more` follow, gives back the last record, which may go on there."""
        if not held:
            return []
        number, block = held[0].block.number, Block([one.block for one in held])
        parts = [one.facts for one in held if one.facts is not None]
        facts = joined_facts(parts) if parts else None
        self.here = self.assemblers.at(place_of(facts.outer) if facts else None)
        found = structure_of(block, alike_in(block, self.memory.lines), self.memory.lines)
        messages = messages_of(block, found, self.memory)
        # A line after a request belongs to no message, but it has the facts of the request's envelope.
        complete = messages.request if facts is None else np.zeros_like(messages.request)
        mark_client_text(found, messages.event)
        last = min(mark_tails(found, block, complete), mark_cut(found, block))
        stretch = BlockRows(self.reader, self.builder, number, block, found, messages, facts, self.take, self.memory)
        count = last if more and last else len(block)
        self._lines(stretch, count)
        stretch.hand_over(self.evidence)
        if count == len(block):
            return []
        rest = TextBlock(number + count, block.rest(count))
        return [_Held(rest, facts.part(count) if facts else None)]

    def _blocks(self, held: Sequence[TextBlock], *, more: bool) -> list[TextBlock]:
        """`_read` for blocks whose lines wore no envelopes."""
        return [one.block for one in self._read([_Held(b, None) for b in held], more=more)]

    def _lines(self, stretch: BlockRows, count: int) -> None:
        """Read the first `count` lines of a block, as many as possible in bulk."""
        block, number, found, facts = stretch.block, stretch.first, stretch.found, stretch.facts
        begins = ~found.bad & found.header
        begins[1:] |= ~found.bad[1:] & found.reached[1:] & found.reached[:-1]
        ready = np.flatnonzero(begins & _long_enough(found.bad))
        stops = np.flatnonzero(found.bad)
        at = start = 0
        chunk: list[str] = []
        while at < count:
            if not start <= at < start + len(chunk):
                chunk, start = block.written(at, min(at + _CHUNK, count)), at
            line = Line(number + at, chunk[at - start], facts.at(at) if facts else None)
            if self._may_begin(at, line, found, ready):
                self._records(self.here.end())
                place = np.searchsorted(stops, at)
                end = int(stops[place]) if place < len(stops) else count
                if stretch.read(at, end):
                    if self.chars:
                        self.reader.chars += block.width(at, end)
                    at = end
                    continue
            self._feed(line)
            at += 1

    def _may_begin(self, at: int, line: Line, found: Structure, ready: NDArray[np.int64]) -> bool:
        if found.bad[at]:
            return False
        clean = self.here.pending is None and not (self.here.held or self.here.first or self.here.cut)
        if clean and (
            at == 0 or (found.blank[at] and not found.header[:at].any())
        ):  # the blank lines that a source begins with
            return True
        place = np.searchsorted(ready, at)
        if place >= len(ready) or ready[place] != at:
            return False
        return self._is_done(line.text, line.outer, header=bool(found.header[at]))


def _long_enough(bad: Mask) -> Mask:
    """The lines after which no bad one, and not the end, comes too soon."""
    stops = np.append(np.flatnonzero(bad), len(bad))
    near = (stops[:, None] - np.arange(_FEWEST)).reshape(-1)
    long = np.ones(len(bad) + 1, np.bool_)
    long[near[near >= 0]] = False
    return long[:-1]


LEFT = 1000
"""So many lines at least are left."""

Piece = TextBlock | list[Line]


@dataclass(frozen=True, slots=True)
class Bulk:
    """Where to put what is read in bulk: frames go to `builder`, single events to `take`, texts of statistics lines to `evidence`."""

    builder: FrameBuilder
    take: Callable[[Event], None]
    evidence: Evidence


class ReadOn(SourceInBulk):
    """Takes the pieces of a source as they come, and reads what stands far enough before the newest.

    `assemblers` has that of the lines without a place (None); before the first piece the source had `before` lines.
    """

    def __init__(self, bulk: Bulk, reader: SourceReader, assemblers: Assemblers, before: int) -> None:
        super().__init__(reader, bulk.builder, bulk.take, bulk.evidence, chars=False)
        self.assemblers, self.bare = assemblers, assemblers.at(None)
        self.before = self.last_line = before
        self._waiting: list[Piece] = []
        self._held: list[TextBlock] = []

    def add(self, piece: Piece) -> None:
        """Take the next piece; its lines are numbered from the first piece's."""
        self._waiting.append(piece)
        while sum(map(_size, self._waiting[1:])) >= LEFT:
            self._take(self._waiting.pop(0))

    def rest(self) -> Iterator[Line]:
        """The lines that were left."""
        self._leave_last()
        for block in self._blocks(self._held, more=True):
            yield from TextBlock(block.number - self.before, block.data).lines()
        for piece in self._waiting:
            yield from _lines(piece)

    def _leave_last(self) -> None:
        """Of a long last piece read all but the last lines."""
        spare = sum(map(_size, self._waiting)) - LEFT
        if spare <= 0:
            return
        first = self._waiting[0]
        if not isinstance(first, TextBlock) or first.envelopes is not None:
            return
        cut = min(spare, len(first.ends))
        at = int(first.ends[cut - 1]) + 1
        rest = [TextBlock(first.number + cut, first.data[at:])] if at < len(first) else []
        self._waiting[:1] = rest
        self._take(TextBlock(first.number, first.data[:at]))

    def _take(self, piece: Piece) -> None:
        self.last_line += _size(piece)
        if isinstance(piece, TextBlock) and piece.envelopes is None:
            self._held.append(TextBlock(piece.number + self.before, piece.data))
            if sum(map(len, self._held)) >= BLOCK:
                self._held = self._blocks(self._held, more=True)
            return
        self._held = self._blocks(self._held, more=False)
        for line in _lines(piece):
            self._feed(line._replace(number=line.number + self.before))


def _lines(piece: Piece) -> Iterator[Line]:
    return piece.lines() if isinstance(piece, TextBlock) else iter(piece)


def _size(piece: Piece) -> int:
    return len(piece.ends) if isinstance(piece, TextBlock) else len(piece)
